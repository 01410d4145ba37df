//! Files and standard output, where a command line says where its result goes.

use super::print;
use crate::exit;
use pawl_local::evidence::displayed;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A file that a command line names cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}: choose another file with --out", path.display(), problem(source))]
pub struct OutputError {
    path: PathBuf,
    source: io::Error,
}

fn problem(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists => "exists already, and nothing is overwritten".to_owned(),
        _ => error.to_string(),
    }
}

/// Writes `text` to a file that a command line names, and does not exist yet.
///
/// # Errors
/// [`OutputError`] when it exists or cannot be written; no part of it is left.
pub fn create(path: &Path, text: &str) -> Result<(), OutputError> {
    let written = pawl_durable::create(path, text.as_bytes());
    written.map_err(|source| OutputError { path: path.to_owned(), source })
}

/// Writes `text` to `out` as [`create`] does, and prints the path; `-` is standard output.
///
/// # Errors
/// As [`create`].
pub fn written(out: &Path, text: &str) -> Result<ExitCode, OutputError> {
    if out == Path::new("-") {
        return Ok(print(text));
    }
    create(out, text)?;
    Ok(print(&format!("{}\n", displayed(out))))
}

/// As [`written`]; an error is printed.
pub fn write(out: &Path, text: &str) -> ExitCode {
    written(out, text).unwrap_or_else(|error| exit::with_error(exit::INPUT, &error))
}
