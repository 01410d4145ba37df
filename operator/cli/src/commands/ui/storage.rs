//! The jobs whose records are in a storage. The records are copied, and read as those of a storage that is mounted.

use super::copies::{Copies, CopyError};
use super::library::Library;
use super::source::{Catalog, Source};
use pawl_trainer::checkpoint::{AllRecords, StorageError};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Time between two looks at a storage.
const INTERVAL: Duration = Duration::from_secs(30);

/// What the first look at a storage has found.
pub type FirstLook = oneshot::Receiver<Result<(), StorageError>>;

/// The jobs in a storage.
pub struct Storage {
    pub(super) url: String,
    pub(super) copies: Arc<Copies>,
    library: Library,
    /// Deletes the copies when it is dropped.
    _directory: TempDir,
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.copies.copied().ended = true;
    }
}

impl Storage {
    /// Copies the records in the storage in a thread, and again whenever they have changed, until this is dropped.
    /// What is returned besides is sent when they were copied first, or the storage cannot be listed.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn open(url: &str) -> Result<(Arc<Self>, FirstLook), CopyError> {
        let records = AllRecords::open(url)?;
        let storage = Arc::new(Self::new(url)?);
        let watched = Arc::downgrade(&storage.copies);
        let (tell, first) = oneshot::channel();
        // A storage blocks its thread.
        thread::spawn(move || {
            let look = || watched.upgrade().map(|copies| copies.looked(copies.refresh(&records)));
            if let Some(looked) = look() {
                // Nobody waits for it after Ctrl-C.
                let _ = tell.send(looked);
            }
            loop {
                thread::sleep(INTERVAL);
                if look().is_none() {
                    return;
                }
            }
        });
        Ok((storage, first))
    }

    fn new(url: &str) -> Result<Self, CopyError> {
        let made = tempfile::Builder::new().prefix("pawl-ui-").tempdir();
        let directory = made.map_err(|source| CopyError::Copy { path: std::env::temp_dir(), source })?;
        let library = Library::new(vec![directory.path().to_owned()]);
        let copies = Arc::new(Copies::new(directory.path().to_owned()));
        Ok(Self { url: url.trim_end_matches('/').to_owned(), copies, library, _directory: directory })
    }

    /// What is said of where a job is, whose records are copied to `copy`.
    fn place(&self, copy: &Path) -> String {
        let copied = self.copies.copied();
        let inside = copy.strip_prefix(&self.copies.directory).ok().and_then(|inside| inside.iter().next()?.to_str());
        match inside.and_then(|name| copied.jobs.get(name)) {
            Some(job) => format!("{}/{job}", self.url),
            None => self.url.clone(),
        }
    }

    /// The revision of the jobs, where that of their copies is `copies`.
    fn revised(&self, copies: String) -> String {
        match self.copies.copied().problem {
            Some(_) => copies + "-out-of-date",
            None => copies,
        }
    }
}

impl Source for Storage {
    fn read(&self) -> Catalog {
        let mut catalog = self.library.read();
        for found in &mut catalog.jobs {
            found.listed.place = self.place(Path::new(&found.listed.place));
        }
        catalog.revision = self.revised(catalog.revision);
        if let Some(problem) = &self.copies.copied().problem {
            catalog.problems.push(format!("{}: what is shown may be out of date: {problem}", self.url));
        }
        catalog
    }

    fn revision(&self) -> String {
        self.revised(self.library.revision())
    }

    fn elsewhere(&self) -> Option<String> {
        Some(self.url.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::copies::replace;
    use super::*;
    use serde_json::json;
    use std::fs;

    fn write(root: &Path, job: &str, stage: &str) {
        let records = root.join(job).join(".pawl/_records");
        let manifest = json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
            "spec": {"workload": {"name": "ups"}}});
        let document = json!({"format": 1, "specHash": "", "job": manifest, "status": {"stage": stage}});
        fs::create_dir_all(&records).unwrap();
        replace(&records.join("status.json"), document.to_string().as_bytes()).unwrap();
    }

    fn opened(url: &str) -> Arc<Storage> {
        let (storage, first) = Storage::open(url).unwrap();
        first.blocking_recv().unwrap().unwrap();
        storage
    }

    #[test]
    fn jobs_of_a_storage_are_listed_changed_and_removed_with_their_records() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "team-a/toy/u-1", "Training");
        write(directory.path(), "team-b/toy/u-2", "Failed");
        let url = format!("file://{}", directory.path().display());
        let records = AllRecords::open(&url).unwrap();
        let storage = Storage::new(&format!("{url}/")).unwrap();
        storage.copies.refresh(&records).unwrap();
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
        storage.copies.refresh(&records).unwrap();
        let second = storage.read();
        assert_ne!(second.revision, revision);
        assert_eq!(listed(second), [row("team-a/toy/u-1", "Complete")]);
    }

    #[test]
    fn the_storage_of_one_job_is_that_job() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "", "Complete");
        let storage = opened(&format!("file://{}", directory.path().display()));
        let catalog = storage.read();
        assert_eq!((catalog.jobs.len(), catalog.jobs[0].listed.place.as_str()), (1, storage.url.as_str()));
    }

    #[test]
    fn a_storage_that_is_away_is_a_problem_beside_its_jobs() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "toy", "Complete");
        let storage = opened(&format!("file://{}", directory.path().display()));
        let before = storage.read().revision;
        storage.copies.copied().problem = Some("no route to host".to_owned());
        let catalog = storage.read();
        assert!(catalog.jobs.len() == 1 && catalog.problems[0].contains("no route to host"));
        assert_ne!(catalog.revision, before);
        assert_eq!(catalog.revision, storage.revision());
    }

    #[test]
    fn a_file_that_cannot_be_copied_hides_no_other_job() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "one", "Complete");
        write(directory.path(), "other", "Complete");
        let url = format!("file://{}", directory.path().display());
        let storage = Storage::new(&url).unwrap();
        // Where the copy of one job should be is a file.
        fs::write(storage.copies.folder("one"), "").unwrap();
        let problem = storage.copies.refresh(&AllRecords::open(&url).unwrap()).unwrap();
        assert!(matches!(problem, Some(CopyError::Copy { .. })));
        let catalog = storage.read();
        assert_eq!(catalog.jobs.iter().map(|found| found.listed.place.clone()).collect::<Vec<_>>(), [url + "/other"]);
    }

    #[test]
    fn no_copies_are_left_even_while_it_copies() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "one", "Complete");
        let url = format!("file://{}", directory.path().display());
        let storage = Storage::new(&url).unwrap();
        let copies = Arc::clone(&storage.copies);
        drop(storage);
        copies.refresh(&AllRecords::open(&url).unwrap()).unwrap();
        assert!(!copies.directory.exists());
    }
}
