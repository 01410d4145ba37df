//! `pawl report`.

use super::{output, print, source};
use crate::args::StateArgs;
use crate::exit;
use pawl_display::report;
use pawl_local::evidence::{self, displayed};
use pawl_local::state::write_atomic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes the page and prints its path.
pub fn report(args: &StateArgs, out: Option<&Path>) -> ExitCode {
    let (state, evidence) = match source::read(args, evidence::gather) {
        Ok(found) => found,
        Err(code) => return code,
    };
    let page = report::render(&evidence);
    if let Some(out) = out {
        return output::write(out, &page);
    }
    // The storage of a job may be mounted read-only, and its records are in a hidden folder.
    let path = match state.storage() {
        Some(_) => PathBuf::from(format!("{}.html", evidence.name())),
        None => state.report(),
    };
    // It replaces the page of an earlier time.
    match write_atomic(&path, page.as_bytes()) {
        Ok(()) => print(&format!("{}\n", displayed(&path))),
        Err(error) => exit::with_error(exit::STATE, &error),
    }
}
