//! Exit codes and the one way to end with an error.

use pawl_local::{RunError, Verdict};
use std::fmt::Display;
use std::process::ExitCode;

/// The job is complete, or the command did what it was told.
pub const COMPLETE: u8 = 0;
/// The job failed.
pub const FAILED: u8 = 1;
/// The input is wrong, or this machine cannot serve it: nothing was started.
pub const INPUT: u8 = 2;
/// The job is at rest, but not as asked: a gate was missed, or it waits for a person.
pub const NOT_AS_ASKED: u8 = 3;
/// The state directory cannot be used.
pub const STATE: u8 = 4;
/// The cluster cannot be used.
#[cfg(feature = "cluster")]
pub const CLUSTER: u8 = 4;

/// The codes, for `--help`.
pub const HELP: &str = "Exit codes:
  0    complete, and every gate holds
  1    the job failed
  2    bad input, or this machine cannot serve it; nothing was started
  3    at rest, but not as asked: a gate was missed, or the job is suspended
  4    the state directory cannot be used: locked, corrupt, full, not writable
  130  stopped by Ctrl-C after a checkpoint; the same command goes on
  143  stopped by SIGTERM after a checkpoint; the same command goes on";

/// The code of a run that ended.
pub const fn of_verdict(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Complete => COMPLETE,
        Verdict::Failed => FAILED,
        Verdict::Degraded | Verdict::Suspended => NOT_AS_ASKED,
        Verdict::Interrupted(signal) => signal.exit_status(),
    }
}

/// The code of a run that could not go on.
pub const fn of_error(error: &RunError) -> u8 {
    match error {
        RunError::Machine(_) | RunError::ClusterStorage(_) => INPUT,
        RunError::State(_) => STATE,
        RunError::Setup(_) => FAILED,
    }
}

/// Prints an error the way all commands do, and gives its code.
pub fn with_error(code: u8, error: &dyn Display) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(code)
}
