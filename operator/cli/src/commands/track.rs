//! `pawl track`.

use super::{print, source};
use crate::args::StateArgs;
use crate::exit;
use pawl_local::evidence;
use pawl_local::shell::trackers;
use std::process::ExitCode;

/// Logs what is new of the job, and prints where.
pub fn track(args: &StateArgs) -> ExitCode {
    let evidence = match source::read(args, evidence::gather) {
        Ok((_, evidence)) => evidence,
        Err(code) => return code,
    };
    let trackers = match trackers(&evidence.job) {
        Ok(trackers) => trackers,
        Err(error) => return exit::with_error(exit::INPUT, &error),
    };
    let runs = pawl_display::track::runs(&evidence);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::with_error(exit::FAILED, &error),
    };
    match runtime.block_on(trackers.log(&runs)) {
        Ok(()) => {
            let count = runs.children.len();
            let places = trackers.places().join(" and ");
            print(&format!("{}: 1 run, and {count} below it, in {places}\n", evidence.name()))
        }
        Err(error) => exit::with_error(exit::FAILED, &error),
    }
}
