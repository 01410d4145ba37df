//! One job of a directory or a storage.

use super::source::{Gathered, JobError, Origin};
use super::stamps::{Stamp, Stamps};
use crate::commands::document;
use crate::commands::source::has_stopped;
use crate::commands::status::JobResult;
use jiff::Timestamp;
use pawl_api::TrainingJobStatus;
use pawl_display::ui::awaited::Awaited;
use pawl_local::evidence::gather;
use pawl_local::state::{StateDir, StateError, records};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

/// The job in a state directory.
pub struct LocalJob {
    state: StateDir,
    /// What is awaited of the job whose files have these stamps: its status is read again only when they change.
    awaited: Mutex<(Stamps, Awaited)>,
}

impl LocalJob {
    /// The job in `state`, of which `awaited` was read when its files had these stamps.
    pub fn new(state: StateDir, stamps: Stamps, awaited: Awaited) -> Self {
        Self { state, awaited: Mutex::new((stamps, awaited)) }
    }

    /// What is awaited of the job, whose files have these stamps now.
    fn awaited(&self, stamps: Stamps) -> Awaited {
        let mut known = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != stamps {
            // The page says what is wrong with a status that cannot be read.
            let read = records::document(&self.state);
            let awaited = read.map_or_else(|_| Awaited::default(), |read| self.awaited_by(&read.status, Some(stamps)));
            *known = (stamps, awaited);
        }
        known.1
    }

    /// What is awaited of the job with this status, whose files have these stamps.
    fn awaited_by(&self, status: &TrainingJobStatus, stamps: Option<Stamps>) -> Awaited {
        // A storage has the status of the beginning and of the end.
        let written = stamps.filter(|_| self.state.storage().is_none()).and_then(|stamps| stamps.changed());
        Awaited::new(status, has_stopped(&self.state, status.stage), written)
    }

    /// Changes when the files of the job do that its page shows, or something is overdue at `now`.
    fn revision_at(&self, now: Timestamp) -> Result<String, StateError> {
        let absent = || StateError::Absent { path: self.state.status() };
        let stamps = Stamps::of(&self.state).ok_or_else(absent)?;
        let mut hasher = DefaultHasher::new();
        (stamps, Stamp::of(&self.state.events()), self.awaited(stamps).overdue(now)).hash(&mut hasher);
        Ok(format!("{:016x}", hasher.finish()))
    }
}

impl Origin for LocalJob {
    fn revision(&self) -> Result<String, JobError> {
        Ok(self.revision_at(Timestamp::now())?)
    }

    fn gather(&self) -> Result<Gathered, JobError> {
        let evidence = gather(&self.state)?;
        let stopped = has_stopped(&self.state, evidence.status.stage);
        let awaited = self.awaited_by(&evidence.status, Stamps::of(&self.state));
        Ok(Gathered { evidence, notes: Vec::new(), stopped, awaited })
    }

    fn status(&self) -> Result<String, JobError> {
        let recorded = records::document(&self.state)?;
        Ok(document(&JobResult::new(&self.state, &recorded), false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;
    use serde_json::json;
    use std::fs;
    use std::path::Path;

    /// Writes the status of a training that ends at `eta`.
    fn write(root: &Path, eta: Timestamp) {
        let job = json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
            "spec": {"workload": {"name": "ups"}}});
        let status = json!({"stage": "Training", "training": {"eta": eta.to_string()}});
        let document = json!({"format": 1, "specHash": "", "job": job, "status": status});
        fs::create_dir_all(root).unwrap();
        fs::write(root.join("new"), document.to_string()).unwrap();
        fs::rename(root.join("new"), root.join("status.json")).unwrap();
    }

    fn of(state: StateDir) -> LocalJob {
        let stamps = Stamps::of(&state).unwrap();
        let status = records::document(&state).unwrap().status;
        let job = LocalJob::new(state, stamps, Awaited::default());
        let awaited = job.awaited_by(&status, Some(stamps));
        LocalJob::new(job.state, stamps, awaited)
    }

    #[test]
    fn what_is_overdue_is_another_revision_once() {
        let directory = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let later = |minutes: i64| now + SignedDuration::from_mins(minutes);
        let root = directory.path().join("toy");
        write(&root, later(30));
        let job = of(StateDir::found_in(&root));
        let at = |minutes: i64| job.revision_at(later(minutes)).unwrap();
        assert_eq!(at(29), at(0));
        assert_ne!(at(31), at(29), "its end has passed");
        assert_eq!(at(59), at(31));
        assert_ne!(at(61), at(59), "it is silent");
        assert_eq!(at(600), at(61));
        write(&root, later(300));
        assert_ne!(at(299), at(301), "the end that was written since counts");
    }

    #[test]
    fn a_job_in_a_storage_is_never_silent() {
        let directory = tempfile::tempdir().unwrap();
        let (now, day) = (Timestamp::now(), SignedDuration::from_hours(24));
        write(&directory.path().join(".pawl/_records"), now - day);
        let job = of(StateDir::found_in(directory.path()));
        assert_eq!(job.revision_at(now + day).unwrap(), job.revision_at(now).unwrap());
        assert_eq!(job.gather().unwrap().awaited.silent_since(now + day), None);
    }
}
