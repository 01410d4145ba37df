//! `pawl search`, and what it shares with `kubectl pawl search`.

use super::{print, source};
use crate::args::StateArgs;
use crate::args::search::{ExportArgs, ExportFormat};
use crate::exit;
use pawl_display::export::{self, Format};
use pawl_local::evidence::displayed;
use pawl_local::state::{StateError, write_atomic};
use std::path::Path;
use std::process::ExitCode;

/// The format of the command line.
pub const fn format(format: ExportFormat) -> Format {
    match format {
        ExportFormat::Csv => Format::Csv,
        ExportFormat::Json => Format::Json,
        ExportFormat::Optuna => Format::Optuna,
    }
}

/// Writes the trials of a local job, and prints the path unless they go to standard output.
pub fn export(args: &StateArgs, what: &ExportArgs) -> ExitCode {
    let (_, found) = match source::recorded(args) {
        Ok(found) => found,
        Err(code) => return code,
    };
    match export::render(&found.job, &found.status, format(what.format)) {
        Ok(text) => written(&what.out, &text).unwrap_or_else(|error| exit::with_error(exit::STATE, &error)),
        Err(error) => exit::with_error(exit::INPUT, &error),
    }
}

/// Writes `text` to `out` and prints the path; `-` is standard output.
///
/// # Errors
/// The file cannot be written.
pub fn written(out: &Path, text: &str) -> Result<ExitCode, StateError> {
    if out == Path::new("-") {
        return Ok(print(text));
    }
    write_atomic(out, text.as_bytes())?;
    Ok(print(&format!("{}\n", displayed(out))))
}
