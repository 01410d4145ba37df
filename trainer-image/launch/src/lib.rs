//! One launch of a trainer, whatever trains: everything between the contract and the training itself.
//!
//! The built-in trainer (`pawl-trainer`) and programs written against candle-nn (`pawl-candle`) are made of these
//! parts:
//!
//! - [`launch`]: a launch as one rank sees it; [`process::run`] runs it to its report and its exit code.
//! - [`budget`]: its length and evaluations; [`validation`]: what evaluations decide.
//! - [`connect`], [`collective`]: the gang of ranks.
//! - [`checkpoint`], [`saving`]: the checkpoint format, and who writes one when.
//! - [`throughput`], [`losses`], [`epochs`], [`metrics`], [`progress`], [`report`]: what a launch measures and
//!   publishes.
//! - [`ending`], [`signals`]: how it ends.
//! - [`place`]: the device that the agent assigned; [`process`]: the program around a launch.

pub mod budget;
pub mod checkpoint;
pub mod collective;
pub mod connect;
pub mod ending;
pub mod epochs;
pub mod gpu_reading;
pub mod launch;
pub mod metrics;
#[cfg(feature = "cuda")]
pub mod nvml;
pub mod place;
pub mod process;
pub mod progress;
pub mod report;
pub mod saving;
pub mod signals;
pub mod straggler;
pub mod throughput;
pub mod validation;
#[cfg(feature = "cuda")]
mod xid;

pub use pawl_contract::losses;
