//! The trainer: one process per rank that runs one launch of a plan and reports its measurements.
//!
//! [`run_from_env`] is the whole program: it reads the contract's environment and `plan.json`, runs the launch, writes
//! `progress.json` and `report.json`, and returns the contract's exit code. The main loop is [`train::train`]; every
//! other concern has a file of its own, or is a module of [`pawl_launch`] if it is independent of the engine.

#[cfg(all(feature = "cuda", feature = "candle-cuda"))]
compile_error!(
    "the features cuda and candle-cuda exclude each other: they link to the CUDA libraries in different ways"
);

mod available;
mod check;
pub mod device;
pub mod dump;
pub mod executors;
pub mod export;
mod feed;
#[cfg(feature = "cuda")]
mod gpu;
pub mod model_flops;
pub mod profile;
pub mod rank;
pub mod recipe;
pub mod report;
pub mod run;
pub mod session;
mod test_split;
pub mod train;
pub mod vote;
mod workload;

use std::process::ExitCode;

pub use check::{Refusal, RefusalKind, check};
pub use dump::{View, plan, plan_file};
pub use pawl_launch::{
    budget, checkpoint, collective, ending, epochs, launch, losses, metrics, progress, saving, signals, throughput,
};

/// Runs the launch that the environment names; see [`launch::Launch::from_env`] and [`pawl_contract::env`].
pub fn run_from_env() -> ExitCode {
    pawl_launch::process::run(launch::Launch::from_env(), rank::run)
}
