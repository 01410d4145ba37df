//! Copies of the records in a storage.

use pawl_contract::record::EXTENSION;
use pawl_trainer::checkpoint::{AllRecords, RecordFile, StorageError};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why records cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("the copies of records in {}: {source}: set TMPDIR to a directory that can be written", .path.display())]
    Copy { path: PathBuf, source: io::Error },
}

/// What was copied, and whether that may go on.
#[derive(Default)]
pub struct Copied {
    /// The versions of the files, by folder of the job and path there.
    pub versions: HashMap<(String, String), String>,
    /// The folders of jobs in the storage, by the names of those with their copies.
    pub jobs: HashMap<String, String>,
    /// Why the copies may be out of date.
    pub problem: Option<String>,
    /// Whether nothing is to be copied any more.
    pub ended: bool,
}

/// The copies of the records in a storage.
pub struct Copies {
    /// Where they are.
    pub directory: PathBuf,
    copied: Mutex<Copied>,
}

impl Copies {
    /// Copies in `directory`, where there are none yet.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, copied: Mutex::default() }
    }

    /// What was copied.
    pub fn copied(&self) -> MutexGuard<'_, Copied> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the records of a job are copied to.
    pub fn folder(&self, job: &str) -> PathBuf {
        self.directory.join(folder_name(job))
    }

    /// Where a file of the records of a job is copied to.
    fn path(&self, job: &str, path: &str) -> PathBuf {
        self.folder(job).join(file_name(path))
    }

    /// Copies what has changed, and deletes what is gone. Returns the first problem with a file: the others are copied.
    ///
    /// # Errors
    /// When the storage cannot be listed.
    pub fn refresh(&self, records: &AllRecords) -> Result<Option<CopyError>, StorageError> {
        let (mut gone, mut problem) = (self.copied().versions.clone(), None);
        for file in records.list()? {
            let key = (file.job.clone(), file.path.clone());
            if gone.remove(&key).as_ref() == Some(&file.version) {
                continue;
            }
            match self.copy(records, &file) {
                Ok(()) => {
                    let mut copied = self.copied();
                    copied.jobs.insert(folder_name(&file.job), file.job);
                    copied.versions.insert(key, file.version);
                }
                Err(error) => problem = problem.or(Some(error)),
            }
            if self.copied().ended {
                return Ok(None);
            }
        }
        for key in gone.into_keys() {
            // Without it, the job has no status, or the attempt no record.
            let _ = fs::remove_file(self.path(&key.0, &key.1));
            self.copied().versions.remove(&key);
        }
        Ok(problem)
    }

    /// Replaces the copy of a file, or deletes it where there is nothing to copy.
    fn copy(&self, records: &AllRecords, file: &RecordFile) -> Result<(), CopyError> {
        let text = records.read(file)?;
        let path = self.path(&file.job, &file.path);
        // Held until the file is there: a directory that is being deleted gets none.
        let copied = self.copied();
        match text {
            Some(text) if !copied.ended => replace(&path, &text).map_err(|source| CopyError::Copy { path, source }),
            Some(_) => Ok(()),
            None => {
                let _ = fs::remove_file(path);
                Ok(())
            }
        }
    }

    /// Takes note of what [`Self::refresh`] has found.
    pub fn looked(&self, found: Result<Option<CopyError>, StorageError>) -> Result<(), StorageError> {
        let problem = match &found {
            Ok(problem) => problem.as_ref().map(ToString::to_string),
            Err(error) => Some(error.to_string()),
        };
        self.copied().problem = problem;
        found.map(|_| ())
    }
}

/// Name of the folder with the copies of a job: the path of the job may be longer than a name may be. Empty for the
/// storage itself.
pub fn folder_name(job: &str) -> String {
    if job.is_empty() {
        return String::new();
    }
    hashed(job)
}

/// Path of the copy of a file in the folder of its job. In a storage, the record of an attempt may have a name that
/// files cannot have here.
fn file_name(path: &str) -> PathBuf {
    let path = Path::new(path);
    match (path.parent(), path.file_stem().and_then(|name| name.to_str())) {
        (Some(attempts), Some(attempt)) if path.extension().is_some_and(|it| it == EXTENSION) => {
            attempts.join(hashed(attempt)).with_extension(EXTENSION)
        }
        _ => path.to_owned(),
    }
}

fn hashed(name: &str) -> String {
    Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Replaces a file while others read it.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_an_attempt_may_have_any_name() {
        let of = |attempt: &str| file_name(&format!(".pawl/_records/attempts/{attempt}.jsonl"));
        assert!(
            of(&"a".repeat(900)).file_name().unwrap().len() < 255 && of("a").starts_with(".pawl/_records/attempts")
        );
        assert_eq!(file_name(".pawl/_records/status.json"), Path::new(".pawl/_records/status.json"));
    }
}
