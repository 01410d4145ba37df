//! One job of a cluster.

use super::state::Name;
use super::watched::Watched;
use crate::args::Output;
use crate::commands::kubectl::error::ClusterError;
use crate::commands::kubectl::session::Session;
use crate::commands::kubectl::{evidence, pin, status, suspend};
use crate::commands::ui::action::Action;
use crate::commands::ui::recorded::Records;
use crate::commands::ui::source::{Gathered, JobError, Origin};
use jiff::Timestamp;
use pawl_api::TrainingJob;
use pawl_api::spec::{NO_STORAGE, Pin};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Time after a change of a status within which its events are in the cluster: the operator emits them afterwards.
const SETTLED: Duration = Duration::from_secs(10);

/// A job of a cluster, and not a later one of the same name. Its functions must be called where blocking is allowed.
pub struct ClusterJob {
    watched: Arc<Watched>,
    /// Where its records may be.
    storages: Arc<[Arc<dyn Records>]>,
    name: Name,
    uid: String,
}

impl ClusterJob {
    /// The job `job`, which `watched` has.
    pub fn new(watched: Arc<Watched>, storages: Arc<[Arc<dyn Records>]>, name: Name, job: &TrainingJob) -> Self {
        Self { watched, storages, name, uid: uid(job).to_owned() }
    }

    /// The job as it was last seen.
    fn current(&self) -> Result<Arc<TrainingJob>, JobError> {
        self.watched.job(&self.name).filter(|job| uid(job) == self.uid).ok_or(JobError::Gone)
    }
}

fn uid(job: &TrainingJob) -> &str {
    job.metadata.uid.as_deref().unwrap_or_default()
}

impl Origin for ClusterJob {
    fn revision(&self) -> Result<String, JobError> {
        let job = self.current()?;
        let mut hasher = DefaultHasher::new();
        (&self.uid, &job.metadata.resource_version).hash(&mut hasher);
        // After a change, the page is made once more.
        (self.watched.unchanged_for(&self.name) >= SETTLED).hash(&mut hasher);
        self.watched.awaited(&self.name).overdue(Timestamp::now()).hash(&mut hasher);
        for storage in &*self.storages {
            storage.version(location(&job), &self.uid).hash(&mut hasher);
        }
        Ok(format!("{:016x}", hasher.finish()))
    }

    fn gather(&self) -> Result<Gathered, JobError> {
        let job = TrainingJob::clone(&*self.current()?);
        let location = location(&job);
        let found = self.storages.iter().find_map(|storage| storage.recorded(location, &self.uid));
        let (records, happened) = found.unwrap_or_default();
        let mut notes = Vec::new();
        if records.is_empty() {
            notes.push(without_curves(&self.name.1, location));
        }
        let session = self.watched.session(&self.name);
        let events = Handle::current().block_on(evidence::events(&session, &job)).unwrap_or_else(|error| {
            notes.push(format!("There are no events here: {}", error.cause()));
            Vec::new()
        });
        notes.extend(status::note(&job));
        let evidence = evidence::joined(job, events, &records, happened);
        Ok(Gathered { evidence, notes, stopped: false, awaited: self.watched.awaited(&self.name) })
    }

    fn status(&self) -> Result<String, JobError> {
        Ok(status::text(&self.watched.session(&self.name), &*self.current()?, Output::Json))
    }

    fn has_operator(&self) -> bool {
        true
    }

    fn act(&self, uid: &str, action: &Action) -> Result<(), JobError> {
        let session = self.watched.session(&self.name);
        Handle::current().block_on(act(&session, &self.name.1, uid, action))
    }
}

/// Changes the job called `name`, if its unique identifier is `uid`, as `kubectl pawl` does.
async fn act(session: &Session, name: &str, uid: &str, action: &Action) -> Result<(), JobError> {
    let job = session.job(name).await?;
    if self::uid(&job) != uid {
        return Err(JobError::Gone);
    }
    changed(session, &job, action).await?;
    Ok(())
}

async fn changed(session: &Session, job: &TrainingJob, action: &Action) -> Result<bool, ClusterError> {
    match action {
        Action::Suspend => suspend::set(session, job, true).await,
        Action::Resume => suspend::set(session, job, false).await,
        Action::RollBack(None) => pin::set(session, job, &pin::all_phases(job), Some(Pin::RolledBack)).await,
        Action::RollBack(Some(phase)) => {
            pin::set(session, job, std::slice::from_ref(phase), Some(Pin::RolledBack)).await
        }
        Action::Pin(phase, to) => pin::set(session, job, std::slice::from_ref(phase), *to).await,
    }
}

/// Where storages have records of a job, as [`Found::recorded_at`] says.
///
/// [`Found::recorded_at`]: crate::commands::ui::source::Found::recorded_at
pub fn recorded_at(job: &TrainingJob) -> Vec<String> {
    let location = location(job).map(|location| location.trim_end_matches('/'));
    location.into_iter().chain([uid(job)]).filter(|place| !place.is_empty()).map(str::to_owned).collect()
}

/// The storage in which a job trains.
fn location(job: &TrainingJob) -> Option<&str> {
    let storage = job.status.as_ref()?.training.as_ref()?.storage.as_deref();
    storage.filter(|storage| *storage != NO_STORAGE)
}

/// Where the loss curves of the job called `name` are, which its status does not have.
fn without_curves(name: &str, location: Option<&str>) -> String {
    const MISSING: &str = "Loss curves, and what was measured with, are not in the status";
    match location {
        Some(storage) => format!(
            "{MISSING}, but in the records in {storage}: kubectl pawl fetch {name} --records copies them, and kubectl pawl \
             report {name} writes a page with them. For an object store, start pawl ui with the storage too."
        ),
        None => format!("{MISSING}, and this job has no storage with records."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_page_says_where_the_curves_are() {
        let of = |training: Value| {
            let job = json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"}},
                "status": {"training": training}});
            without_curves("toy", location(&serde_json::from_value(job).unwrap()))
        };
        assert!(of(json!({"storage": "s3://b/t/toy/u"})).contains("s3://b/t/toy/u: kubectl pawl fetch toy --records"));
        for none in [json!({"storage": NO_STORAGE}), json!({})] {
            assert!(of(none).contains("no storage"));
        }
    }
}
