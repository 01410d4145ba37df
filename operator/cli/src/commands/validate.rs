//! `pawl validate`.

use super::source;
use crate::exit;
use std::path::PathBuf;
use std::process::ExitCode;

/// Validates every file, and prints all errors of all files.
pub fn validate(files: &[PathBuf]) -> ExitCode {
    let mut valid = true;
    for file in files {
        match source::load(file) {
            Ok(job) => {
                let name = job.metadata.name.as_deref().unwrap_or_default();
                println!("{}: valid: TrainingJob {name}, {} phases", file.display(), job.spec.phases.len());
            }
            Err(error) => {
                valid = false;
                let _ = source::reject(&error);
            }
        }
    }
    ExitCode::from(if valid { exit::COMPLETE } else { exit::INPUT })
}
