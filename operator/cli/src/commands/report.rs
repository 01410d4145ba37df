//! `pawl report`.

use super::{print, source};
use crate::args::StateArgs;
use crate::exit;
use pawl_display::report;
use pawl_local::evidence::{self, displayed};
use pawl_local::state::write_atomic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes the page and prints its path.
pub fn report(args: &StateArgs, out: Option<&Path>) -> ExitCode {
    let state = match source::state_dir(args) {
        Ok(state) => state,
        Err(error) => return source::reject(&error),
    };
    let evidence = match evidence::gather(&state) {
        Ok(evidence) => evidence,
        Err(error) => return exit::with_error(exit::STATE, &error),
    };
    let page = report::render(&evidence);
    if out == Some(Path::new("-")) {
        return print(&page);
    }
    // The storage of a job may be mounted read-only, and its records are in a hidden folder.
    let usual = || match state.storage() {
        Some(_) => PathBuf::from(format!("{}.html", evidence.name())),
        None => state.report(),
    };
    let path = out.map_or_else(usual, Path::to_owned);
    match write_atomic(&path, page.as_bytes()) {
        Ok(()) => print(&format!("{}\n", displayed(&path))),
        Err(error) => exit::with_error(exit::STATE, &error),
    }
}
