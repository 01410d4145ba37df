//! What a watch has said about jobs.

use crate::commands::kubectl::error::ClusterError;
use jiff::Timestamp;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_controller::reading::Guarded;
use pawl_display::jobs::Entry;
use pawl_display::ui::listed::Listed;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time until a watch that failed is started again.
const AGAIN: Duration = Duration::from_secs(5);
/// The same after a refusal, which lasts until somebody changes a role.
const AGAIN_REFUSED: Duration = Duration::from_secs(60);

/// Namespace and name of a job.
pub type Name = (String, String);

/// A job as it was read.
pub enum Read {
    Job {
        job: Arc<TrainingJob>,
        listed: Box<Listed>,
        /// When it came.
        seen: Instant,
    },
    /// Why it cannot be read.
    Unreadable(String),
}

/// What the API server has said.
#[derive(Default)]
pub struct State {
    pub jobs: BTreeMap<Name, Read>,
    /// Those of a list that is not complete yet.
    arriving: BTreeMap<Name, Read>,
    /// Why there are none, or why they may be out of date.
    pub problem: Option<ClusterError>,
    /// Counts the changes.
    changes: u64,
}

impl State {
    /// Takes an event. Returns whether that changes what is known: not before the end of a list.
    pub fn apply(&mut self, event: Event<Guarded>) -> bool {
        let known = !matches!(event, Event::Init | Event::InitApply(_));
        match event {
            Event::Init => self.arriving.clear(),
            Event::InitApply(object) => self.arriving.extend([read(object)]),
            Event::InitDone => {
                self.jobs = std::mem::take(&mut self.arriving);
                self.problem = None;
            }
            Event::Apply(object) => self.jobs.extend([read(object)]),
            Event::Delete(object) => {
                self.jobs.remove(&name(&object));
            }
        }
        self.changes += u64::from(known);
        known
    }

    /// Changes with what is known, and when a job has become silent by `now`.
    pub fn revision(&self, now: Timestamp) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.changes.hash(&mut hasher);
        for (name, read) in &self.jobs {
            let is_silent = match read {
                Read::Job { listed, .. } => listed.awaited.silent_since(now).is_some(),
                Read::Unreadable(_) => false,
            };
            if is_silent {
                name.hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// Takes a failure of the watch. What a user may no longer see is forgotten. Returns when to try again.
    pub fn failed(&mut self, error: ClusterError, when_listing: bool) -> Duration {
        let refused = is_refusal(&error) || is_unauthenticated(&error);
        if refused {
            self.jobs.clear();
        } else if !when_listing {
            // Such as a watch that has expired: a new list says whether something is wrong.
            return AGAIN;
        }
        self.problem = Some(error);
        self.changes += 1;
        if refused { AGAIN_REFUSED } else { AGAIN }
    }
}

/// Whether the user may not list the jobs.
pub const fn is_refusal(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Forbidden { .. })
}

/// Whether the API server does not know the user.
pub const fn is_unauthenticated(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Configuration(_))
}

fn name(object: &Guarded) -> Name {
    (object.meta().namespace.clone().unwrap_or_default(), object.name_any())
}

fn read(object: Guarded) -> (Name, Read) {
    let name = name(&object);
    let read = match object.0 {
        Ok(read) => {
            let mut job = read.job;
            // Who wrote which field is large, and shown nowhere.
            let managed = job.metadata.managed_fields.take().unwrap_or_default();
            let changed: Option<Timestamp> = managed.iter().filter_map(|entry| Some(entry.time.as_ref()?.0)).max();
            let unseen = TrainingJobStatus::default();
            let status = job.status.as_ref().unwrap_or(&unseen);
            let entry = Entry { job: &job, status, place: &name.0, measured_with: &[], stopped: false };
            let listed = Box::new(Listed::new(entry, changed));
            Read::Job { job: Arc::new(job), listed, seen: Instant::now() }
        }
        Err(unreadable) => Read::Unreadable(format!("TrainingJob {}/{}: {}", name.0, name.1, unreadable.problem)),
    };
    (name, read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::kubectl::session::JOBS;
    use serde_json::json;

    fn job(name: &str, stage: &str) -> Guarded {
        let time = "2026-01-05T10:04:00Z";
        let job = json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1",
                "managedFields": [{"manager": "pawl", "operation": "Apply", "time": time}]},
            "spec": {"workload": {"name": "ups"}}, "status": {"stage": stage}});
        serde_json::from_value(job).unwrap()
    }

    fn names(state: &State) -> Vec<&str> {
        state.jobs.keys().map(|(_, name)| name.as_str()).collect()
    }

    fn listed(all: &[&str]) -> State {
        let mut state = State::default();
        assert!(!state.apply(Event::Init));
        for name in all {
            assert!(!state.apply(Event::InitApply(job(name, "Training"))), "the list is not complete");
        }
        assert!(state.apply(Event::InitDone));
        state
    }

    fn forbidden() -> ClusterError {
        let (message, namespace) = ("no".to_owned(), "team".to_owned());
        ClusterError::Forbidden { verb: "list", resource: JOBS, namespace, message }
    }

    #[test]
    fn a_new_list_replaces_the_old_one_at_its_end() {
        let mut state = listed(&["one", "two"]);
        assert_eq!(names(&state), ["one", "two"]);
        state.apply(Event::Init);
        state.apply(Event::InitApply(job("two", "Complete")));
        assert_eq!(names(&state), ["one", "two"]);
        state.apply(Event::InitDone);
        assert_eq!(names(&state), ["two"]);
        state.apply(Event::Apply(job("three", "Pending")));
        state.apply(Event::Delete(job("two", "Complete")));
        assert_eq!(names(&state), ["three"]);
    }

    #[test]
    fn each_change_is_another_revision() {
        let mut state = listed(&["one"]);
        // When the job was written, which is not silent yet.
        let now = "2026-01-05T10:04:00Z".parse().unwrap();
        let before = state.revision(now);
        state.apply(Event::Apply(job("one", "Complete")));
        assert_ne!(state.revision(now), before);
    }

    #[test]
    fn a_job_that_becomes_silent_is_another_revision_once() {
        let state = listed(&["one"]);
        let at = |now: &str| state.revision(now.parse().unwrap());
        let before = at("2026-01-05T10:05:00Z");
        assert_eq!(at("2026-01-05T11:04:00Z"), before);
        let silent = at("2026-01-05T11:04:01Z");
        assert_ne!(silent, before, "a page that is open is made again");
        assert_eq!(at("2026-01-06T00:00:00Z"), silent);
    }

    #[test]
    fn what_a_user_may_no_longer_see_is_forgotten() {
        let mut state = listed(&["one"]);
        assert_eq!(state.failed(forbidden(), false), AGAIN_REFUSED);
        assert!(state.jobs.is_empty() && state.problem.as_ref().is_some_and(is_refusal));
        let mut state = listed(&["one"]);
        state.failed(ClusterError::Configuration("Unauthorized".to_owned()), false);
        assert!(state.jobs.is_empty());
    }

    #[test]
    fn an_api_server_that_is_away_takes_no_jobs_away() {
        let away = || ClusterError::Unreachable { server: "s".to_owned(), cause: "refused".to_owned() };
        let mut state = listed(&["one"]);
        state.failed(away(), false);
        assert!(state.problem.is_none(), "an expired watch is no problem");
        state.failed(away(), true);
        assert!(names(&state) == ["one"] && state.problem.is_some());
        state.apply(Event::Init);
        assert!(state.apply(Event::InitDone) && state.problem.is_none());
    }

    #[test]
    fn a_job_of_a_later_version_is_a_problem_of_its_own() {
        let mut state = listed(&["one"]);
        let mut later = json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "later", "namespace": "team"}, "spec": {"workload": {"name": "ups"}}});
        later["status"] = json!({"stage": "Dreaming"});
        state.apply(Event::Apply(serde_json::from_value(later).unwrap()));
        let read = &state.jobs[&("team".to_owned(), "later".to_owned())];
        assert!(matches!(read, Read::Unreadable(problem) if problem.contains("team/later")));
        assert_eq!(names(&state), ["later", "one"]);
    }

    #[test]
    fn the_list_says_when_a_job_was_written_and_where_it_is() {
        let state = listed(&["one"]);
        let Some(Read::Job { job, listed, .. }) = state.jobs.values().next() else { panic!("it is readable") };
        assert_eq!(
            (listed.place.as_str(), listed.changed.unwrap().to_string().as_str()),
            ("team", "2026-01-05T10:04:00Z")
        );
        assert!(job.metadata.managed_fields.is_none());
    }
}
