//! `pawl search`, and what it shares with `kubectl pawl search`.

use super::{output, source};
use crate::args::StateArgs;
use crate::args::search::{ExportArgs, ExportFormat};
use crate::exit;
use pawl_display::export::{self, Format};
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
        Ok(text) => output::write(&what.out, &text),
        Err(error) => exit::with_error(exit::INPUT, &error),
    }
}
