//! Copies the checkpoint of a script, as the script wrote it.

use super::{ExportError, directory, python, require_outside, storage};
use crate::args::export::ExportArgs;
use pawl_api::status::TrainingStatus;
use pawl_durable::NewDirectory;
use pawl_local::state::StateDir;
use pawl_local::state::document::Document;
use pawl_trainer::checkpoint::{Choice, Store, is_own_name};
use pawl_trainer::ending::Ending;
use pawl_trainer::export::unusable;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path};

/// Copies the checkpoint to the output directory: the content of its directory, or its file.
///
/// # Errors
/// When there is no such checkpoint here, it is incomplete, a file of it differs from its hash, leads out of the
/// storage or is a special one, the output directory is in the storage, or it cannot be copied.
pub fn copy(arguments: &ExportArgs, state: &StateDir, document: &Document) -> Result<String, ExportError> {
    let ExportArgs { dtype, no_average, adapter, onnx, weights, tokenizer, .. } = arguments;
    if [dtype.is_some(), *no_average, *adapter, *onnx, weights.is_some(), tokenizer.is_some()].contains(&true) {
        let problem = "--dtype, --no-average, --adapter, --onnx, --weights and --tokenizer are for the built-in \
                       workloads: leave them out, as the checkpoint of a script is copied as it is";
        return Err(ExportError::Input(problem.to_owned()));
    }
    let training = document.status.training.clone().unwrap_or_default();
    let name = chosen(&arguments.checkpoint, &training)?;
    let url = storage(state, document);
    let storage = directory(&url)?.ok_or_else(|| {
        let problem = "the checkpoints of scripts are exported from a directory: copy the storage here, and name the \
                       copy";
        ExportError::Input(format!("{url}: {problem}"))
    })?;
    let (path, to) = (storage.join(training.path(&name)), &arguments.to);
    let from = path.canonicalize().map_err(|_| {
        ExportError::Input(format!(
            "checkpoint {name}: not found as {}: choose another one with --checkpoint, or copy it there",
            path.display()
        ))
    })?;
    require_outside(to, &storage)?;
    let new = NewDirectory::at(to).map_err(|error| unusable(to, &error))?;
    let file = path.file_name().filter(|_| !from.is_dir());
    copy_all(&path, &file.map_or_else(|| new.path().to_owned(), |file| new.path().join(file)), &storage)?;
    verify(&path, &name, new.path())?;
    new.commit().map_err(|error| unusable(to, &error))?;
    Ok(format!("checkpoint {name}: copied as the script wrote it"))
}

/// The name of the checkpoint that is asked for: the newest one where none is the best.
fn chosen(choice: &Choice, training: &TrainingStatus) -> Result<String, ExportError> {
    let last = training.last_checkpoint.as_ref().map(|checkpoint| &checkpoint.name);
    let best = training.best_checkpoint.as_ref().map(|best| &best.checkpoint.name);
    let name = match choice {
        Choice::Best => best.or(last),
        Choice::Last => last,
        Choice::Named(name) => Some(name),
    };
    let Some(name) = name else {
        let problem = "the job has no checkpoint yet: train first, or name one with --checkpoint NAME";
        return Err(ExportError::Input(problem.to_owned()));
    };
    let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || !inside {
        let problem = "is no path inside of the storage: write the name of a checkpoint";
        return Err(ExportError::Input(format!("checkpoint {name:?}: {problem}")));
    }
    Ok(name.clone())
}

/// Copies the file at `from`, or the content of the directory, to `to`, a directory that exists. Links to files are
/// followed, as long as they stay in `storage`, which is without links.
fn copy_all(from: &Path, to: &Path, storage: &Path) -> Result<(), ExportError> {
    let failed = |error: io::Error| ExportError::Model(Ending::Failed(format!("{}: {error}", from.display())));
    let refused = |problem: &str| Err(ExportError::Input(format!("{}: {problem}", from.display())));
    let found = from.canonicalize().map_err(failed)?;
    if !found.starts_with(storage) {
        return refused("is a link that leads out of the storage: replace it by what it leads to");
    }
    let kind = fs::metadata(&found).map_err(failed)?.file_type();
    if kind.is_file() {
        return pawl_durable::copy(&found, to).map_err(failed);
    }
    if !kind.is_dir() {
        return refused("is neither a file nor a directory: remove it");
    }
    for entry in fs::read_dir(&found).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_symlink() && path.is_dir() {
            let problem = "is a link to a directory: replace it by the directory";
            return Err(ExportError::Input(format!("{}: {problem}", path.display())));
        }
        if kind.is_dir() {
            fs::create_dir(&target).map_err(failed)?;
        }
        copy_all(&path, &target, storage)?;
    }
    File::open(to).and_then(|directory| directory.sync_all()).map_err(failed)
}

/// Compares the files of the checkpoint at `path`, of which there is a copy, with their hashes, where it has some:
/// those of the Python package and of programs in Rust.
fn verify(path: &Path, name: &str, copy: &Path) -> Result<(), ExportError> {
    let unreadable = |problem: String| {
        let problem = format!("checkpoint {name}: {problem}: choose another one with --checkpoint");
        ExportError::Model(Ending::CheckpointUnreadable(problem))
    };
    if let Some(storage) = path.parent()
        && is_own_name(name)
        && !Store::open(&storage.to_string_lossy())?.verify(name)?
    {
        return Err(unreadable("it is incomplete: it has no manifest.json".to_owned()));
    }
    python::verify(copy).map_err(unreadable)
}
