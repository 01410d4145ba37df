//! `pawl track`.

use super::{print, source};
use crate::args::StateArgs;
use crate::exit;
use pawl_local::evidence;
use pawl_local::tracking::{ADDRESS, Tracker};
use std::process::ExitCode;

/// Logs what is new of the job, and prints where.
pub fn track(args: &StateArgs) -> ExitCode {
    let state = match source::state_dir(args) {
        Ok(state) => state,
        Err(error) => return source::reject(&error),
    };
    let evidence = match evidence::gather(&state) {
        Ok(evidence) => evidence,
        Err(error) => return exit::with_error(exit::STATE, &error),
    };
    let tracker = match Tracker::named(|name| std::env::var(name).ok()) {
        Ok(Some(tracker)) => tracker,
        Ok(None) => {
            let problem = format!("{ADDRESS} is not set: set it to the address of the MLflow server");
            return exit::with_error(exit::INPUT, &problem);
        }
        Err(error) => return exit::with_error(exit::INPUT, &error),
    };
    let runs = pawl_display::track::runs(&evidence);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::with_error(exit::FAILED, &error),
    };
    match runtime.block_on(tracker.log(&runs)) {
        Ok(()) => {
            let count = runs.children.len();
            print(&format!("{}: 1 run, and {count} below it, at {}\n", evidence.name(), tracker.address()))
        }
        Err(error) => exit::with_error(exit::FAILED, &error),
    }
}
