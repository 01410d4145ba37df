//! The jobs of some directories. A status is read again only when its file has changed.

use super::local::LocalJob;
use super::source::{Catalog, Found, Source};
use super::stamps::Stamps;
use crate::commands::source::{has_stopped, states};
use jiff::Timestamp;
use pawl_display::jobs::Entry;
use pawl_display::ui::list::Looked;
use pawl_display::ui::listed::{Listed, distinguish};
use pawl_local::state::document::Document;
use pawl_local::state::{DEFAULT_ROOT, StateDir, StateError, records};
use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A status as it was read last.
pub(super) struct Known {
    stamps: Stamps,
    job: Result<Listed, String>,
}

/// What a look at the directories has found.
struct Look {
    states: Vec<StateDir>,
    problems: Vec<String>,
    revision: String,
}

/// The jobs whose state is in these directories.
pub struct Library {
    directories: Vec<PathBuf>,
    known: Mutex<HashMap<PathBuf, Known>>,
}

impl Library {
    /// Of these directories, each of which is a directory of state directories or one itself.
    pub fn new(directories: Vec<PathBuf>) -> Self {
        Self { directories, known: Mutex::default() }
    }

    /// All state directories, in a fixed order.
    fn states(&self, problems: &mut Vec<String>) -> Vec<StateDir> {
        let mut found = Vec::new();
        for directory in &self.directories {
            let state = StateDir::found_in(directory);
            if state.status().exists() {
                found.push(state);
                continue;
            }
            match states(directory) {
                Ok(_) if !directory.is_dir() && directory != Path::new(DEFAULT_ROOT) => {
                    problems.push(format!("{}: no such directory", directory.display()));
                }
                Ok(states) => found.extend(states),
                Err(error) => problems.push(format!("{}: {error}", directory.display())),
            }
        }
        found.sort_by(|a, b| a.root().cmp(b.root()));
        found
    }

    /// The jobs that were found last, by state directory.
    pub(super) fn known(&self) -> MutexGuard<'_, HashMap<PathBuf, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads again what has changed. A job that has become silent by `now` is another revision.
    fn look(&self, known: &mut HashMap<PathBuf, Known>, now: Timestamp) -> Look {
        let mut newest: HashMap<PathBuf, Known> = HashMap::new();
        let (mut states, mut problems) = (Vec::new(), Vec::new());
        let mut hasher = DefaultHasher::new();
        for state in self.states(&mut problems) {
            let root = state.root().to_owned();
            // A directory that is named twice has its jobs once.
            let Some(stamps) = Stamps::of(&state).filter(|_| !newest.contains_key(&root)) else { continue };
            let old = known.remove(&root).filter(|known| known.stamps == stamps).map(|known| known.job);
            let Some(job) = old.or_else(|| read(&state, stamps.changed())) else { continue };
            let is_silent = job.as_ref().is_ok_and(|listed| listed.awaited.silent_since(now).is_some());
            (&root, stamps, is_silent).hash(&mut hasher);
            problems.extend(job.as_ref().err().cloned());
            newest.insert(root, Known { stamps, job });
            states.push(state);
        }
        *known = newest;
        problems.hash(&mut hasher);
        Look { states, problems, revision: format!("{:016x}", hasher.finish()) }
    }
}

impl Source for Library {
    fn read(&self) -> Catalog {
        let mut known = self.known();
        let Look { states, problems, revision } = self.look(&mut known, Timestamp::now());
        let listed = states.into_iter().filter_map(|state| {
            let Known { stamps, job } = known.get(state.root())?;
            let listed = job.as_ref().ok()?.clone();
            let origin = Arc::new(LocalJob::new(state, *stamps, listed.awaited));
            Some(Found { listed, origin, recorded_at: Vec::new() })
        });
        let mut jobs: Vec<Found> = listed.collect();
        distinguish(jobs.iter_mut().map(|found| &mut found.listed));
        Catalog { jobs, problems, revision }
    }

    fn revision(&self) -> String {
        self.look(&mut self.known(), Timestamp::now()).revision
    }

    fn looked(&self) -> Looked {
        let place = |directory: &PathBuf| {
            std::path::absolute(directory).unwrap_or_else(|_| directory.clone()).display().to_string()
        };
        let places = self.directories.iter().map(place).collect();
        let instead = self.directories.iter().flat_map(|directory| below(directory)).take(NAMED);
        Looked { places, instead: instead.map(|directory| directory.display().to_string()).collect() }
    }
}

/// Directories that are named where there are no jobs, and entries of a directory among which these are looked for.
const NAMED: usize = 8;
const LOOKED_AT: usize = 1000;

/// The default directories of jobs in `directory`, and in the directories in it, in order.
fn below(directory: &Path) -> Vec<PathBuf> {
    let inside = fs::read_dir(directory).into_iter().flatten().flatten().take(LOOKED_AT).map(|entry| entry.path());
    let usual = |path: PathBuf| path.join(DEFAULT_ROOT);
    let mut found: Vec<PathBuf> =
        inside.chain([directory.to_owned()]).map(usual).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

/// The job in `state`; `None` when it was deleted in the meantime.
fn read(state: &StateDir, changed: Option<Timestamp>) -> Option<Result<Listed, String>> {
    let place = state.root().display().to_string();
    match records::document(state) {
        Ok(Document { job, status, .. }) => {
            let stopped = has_stopped(state, status.stage);
            let entry = Entry { job: &job, status: &status, place: &place, measured_with: &[], stopped };
            let listed = if state.storage().is_some() { Listed::recorded } else { Listed::new };
            Some(Ok(listed(entry, changed)))
        }
        Err(StateError::Absent { .. }) => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;
    use serde_json::json;
    use std::io;

    fn write(root: &Path, name: &str, stage: &str) -> io::Result<()> {
        let job = json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
            "spec": {"workload": {"name": "ups"}}});
        let document = json!({"format": 1, "specHash": "", "job": job, "status": {"stage": stage}});
        fs::create_dir_all(root)?;
        fs::write(root.join("new"), document.to_string())?;
        fs::rename(root.join("new"), root.join("status.json"))
    }

    #[test]
    fn only_what_has_changed_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("a/one"), directory.path().join("b/one"));
        write(&one, "one", "Training").unwrap();
        write(&two, "one", "Failed").unwrap();
        let library = Library::new(vec![directory.path().join("a"), two.clone(), two.clone()]);
        let first = library.read();
        let keys: Vec<&str> = first.jobs.iter().map(|found| found.listed.key.as_str()).collect();
        assert_eq!(keys, [format!("one@{}", one.display()), format!("one@{}", two.display())]);
        assert_eq!(library.read().revision, first.revision);

        write(&one, "one", "Complete").unwrap();
        let changed = library.read();
        assert_ne!(changed.revision, first.revision);
        assert_eq!(changed.jobs[0].listed.stage.to_string(), "Complete");

        // A file with the stamp that is known is not opened.
        library.known.lock().unwrap().get_mut(&two).unwrap().job = Err("not read again".to_owned());
        assert_eq!(library.read().problems, ["not read again"]);
    }

    #[test]
    fn a_job_that_becomes_silent_is_another_revision_once() {
        let directory = tempfile::tempdir().unwrap();
        let (training, recorded) = (directory.path().join("one"), directory.path().join("two/.pawl/_records"));
        write(&training, "one", "Training").unwrap();
        let at = |now: Timestamp| {
            let library = Library::new(vec![directory.path().to_owned()]);
            let mut known = HashMap::new();
            library.look(&mut known, now).revision
        };
        let now = Timestamp::now();
        let later = |minutes: i64| now + SignedDuration::from_mins(minutes);
        assert_eq!(at(later(59)), at(now));
        assert_ne!(at(later(61)), at(now), "a page that is open is made again");
        assert_eq!(at(later(600)), at(later(61)));
        fs::remove_dir_all(&training).unwrap();
        write(&recorded, "two", "Training").unwrap();
        assert_eq!(at(later(600)), at(now), "what a storage has is written at the beginning and at the end");
    }

    #[test]
    fn a_storage_is_read_again_when_an_attempt_has_recorded_something() {
        let directory = tempfile::tempdir().unwrap();
        let records = directory.path().join("one/.pawl/_records");
        write(&records, "one", "Training").unwrap();
        fs::create_dir(records.join("attempts")).unwrap();
        for directories in [directory.path().to_owned(), directory.path().join("one")] {
            let library = Library::new(vec![directories]);
            let first = library.read();
            assert_eq!(first.jobs[0].listed.key, "one", "{:?}", first.problems);
            let of_job = first.jobs[0].origin.revision().unwrap();
            fs::write(records.join("attempts/one-1.jsonl"), "torn").unwrap();
            assert_ne!(library.read().revision, first.revision);
            assert_ne!(first.jobs[0].origin.revision().unwrap(), of_job);
            fs::remove_file(records.join("attempts/one-1.jsonl")).unwrap();
        }
    }

    #[test]
    fn places_without_jobs_are_named_and_those_below_that_have_some() {
        let directory = tempfile::tempdir().unwrap();
        let (parent, missing) = (directory.path().to_owned(), directory.path().join("none"));
        write(&parent.join("a/.pawl/toy"), "toy", "Complete").unwrap();
        fs::create_dir(parent.join("b")).unwrap();
        let library = Library::new(vec![parent.clone(), missing.clone()]);
        let found = library.read();
        assert!(found.jobs.is_empty());
        assert_eq!(found.problems, [format!("{}: no such directory", missing.display())]);
        let looked = library.looked();
        assert_eq!(looked.places, [parent.display().to_string(), missing.display().to_string()]);
        assert_eq!(looked.instead, [parent.join("a/.pawl").display().to_string()]);
        let found = Library::new(vec![missing, parent.join("a/.pawl")]).read();
        assert_eq!((found.jobs.len(), found.problems.len()), (1, 1), "one that is missing hides no other one");
    }

    #[test]
    fn a_job_that_cannot_be_read_hides_no_other_one() {
        let directory = tempfile::tempdir().unwrap();
        write(&directory.path().join("good"), "good", "Complete").unwrap();
        write(&directory.path().join("bad"), "bad", "Complete").unwrap();
        fs::write(directory.path().join("bad/status.json"), "{").unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        let catalog = Library::new(vec![directory.path().to_owned()]).read();
        assert!(catalog.find("good").is_some() && catalog.find("bad").is_none() && catalog.find("../good").is_none());
        let problems = &catalog.problems;
        assert!(problems.len() == 1 && problems[0].contains("bad/status.json"), "{problems:?}");
    }
}
