//! The local shell: `pawl run` without a cluster. The same manifest, the same decisions, every rank a process of this
//! machine.
//!
//! - [`shell`]: the loop: observe, decide, write the status, act, emit the events;
//! - [`gang`]: the attempts, and the agent that runs one of them in this process;
//! - [`state`]: the directory in which everything is kept, so that a run that was killed resumes;
//! - [`machine`]: GPUs and cores;
//! - [`display`]: what people see on a terminal or in a pipe;
//! - [`evidence`]: what the directory holds, for the report (`pawl-display` draws it).

pub mod display;
pub mod evidence;
pub mod gang;
pub mod interrupt;
pub mod machine;
pub mod shell;
pub mod state;

pub use shell::{Options, RunError, Verdict, run};
