//! The jobs whose records are in a storage. The records are copied, and read as those of a storage that is mounted.

use super::library::Library;
use super::source::{Catalog, Source};
use pawl_contract::record::Record;
use pawl_local::state::{StateDir, records};
use pawl_trainer::checkpoint::{AllRecords, RecordFile, StorageError};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Time between two looks at a storage.
const INTERVAL: Duration = Duration::from_secs(30);

/// Why records cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("the copies of records in {}: {source}: set TMPDIR to a directory that can be written", .path.display())]
    Copy { path: PathBuf, source: io::Error },
}

/// What was copied.
#[derive(Default)]
struct Copied {
    /// The versions of the files, by folder of the job and path there.
    versions: HashMap<(String, String), String>,
    /// The folders of jobs in the storage, by the names of those with their copies.
    jobs: HashMap<String, String>,
    /// Why the copies may be out of date.
    problem: Option<String>,
}

/// The jobs in a storage.
pub struct Storage {
    url: String,
    copies: TempDir,
    library: Library,
    copied: Mutex<Copied>,
}

impl Storage {
    /// Copies the records in the storage, and again whenever they have changed, until this is dropped.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn open(url: &str) -> Result<Arc<Self>, CopyError> {
        let records = AllRecords::open(url)?;
        let storage = Arc::new(Self::new(url)?);
        storage.refresh(&records)?;
        let watched = Arc::downgrade(&storage);
        // A storage blocks its thread.
        thread::spawn(move || {
            loop {
                thread::sleep(INTERVAL);
                let Some(storage) = watched.upgrade() else { return };
                let problem = storage.refresh(&records).err().map(|error| error.to_string());
                storage.copied().problem = problem;
            }
        });
        Ok(storage)
    }

    fn new(url: &str) -> Result<Self, CopyError> {
        let made = tempfile::Builder::new().prefix("pawl-ui-").tempdir();
        let copies = made.map_err(|source| CopyError::Copy { path: std::env::temp_dir(), source })?;
        let library = Library::new(vec![copies.path().to_owned()]);
        Ok(Self { url: url.trim_end_matches('/').to_owned(), copies, library, copied: Mutex::default() })
    }

    fn copied(&self) -> MutexGuard<'_, Copied> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the records of a job are copied to.
    fn folder(&self, job: &str) -> PathBuf {
        self.copies.path().join(folder_name(job))
    }

    /// Copies what has changed, and deletes what is gone.
    fn refresh(&self, records: &AllRecords) -> Result<(), CopyError> {
        let mut gone = self.copied().versions.clone();
        for file in records.list()? {
            let key = (file.job.clone(), file.path.clone());
            if gone.remove(&key).as_ref() != Some(&file.version) {
                self.copy(records, &file)?;
                let mut copied = self.copied();
                copied.jobs.insert(folder_name(&file.job), file.job);
                copied.versions.insert(key, file.version);
            }
        }
        for key in gone.into_keys() {
            // Without it, the job has no status, or the attempt no record.
            let _ = fs::remove_file(self.folder(&key.0).join(&key.1));
            self.copied().versions.remove(&key);
        }
        Ok(())
    }

    /// Replaces the copy of a file. One that was deleted in the meantime is gone at the next look.
    fn copy(&self, records: &AllRecords, file: &RecordFile) -> Result<(), CopyError> {
        let Some(text) = records.read(file)? else { return Ok(()) };
        let path = self.folder(&file.job).join(&file.path);
        replace(&path, &text).map_err(|source| CopyError::Copy { path, source })
    }

    /// What is said of where a job is, whose records are copied to `copy`.
    fn place(&self, copy: &Path) -> String {
        let copied = self.copied();
        let inside = copy.strip_prefix(self.copies.path()).ok().and_then(|inside| inside.iter().next()?.to_str());
        match inside.and_then(|name| copied.jobs.get(name)) {
            Some(job) => format!("{}/{job}", self.url),
            None => self.url.clone(),
        }
    }
}

impl Source for Storage {
    fn read(&self) -> Catalog {
        let mut catalog = self.library.read();
        for found in &mut catalog.jobs {
            found.listed.place = self.place(Path::new(&found.listed.place));
        }
        if let Some(problem) = &self.copied().problem {
            catalog.revision += "-out-of-date";
            catalog.problems.push(format!("{}: what is shown may be out of date: {problem}", self.url));
        }
        catalog
    }

    fn records(&self, location: &str, uid: &str) -> Vec<Record> {
        let below = location.trim_end_matches('/').strip_prefix(&self.url);
        let job = below.and_then(|path| if path.is_empty() { Some(path) } else { path.strip_prefix('/') });
        let Some(job) = job else { return Vec::new() };
        // What cannot be read is a problem of the list.
        let mut records = records::load(&StateDir::found_in(&self.folder(job))).unwrap_or_default();
        // An earlier job of the same name may have had the same storage.
        records.retain(|record| record.begun.uid.is_empty() || record.begun.uid == uid);
        records
    }

    fn elsewhere(&self) -> Option<String> {
        Some(self.url.clone())
    }
}

/// Name of the folder with the copies of a job: the path of the job may be longer than a name may be. Empty for the
/// storage itself.
fn folder_name(job: &str) -> String {
    if job.is_empty() {
        return String::new();
    }
    Sha256::digest(job).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Replaces a file while others read it.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
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
    use pawl_contract::record::{Begun, Entry, Text};
    use serde_json::json;

    fn write(root: &Path, job: &str, stage: &str) {
        let records = root.join(job).join(".pawl/_records");
        let manifest = json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
            "spec": {"workload": {"name": "ups"}}});
        let document = json!({"format": 1, "specHash": "", "job": manifest, "status": {"stage": stage}});
        fs::create_dir_all(&records).unwrap();
        replace(&records.join("status.json"), document.to_string().as_bytes()).unwrap();
    }

    #[test]
    fn jobs_of_a_storage_are_listed_changed_and_removed_with_their_records() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "team-a/toy/u-1", "Training");
        write(directory.path(), "team-b/toy/u-2", "Failed");
        let url = format!("file://{}", directory.path().display());
        let records = AllRecords::open(&url).unwrap();
        let storage = Storage::new(&format!("{url}/")).unwrap();
        storage.refresh(&records).unwrap();
        let listed = |catalog: Catalog| {
            let rows = catalog.jobs.iter().map(|it| (it.listed.place.clone(), it.listed.stage.to_string()));
            let mut rows: Vec<(String, String)> = rows.collect();
            rows.sort();
            rows
        };
        let place = |job: &str| format!("{url}/{job}");
        let row = |job: &str, stage: &str| (place(job), stage.to_owned());
        let first = storage.read();
        let revision = first.revision.clone();
        assert_eq!(listed(first), [row("team-a/toy/u-1", "Training"), row("team-b/toy/u-2", "Failed")]);

        write(directory.path(), "team-a/toy/u-1", "Complete");
        fs::remove_dir_all(directory.path().join("team-b")).unwrap();
        storage.refresh(&records).unwrap();
        let second = storage.read();
        assert_ne!(second.revision, revision);
        assert_eq!(listed(second), [row("team-a/toy/u-1", "Complete")]);
    }

    #[test]
    fn records_are_found_by_the_storage_of_their_job_and_its_identifier() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "team/toy/u-1", "Training");
        let mut text = Text::default();
        text.add(&Entry::Attempt(Box::new(Begun { uid: "u-1".to_owned(), ..Begun::new("toy", "toy-1") })));
        let attempts = directory.path().join("team/toy/u-1/.pawl/_records/attempts");
        fs::create_dir_all(&attempts).unwrap();
        fs::write(attempts.join("toy-1.jsonl"), text.as_bytes()).unwrap();
        let url = format!("file://{}", directory.path().display());
        let storage = Storage::open(&url).unwrap();
        let found = |location: &str, uid: &str| storage.records(location, uid).len();
        assert_eq!(found(&format!("{url}/team/toy/u-1"), "u-1"), 1);
        assert_eq!(found(&format!("{url}/team/toy/u-1"), "u-2"), 0, "another job");
        assert_eq!(found(&format!("{url}/team/toy/u-3"), "u-1") + found(&format!("{url}-b/team/toy/u-1"), "u-1"), 0);
    }

    #[test]
    fn the_storage_of_one_job_is_that_job() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "", "Complete");
        let storage = Storage::open(&format!("file://{}", directory.path().display())).unwrap();
        let catalog = storage.read();
        assert_eq!((catalog.jobs.len(), catalog.jobs[0].listed.place.as_str()), (1, storage.url.as_str()));
    }

    #[test]
    fn a_storage_that_is_away_is_a_problem_beside_its_jobs() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "toy", "Complete");
        let storage = Storage::open(&format!("file://{}", directory.path().display())).unwrap();
        let before = storage.read().revision;
        storage.copied().problem = Some("no route to host".to_owned());
        let catalog = storage.read();
        assert!(catalog.jobs.len() == 1 && catalog.problems[0].contains("no route to host"));
        assert_ne!(catalog.revision, before);
    }
}
