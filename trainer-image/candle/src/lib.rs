//! Trains a model that is written against candle-nn as a trainer of Pawl: Pawl measures each change of the settings in
//! launches of the program, keeps it only if it is faster and as good, and then trains with what it kept.
//!
//! A program reads its settings from [`Run`], and loops over [`Training`]; [`main`] has a whole one. This crate does
//! the rest:
//!
//! - settings: one that the program does not read is Unsupported, so no phase is measured without effect;
//! - steps: gradient accumulation, the mean of the gradients over all ranks (TCP on the CPU, NCCL on GPUs), clipping;
//! - measurements: throughput, losses, validation, memory. A GPU is synchronized at the edges of measurement windows
//!   only;
//! - checkpoints in the format of the built-in trainer, written beside training and resumed exactly, see [`exchange`].
//!   The format has float32 only: variables and moments in float64 are rounded to it, and float64 training does not
//!   resume exactly;
//! - the end: NaN, loss spikes, SIGTERM, a lost rank, out of memory, as exit codes of the contract.
//!
//! Randomness that is not drawn from the seed, such as `candle_nn::Dropout` on the CPU, makes launches differ: Pawl
//! then judges quality by the validation of several seeds, not by equal losses.
//!
//! Gradients of several ranks are exchanged in float32, also those in float64.
//!
//! On GPUs (the feature `cuda`), they are averaged by NCCL.
#![warn(clippy::missing_errors_doc)]

mod average;
mod error;
pub mod exchange;
mod hardware;
mod init;
#[cfg(feature = "cuda")]
mod nccl;
mod optimizer;
mod order;
mod rank;
mod record;
mod run;
mod settings;
mod tensors;
mod training;

pub use error::{Error, Result};
pub use optimizer::{AdamW, Optimizer};
pub use pawl_contract::plan::LaunchKind;
pub use pawl_launch::ending::Ending;
pub use run::{Run, main};
pub use training::Training;
