//! What directories and storages have recorded of the jobs of a cluster.

use super::copies::folder_name;
use super::library::Library;
use super::place::Place;
use super::stamps::Stamps;
use super::storage::Storage;
use pawl_contract::record::{FOLDER, Record};
use pawl_display::event::EventRecord;
use pawl_local::state::{StateDir, records};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

/// The records of a job, and what these say happened, oldest first.
pub type Recorded = (Vec<Record>, Vec<EventRecord>);

/// A place with records of jobs of a cluster. They are named by the storage in which they train, where that is known,
/// and by their unique identifier.
pub trait Records: Send + Sync {
    /// What is recorded of the job; `None` when it is not here.
    fn recorded(&self, location: Option<&str>, uid: &str) -> Option<Recorded>;

    /// Changes when what [`Self::recorded`] returns does.
    fn version(&self, location: Option<&str>, uid: &str) -> u64;
}

/// The records at a place.
pub fn records_at(place: &Place) -> Arc<dyn Records> {
    match place {
        Place::Directories(library) => library.clone(),
        Place::Storage(storage) => storage.clone(),
    }
}

impl Records for Library {
    fn recorded(&self, _: Option<&str>, uid: &str) -> Option<Recorded> {
        Some(of(&state(self, uid)?, uid))
    }

    fn version(&self, _: Option<&str>, uid: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        state(self, uid).and_then(|state| Stamps::of(&state)).hash(&mut hasher);
        hasher.finish()
    }
}

/// The state directory of a job: its storage's path ends in the unique identifier.
fn state(library: &Library, uid: &str) -> Option<StateDir> {
    let known = library.known();
    let below = Path::new(uid).join(FOLDER);
    let records = known.keys().find(|root| !uid.is_empty() && root.ends_with(&below))?;
    Some(StateDir::found_in(records.parent()?.parent()?))
}

impl Records for Storage {
    fn recorded(&self, location: Option<&str>, uid: &str) -> Option<Recorded> {
        Some(of(&StateDir::found_in(&self.copies.folder(&folder(self, location, uid)?)), uid))
    }

    fn version(&self, location: Option<&str>, uid: &str) -> u64 {
        let Some(job) = folder(self, location, uid) else { return 0 };
        let copied = self.copies.copied();
        let mut files: Vec<_> = copied.versions.iter().filter(|((of, _), _)| *of == job).collect();
        files.sort();
        let mut hasher = DefaultHasher::new();
        files.hash(&mut hasher);
        hasher.finish()
    }
}

/// The folder of the job whose storage is at `location`, or whose unique identifier is `uid`: a storage may be mounted
/// here under another name.
fn folder(storage: &Storage, location: Option<&str>, uid: &str) -> Option<String> {
    let below = location.and_then(|location| location.trim_end_matches('/').strip_prefix(&storage.url));
    let here = below.and_then(|path| if path.is_empty() { Some(path) } else { path.strip_prefix('/') });
    let copied = storage.copies.copied();
    if let Some(job) = here {
        return copied.jobs.get(&folder_name(job)).cloned();
    }
    copied.jobs.values().find(|job| !uid.is_empty() && job.rsplit('/').next() == Some(uid)).cloned()
}

/// What `state` has of the job whose unique identifier is `uid`: an earlier job of the same name may have had the same
/// storage. What cannot be read is a problem of the list.
fn of(state: &StateDir, uid: &str) -> Recorded {
    let mut own = records::load(state).unwrap_or_default();
    own.retain(|record| record.begun.uid.is_empty() || record.begun.uid == uid);
    let happened = records::happened(state, &own);
    (own, happened)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::record::{Begun, Entry, Text};
    use pawl_trainer::checkpoint::AllRecords;
    use std::fs;

    #[test]
    fn records_are_found_by_the_storage_of_their_job_and_its_identifier() {
        let directory = tempfile::tempdir().unwrap();
        let mut text = Text::default();
        text.add(&Entry::Attempt(Box::new(Begun { uid: "u-1".to_owned(), ..Begun::new("toy", "toy-1") })));
        let attempts = directory.path().join("team/toy/u-1/.pawl/_records/attempts");
        fs::create_dir_all(&attempts).unwrap();
        fs::write(attempts.join("toy-1.jsonl"), text.as_bytes()).unwrap();
        let url = format!("file://{}", directory.path().display());
        let (storage, first) = Storage::open(&url).unwrap();
        first.blocking_recv().unwrap().unwrap();
        let found =
            |location: &str, uid: &str| storage.recorded(Some(location), uid).map_or(0, |(records, _)| records.len());
        assert_eq!(found(&format!("{url}/team/toy/u-1"), "u-1"), 1);
        assert_eq!(found(&format!("{url}/team/toy/u-1"), "u-2"), 0, "another job");
        assert_eq!(found(&format!("{url}/team/toy/u-3"), "u-1") + found(&format!("{url}-b/team/toy/u-1"), "u-3"), 0);
        assert_eq!(found("pvc://models/team/toy/u-1", "u-1"), 1, "mounted here");
        let before = storage.version(None, "u-1");
        fs::write(attempts.join("toy-2.jsonl"), text.as_bytes()).unwrap();
        storage.copies.refresh(&AllRecords::open(&url).unwrap()).unwrap();
        assert_ne!(storage.version(None, "u-1"), before, "an open page is made again");
    }
}
