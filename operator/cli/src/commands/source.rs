//! Reads manifests, and locates the state of their jobs.

use crate::args::StateArgs;
use crate::exit;
use pawl_api::TrainingJob;
use pawl_local::state::document::Document;
use pawl_local::state::{StateDir, records};
#[cfg(feature = "cluster")]
use pawl_manifest::Documents;
use pawl_manifest::ManifestErrors;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

/// Error of reading a manifest.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be read from standard input.
    #[error("standard input: {0}")]
    Stdin(#[from] std::io::Error),
    /// It is not a valid manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestErrors),
}

/// Reads the manifest in `file`; `-` is standard input.
pub fn load(file: &Path) -> Result<TrainingJob, SourceError> {
    if file != Path::new("-") {
        return Ok(pawl_manifest::load(file)?);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(pawl_manifest::parse(&text, "<stdin>")?)
}

/// Reads all TrainingJobs in `file`, which may have several documents; `-` is standard input.
#[cfg(feature = "cluster")]
pub fn load_all(file: &Path) -> Result<Documents, SourceError> {
    if file != Path::new("-") {
        return Ok(pawl_manifest::parse_all(&pawl_manifest::text_of(file)?, &file.display().to_string())?);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(pawl_manifest::parse_all(&text, "<stdin>")?)
}

/// Prints every problem on a line of its own.
pub fn reject(error: &SourceError) -> ExitCode {
    match error {
        SourceError::Stdin(_) => return exit::with_error(exit::INPUT, error),
        SourceError::Manifest(errors) => exit::say(&errors.to_string().trim_end()),
    }
    ExitCode::from(exit::INPUT)
}

/// `named`, or else the default state directory of `job`.
pub fn state_of(job: &TrainingJob, named: Option<&Path>) -> StateDir {
    match named {
        Some(directory) => StateDir::new(directory),
        None => StateDir::default_for(job.metadata.name.as_deref().unwrap_or_default()),
    }
}

/// The state directory that the command line selects: of a manifest, or of the name of a job that ran here.
pub fn state_dir(args: &StateArgs) -> Result<StateDir, SourceError> {
    match (&args.state, &args.file) {
        (Some(directory), _) => Ok(StateDir::found_in(directory)),
        (None, Some(file)) => {
            match file.to_str().map(StateDir::default_for).filter(|state| !file.exists() && state.status().exists()) {
                Some(state) => Ok(state),
                None => Ok(state_of(&load(file)?, None)),
            }
        }
        (None, None) => Ok(StateDir::new(".")),
    }
}

/// The arguments that select a job by a state directory, a storage, a manifest, or a name.
pub fn named(job: &Path) -> StateArgs {
    let is_state = StateDir::found_in(job).status().exists();
    let (file, state) = if is_state { (None, Some(job.to_owned())) } else { (Some(job.to_owned()), None) };
    StateArgs { file, state }
}

/// The state directory that the command line selects, and the job that was run there; an error is printed.
pub fn recorded(args: &StateArgs) -> Result<(StateDir, Document), ExitCode> {
    let state = state_dir(args).map_err(|error| reject(&error))?;
    let document = records::document(&state).map_err(|error| exit::with_error(exit::STATE, &error))?;
    Ok((state, document))
}
