//! Exit codes, and the common way to exit with an error.

use pawl_contract::report::printable;
use pawl_local::{RunError, RunOutcome};
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// The job is complete, or the command succeeded.
pub const COMPLETE: u8 = 0;
/// The job failed.
pub const FAILED: u8 = 1;
/// The input is invalid, or this machine does not meet its requirements: nothing was started.
pub const INPUT: u8 = 2;
/// The job has stopped without reaching its goal: a gate failed, or it is suspended.
pub const NOT_AS_ASKED: u8 = 3;
/// The state directory cannot be used.
pub const STATE: u8 = 4;
/// The cluster cannot be used.
#[cfg(feature = "cluster")]
pub const CLUSTER: u8 = 4;

/// The codes, for `--help`.
pub const HELP: &str = "Exit codes:
  0    complete, and every gate passed
  1    the job failed
  2    invalid input, or this machine does not meet its requirements; nothing was started
  3    stopped without reaching the goal: a gate failed, or the job is suspended
  4    the state directory cannot be used: locked, corrupt, full, not writable
  130  stopped by Ctrl-C after a checkpoint; the same command resumes
  143  stopped by SIGTERM after a checkpoint; the same command resumes
  129  the same for SIGHUP: the terminal was closed";

/// The exit code of a run that ended.
pub const fn of_outcome(outcome: RunOutcome) -> u8 {
    match outcome {
        RunOutcome::Complete => COMPLETE,
        RunOutcome::Failed => FAILED,
        RunOutcome::Degraded | RunOutcome::Suspended => NOT_AS_ASKED,
        RunOutcome::Interrupted(signal) => signal.exit_status(),
    }
}

/// The exit code of a run that failed with an error.
pub const fn of_error(error: &RunError) -> u8 {
    match error {
        RunError::Machine(_) | RunError::ClusterStorage(_) => INPUT,
        RunError::State(_) => STATE,
        RunError::Setup(_) => FAILED,
    }
}

/// Prints an error in the common format, and returns its exit code.
pub fn with_error(code: u8, error: &dyn Display) -> ExitCode {
    say(&format_args!("error: {error}"));
    ExitCode::from(code)
}

/// Prints a line to standard error, without what a terminal would obey: it may quote a manifest, a trainer or a
/// cluster. A terminal that was closed is no reason to fail.
pub fn say(line: &dyn Display) {
    let _ = writeln!(io::stderr(), "{}", printable(&line.to_string()));
}
