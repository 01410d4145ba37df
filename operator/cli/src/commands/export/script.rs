//! Copies the checkpoint of a script, as the script wrote it.

use super::{ExportError, storage};
use crate::args::export::ExportArgs;
use pawl_api::status::TrainingStatus;
use pawl_durable::NewDirectory;
use pawl_local::state::StateDir;
use pawl_local::state::document::Document;
use pawl_trainer::checkpoint::{Choice, Store, is_own_name};
use pawl_trainer::ending::Ending;
use pawl_trainer::export::unusable;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// Manifest of a checkpoint of the Python package.
const MANIFEST: &str = "pawl.json";
/// Bytes of a file that are hashed at a time.
const PIECE: usize = 1 << 20;

/// Copies the checkpoint to the output directory: the content of its directory, or its file.
///
/// # Errors
/// When there is no such checkpoint here, a file of it differs from its hash, or it cannot be copied.
pub fn copy(arguments: &ExportArgs, state: &StateDir, document: &Document) -> Result<String, ExportError> {
    if arguments.dtype.is_some() || arguments.no_average || arguments.adapter || arguments.weights.is_some() {
        let problem = "--dtype, --no-average, --adapter and --weights are for the built-in workloads: leave them out, \
                       as the checkpoint of a script is copied as it is";
        return Err(ExportError::Input(problem.to_owned()));
    }
    let training = document.status.training.clone().unwrap_or_default();
    let name = chosen(&arguments.checkpoint, &training)?;
    let storage = local(&storage(state, document))?;
    let from = storage.join(training.path(&name));
    if !from.exists() {
        return Err(ExportError::Input(format!(
            "checkpoint {name}: not found as {}: choose another one with --checkpoint, or copy it there",
            from.display()
        )));
    }
    verify(&from, &name)?;
    let to = &arguments.to;
    let new = NewDirectory::at(to).map_err(|error| unusable(to, &error))?;
    let file = from.file_name().filter(|_| !from.is_dir());
    copy_all(&from, &file.map_or_else(|| new.path().to_owned(), |file| new.path().join(file)))?;
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

/// The directory of a storage on this machine.
fn local(storage: &str) -> Result<PathBuf, ExportError> {
    match storage.split_once("://") {
        None => Ok(PathBuf::from(storage)),
        Some(("file", path)) => Ok(PathBuf::from(path)),
        Some(_) => {
            let problem = "the checkpoints of scripts are exported from a directory: copy the storage here, and name \
                           the copy";
            Err(ExportError::Input(format!("{storage}: {problem}")))
        }
    }
}

/// Copies a file, or a directory to one that exists. Links to files are followed.
fn copy_all(from: &Path, to: &Path) -> Result<(), ExportError> {
    let failed = |error: io::Error| ExportError::Model(Ending::Failed(format!("{}: {error}", from.display())));
    if !from.is_dir() {
        let copied = fs::copy(from, to).and_then(|_| File::open(to)?.sync_all());
        return copied.map_err(failed);
    }
    for entry in fs::read_dir(from).map_err(failed)? {
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
        copy_all(&path, &target)?;
    }
    Ok(())
}

/// What the manifest of a checkpoint of the Python package says of its files.
#[derive(Default, Deserialize)]
struct Manifest {
    /// SHA-256 of each, in hexadecimal; none in those of earlier versions.
    #[serde(default)]
    hashes: BTreeMap<String, String>,
}

/// Compares the files of a checkpoint with their hashes, where it has some: those of the Python package and of programs
/// in Rust.
fn verify(from: &Path, name: &str) -> Result<(), ExportError> {
    let unreadable = |problem: String| {
        let problem = format!("checkpoint {name}: {problem}: choose another one with --checkpoint");
        ExportError::Model(Ending::CheckpointUnreadable(problem))
    };
    if let (Some(storage), true) = (from.parent(), is_own_name(name)) {
        Store::open(&storage.to_string_lossy())?.verify(name)?;
    }
    let manifest: Manifest = match fs::read(from.join(MANIFEST)) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| unreadable(format!("{MANIFEST}: {error}")))?,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Manifest::default()
        }
        Err(error) => return Err(unreadable(format!("{MANIFEST}: {error}"))),
    };
    for (file, expected) in &manifest.hashes {
        let found = hash(&from.join(file)).map_err(|error| unreadable(format!("{file}: {error}")))?;
        if found != *expected {
            return Err(unreadable(format!("it is corrupt: {file} does not match its hash")));
        }
    }
    Ok(())
}

/// SHA-256 of a file, in hexadecimal.
fn hash(path: &Path) -> io::Result<String> {
    let (mut file, mut digest, mut piece) = (File::open(path)?, Sha256::new(), vec![0; PIECE]);
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            return Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        digest.update(&piece[..read]);
    }
}
