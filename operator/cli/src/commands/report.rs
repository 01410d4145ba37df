//! `pawl report`.

use super::{print, source};
use crate::args::StateArgs;
use crate::exit;
use pawl_display::report;
use pawl_local::evidence::{self, displayed};
use pawl_local::state::write_atomic;
use std::path::Path;
use std::process::ExitCode;

/// Writes the page and prints its path.
pub fn report(args: &StateArgs, out: Option<&Path>) -> ExitCode {
    let state = match source::state_dir(args) {
        Ok(state) => state,
        Err(error) => return source::reject(&error),
    };
    let page = match evidence::gather(&state) {
        Ok(evidence) => report::render(&evidence),
        Err(error) => return exit::with_error(exit::STATE, &error),
    };
    if out == Some(Path::new("-")) {
        return print(&page);
    }
    let path = out.map_or_else(|| state.report(), Path::to_owned);
    match write_atomic(&path, page.as_bytes()) {
        Ok(()) => print(&format!("{}\n", displayed(&path))),
        Err(error) => exit::with_error(exit::STATE, &error),
    }
}
