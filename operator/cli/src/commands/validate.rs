//! `pawl validate`.

use super::source;
use crate::exit;
use std::path::PathBuf;
use std::process::ExitCode;

/// Validates every file, and prints all errors of all files.
pub fn validate(files: &[PathBuf]) -> ExitCode {
    let mut good = true;
    for file in files {
        match source::load(file) {
            Ok(job) => {
                let name = job.metadata.name.as_deref().unwrap_or_default();
                println!("{}: good: TrainingJob {name}, {} phases", file.display(), job.spec.phases.len());
            }
            Err(error) => {
                good = false;
                let _ = source::refuse(&error);
            }
        }
    }
    ExitCode::from(if good { exit::COMPLETE } else { exit::INPUT })
}
