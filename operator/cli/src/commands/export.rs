//! `pawl export`: takes the model out of a job that ran here, or whose storage was copied.

mod push;
mod python;
mod script;

use super::{print, source};
use crate::args::export::ExportArgs;
use crate::exit;
use pawl_api::status::TrainingStatus;
use pawl_contract::checkpoint::CheckpointRef;
use pawl_local::evidence::{displayed, launch_plan};
use pawl_local::state::document::Document;
use pawl_local::state::{StateDir, StateError};
use pawl_trainer::checkpoint::{CheckpointError, Choice, Store};
use pawl_trainer::ending::Ending;
use pawl_trainer::export::{Dtype, Options};
use push::Upload;
use std::path::{Path, PathBuf, absolute};
use std::process::ExitCode;

/// Error of an export. Nothing was written, unless it is of the upload.
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
    /// The model was exported, but not uploaded.
    #[error(
        "{command}: {problem}: the model is in {directory}; see above what failed (HF_TOKEN and HF_ENDPOINT say as whom \
         and to where), and repeat this command"
    )]
    Upload {
        /// What uploads it.
        command: String,
        /// How that ended.
        problem: String,
        /// Where the model is.
        directory: String,
    },
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
            Self::Model(_) | Self::Upload { .. } => exit::FAILED,
        }
    }
}

/// Exports the model, uploads it if that is asked for, and prints the path of its directory; what it is goes to
/// standard error.
pub fn export(arguments: &ExportArgs) -> ExitCode {
    let (state, document) = match source::recorded(&source::named(&arguments.job)) {
        Ok(found) => found,
        Err(code) => return code,
    };
    match exported(arguments, &state, &document) {
        Ok(()) => print(&format!("{}\n", displayed(&arguments.to))),
        Err(error) => exit::with_error(error.code(), &error),
    }
}

fn exported(arguments: &ExportArgs, state: &StateDir, document: &Document) -> Result<(), ExportError> {
    // Before anything is written: what uploads the model may be missing.
    let upload = arguments.push.as_ref().map(|model| Upload::new(model, arguments)).transpose()?;
    let what = match document.job.spec.workload.name {
        Some(_) => model(arguments, state, document),
        None => script::copy(arguments, state, document),
    };
    exit::say(&what?);
    upload.map_or(Ok(()), |upload| upload.run())
}

/// Exports the model of a built-in workload.
fn model(arguments: &ExportArgs, state: &StateDir, document: &Document) -> Result<String, ExportError> {
    let inner = document.status.training.as_ref().and_then(|training| training.directory.as_ref());
    let storage = storage(state, document);
    let storage = inner.map_or(storage.clone(), |inner| format!("{storage}/{inner}"));
    // It would be created.
    if let Some(local) = directory(&storage)? {
        require_outside(&arguments.to, &local)?;
    }
    let store = Store::open(&storage)?;
    let found = store.choose(&arguments.checkpoint)?;
    require_known(&arguments.checkpoint, document.status.training.as_ref(), &found.reference)?;
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
        onnx: arguments.onnx,
        weights: arguments.weights.clone(),
        tokenizer: arguments.tokenizer.clone(),
    };
    Ok(pawl_trainer::export::export(&plan, &store, &found, &options, &arguments.to)?.to_string())
}

/// Checks that no older checkpoint takes the place of the one that the status names: that one is damaged, or was not
/// copied. A newer one may have been written since.
fn require_known(choice: &Choice, training: Option<&TrainingStatus>, found: &CheckpointRef) -> Result<(), ExportError> {
    let Some(training) = training else { return Ok(()) };
    let (which, known) = match choice {
        Choice::Best => ("best", training.best_checkpoint.as_ref().map(|best| &best.checkpoint)),
        Choice::Last => ("last", training.last_checkpoint.as_ref()),
        Choice::Named(_) => return Ok(()),
    };
    match known.filter(|known| known.name != found.name && known.items >= found.items) {
        Some(known) => Err(ExportError::Input(format!(
            "checkpoint {}, the {which} one of the job, is not in the storage, or not complete: copy it there, or name \
             another one (--checkpoint {})",
            known.name, found.name
        ))),
        None => Ok(()),
    }
}

/// Checks that the output directory is not in a storage, where a job would take it for a checkpoint.
fn require_outside(to: &Path, storage: &Path) -> Result<(), ExportError> {
    if !resolved(to).starts_with(storage) {
        return Ok(());
    }
    let problem = "is inside of the storage of the job, which may take it for a checkpoint: choose another directory";
    Err(ExportError::Input(format!("{}: {problem}", to.display())))
}

/// A path that may not exist yet, or what is above it and does, without links.
fn resolved(path: &Path) -> PathBuf {
    let path = absolute(path).unwrap_or_else(|_| path.to_owned());
    path.ancestors().find_map(|above| above.canonicalize().ok()).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn no_older_checkpoint_takes_the_place_of_the_best_or_the_last_one() {
        let checkpoint = |name: &str, items: u64| json!({"name": name, "step": items, "items": items});
        let training = json!({
            "lastCheckpoint": checkpoint("c-90", 90),
            "bestCheckpoint": {"checkpoint": checkpoint("c-60", 60), "metric": "loss", "value": "0.5"},
        });
        let training: TrainingStatus = serde_json::from_value(training).unwrap();
        let of = |choice: &Choice, found: Value| {
            let found: CheckpointRef = serde_json::from_value(found).unwrap();
            require_known(choice, Some(&training), &found).map_err(|error| error.to_string())
        };
        let missing = of(&Choice::Best, checkpoint("c-50", 50)).unwrap_err();
        assert!(
            missing.contains("c-60, the best one of the job") && missing.contains("(--checkpoint c-50)"),
            "{missing}"
        );
        assert!(of(&Choice::Last, checkpoint("c-60", 60)).unwrap_err().contains("c-90, the last one"));
        for (choice, found) in [
            (Choice::Best, checkpoint("c-60", 60)),
            (Choice::Last, checkpoint("c-120", 120)),
            (Choice::Named("c-50".to_owned()), checkpoint("c-50", 50)),
        ] {
            assert_eq!(of(&choice, found), Ok(()));
        }
    }
}
