//! The local shell: `pawl run` without a cluster. The same manifest and the same decisions; every rank is a process of
//! this machine.
//!
//! - [`shell`]: the loop: observe, decide, write the status, act, emit the events;
//! - [`gang`]: the attempts, and the agent that runs one of them in this process;
//! - [`state`]: the state directory, from which a killed run resumes;
//! - [`machine`]: allocation of GPUs and cores;
//! - [`display`]: progress on a terminal or in a pipe;
//! - [`tracking`]: logs a job to MLflow and TensorBoard;
//! - [`tuned`]: the command of a script that `pawl tune` has tuned;
//! - [`evidence`]: the content of the state directory for the report, which `pawl-display` renders.

#![warn(clippy::missing_errors_doc)]

pub mod display;
pub mod evidence;
pub mod gang;
pub mod interrupt;
pub mod machine;
mod preview;
pub mod shell;
pub mod state;
pub mod tracking;
mod trainer;
pub mod tuned;

pub use preview::{Previews, preview};
pub use shell::{Options, RunError, RunOutcome, run};
