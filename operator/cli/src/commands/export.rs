//! `pawl export`: takes the model out of a job that ran here, or whose storage was copied.

mod python;
mod script;

use super::{print, source};
use crate::args::export::ExportArgs;
use crate::exit;
use pawl_local::evidence::{displayed, launch_plan};
use pawl_local::state::document::Document;
use pawl_local::state::{StateDir, StateError};
use pawl_trainer::checkpoint::{CheckpointError, Store};
use pawl_trainer::ending::Ending;
use pawl_trainer::export::{Dtype, Options};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Error of an export; nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// There is nothing to export, or not in this way.
    #[error("{0}")]
    Input(String),
    /// The state of the job cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// The checkpoint cannot be read, or the model cannot be written.
    #[error(transparent)]
    Model(#[from] Ending),
}

impl From<CheckpointError> for ExportError {
    fn from(error: CheckpointError) -> Self {
        Self::Model(error.into())
    }
}

impl ExportError {
    fn code(&self) -> u8 {
        match self {
            Self::Input(_)
            | Self::Model(Ending::InvalidPlan(_) | Ending::Unsupported(_) | Ending::CheckpointUnreadable(_)) => {
                exit::INPUT
            }
            Self::State(_) => exit::STATE,
            Self::Model(_) => exit::FAILED,
        }
    }
}

/// Exports the model and prints the path of its directory; what it is goes to standard error.
pub fn export(arguments: &ExportArgs) -> ExitCode {
    let (state, document) = match source::recorded(&source::named(&arguments.job)) {
        Ok(found) => found,
        Err(code) => return code,
    };
    let exported = match document.job.spec.workload.name {
        Some(_) => model(arguments, &state, &document),
        None => script::copy(arguments, &state, &document),
    };
    match exported {
        Ok(what) => {
            exit::say(&what);
            print(&format!("{}\n", displayed(&arguments.to)))
        }
        Err(error) => exit::with_error(error.code(), &error),
    }
}

/// Exports the model of a built-in workload.
fn model(arguments: &ExportArgs, state: &StateDir, document: &Document) -> Result<String, ExportError> {
    let inner = document.status.training.as_ref().and_then(|training| training.directory.as_ref());
    let storage = storage(state, document);
    let storage = inner.map_or(storage.clone(), |inner| format!("{storage}/{inner}"));
    // It would be created.
    directory(&storage)?;
    let store = Store::open(&storage)?;
    let found = store.choose(&arguments.checkpoint)?;
    let launch = &found.author.launch;
    let plan = launch_plan(state, launch)?.ok_or_else(|| {
        ExportError::Input(format!(
            "{}: has no plan of {launch}, the launch that wrote checkpoint {}: name the state directory in which it \
             ran, or copy the records with `kubectl pawl fetch JOB --records`",
            state.attempts().display(),
            found.reference.name
        ))
    })?;
    let options = Options {
        format: arguments.dtype.unwrap_or(Dtype::Fp32).into(),
        averages: !arguments.no_average,
        adapter: arguments.adapter,
        weights: arguments.weights.clone(),
        tokenizer: arguments.tokenizer.clone(),
    };
    Ok(pawl_trainer::export::export(&plan, &store, &found, &options, &arguments.to)?.to_string())
}

/// The storage of the job, URL or path, without a slash at its end.
fn storage(state: &StateDir, document: &Document) -> String {
    let own = || state.checkpoints().to_string_lossy().into_owned();
    let storage = match state.storage() {
        Some(copied) => copied.to_string_lossy().into_owned(),
        None => pawl_decision::storage::location(&document.job).unwrap_or_else(own),
    };
    storage.trim_end_matches('/').to_owned()
}

/// The directory of a storage on this machine, without links; `None` if the storage is elsewhere.
///
/// # Errors
/// When there is no such directory.
fn directory(storage: &str) -> Result<Option<PathBuf>, ExportError> {
    let path = match storage.split_once("://") {
        None => storage,
        Some(("file", path)) => path,
        Some(_) => return Ok(None),
    };
    let problem = "no such directory, in which the checkpoints of the job would be: mount the storage there, or copy it \
                   with `kubectl pawl fetch` and name the copy";
    let found = Path::new(path).canonicalize().ok().filter(|found| found.is_dir());
    found.map(Some).ok_or_else(|| ExportError::Input(format!("{path}: {problem}")))
}
