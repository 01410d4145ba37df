//! Jobs that a watch keeps up to date.

use crate::commands::kubectl::error::ClusterError;
use crate::commands::kubectl::session::{JOBS, Session};
use futures::StreamExt;
use jiff::Timestamp;
use kube::api::Api;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Resource, ResourceExt};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_controller::reading::Guarded;
use pawl_display::jobs::Entry;
use pawl_display::ui::listed::Listed;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Jobs in a page of a list.
const PAGE: u32 = 100;
/// Time until a watch that failed is started again.
const AGAIN: Duration = Duration::from_secs(5);
/// The same after a refusal, which lasts until somebody changes a role.
const AGAIN_REFUSED: Duration = Duration::from_secs(60);

/// Namespace and name of a job.
pub type Name = (String, String);

/// A job as it was read.
enum Read {
    Job {
        job: Arc<TrainingJob>,
        listed: Box<Listed>,
    },
    /// Why it cannot be read.
    Unreadable(String),
}

/// What the API server has said.
#[derive(Default)]
struct State {
    jobs: BTreeMap<Name, Read>,
    /// Those of a list that is not complete yet.
    arriving: BTreeMap<Name, Read>,
    /// Why there are none, or why they may be out of date.
    problem: Option<ClusterError>,
    /// Counts the changes.
    revision: u64,
}

impl State {
    /// Takes an event. Returns whether that changes what is known: not before the end of a list.
    fn apply(&mut self, event: Event<Guarded>) -> bool {
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
        self.revision += u64::from(known);
        known
    }

    /// Takes a failure of the watch. What a user may no longer see is forgotten. Returns when to try again.
    fn failed(&mut self, error: ClusterError, when_listing: bool) -> Duration {
        let refused = is_refusal(&error) || is_unauthenticated(&error);
        if refused {
            self.jobs.clear();
        } else if !when_listing {
            // Such as a watch that has expired: a new list says whether something is wrong.
            return AGAIN;
        }
        self.problem = Some(error);
        self.revision += 1;
        if refused { AGAIN_REFUSED } else { AGAIN }
    }
}

/// Whether the user may not list the jobs.
const fn is_refusal(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Forbidden { .. })
}

/// Whether the API server does not know the user.
const fn is_unauthenticated(error: &ClusterError) -> bool {
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
            let entry = Entry { job: &job, status, place: &name.0, provenance: None };
            let listed = Box::new(Listed::new(entry, changed));
            Read::Job { job: Arc::new(job), listed }
        }
        Err(unreadable) => Read::Unreadable(format!("TrainingJob {}/{}: {}", name.0, name.1, unreadable.problem)),
    };
    (name, read)
}

/// What the watch and its readers share.
struct Shared {
    state: Mutex<State>,
    /// Whether the API server has answered.
    looked: watch::Sender<bool>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What can be shown of some jobs.
#[derive(Default)]
pub struct Shown {
    pub jobs: Vec<(Name, Arc<TrainingJob>, Listed)>,
    pub problems: Vec<String>,
    /// Why the user may not list them.
    pub refused: Option<String>,
}

/// The jobs of a namespace, or of all; the watch ends when this is dropped.
pub struct Watched {
    session: Session,
    shared: Arc<Shared>,
    watch: AbortHandle,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Watched {
    /// Watches the jobs of all namespaces.
    pub fn all(session: Session) -> Self {
        let jobs = Api::all(session.client.clone());
        Self::start(session, jobs)
    }

    /// Watches the jobs of the namespace of the session.
    pub fn namespace(session: Session) -> Self {
        let jobs = Api::namespaced(session.client.clone(), &session.namespace);
        Self::start(session, jobs)
    }

    fn start(session: Session, jobs: Api<Guarded>) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), looked: watch::Sender::new(false) });
        let own = session.in_namespace(session.namespace.clone());
        let watch = tokio::spawn(keep(own, jobs, Arc::clone(&shared))).abort_handle();
        Self { session, shared, watch }
    }

    /// Waits until the API server has answered.
    pub async fn looked(&self) {
        // The sender is dropped with this.
        let _ = self.shared.looked.subscribe().wait_for(|looked| *looked).await;
    }

    /// Whether the API server does not know the user.
    pub fn is_unauthenticated(&self) -> bool {
        self.shared.state().problem.as_ref().is_some_and(is_unauthenticated)
    }

    /// Changes when [`Self::read`] does.
    pub fn revision(&self) -> u64 {
        self.shared.state().revision
    }

    /// The session for requests about the job called `name`.
    pub fn session(&self, name: &Name) -> Session {
        self.session.in_namespace(name.0.clone())
    }

    /// The job called `name`, as it was last seen.
    pub fn job(&self, name: &Name) -> Option<Arc<TrainingJob>> {
        match self.shared.state().jobs.get(name) {
            Some(Read::Job { job, .. }) => Some(Arc::clone(job)),
            Some(Read::Unreadable(_)) | None => None,
        }
    }

    /// What can be shown now.
    pub fn read(&self) -> Shown {
        let state = self.shared.state();
        let mut shown = Shown::default();
        for (name, read) in &state.jobs {
            match read {
                Read::Job { job, listed } => {
                    shown.jobs.push((name.clone(), Arc::clone(job), Listed::clone(listed)));
                }
                Read::Unreadable(problem) => shown.problems.push(problem.clone()),
            }
        }
        match &state.problem {
            Some(error) if is_refusal(error) => shown.refused = Some(error.to_string()),
            Some(error) => shown.problems.push(error.to_string()),
            None if !*self.shared.looked.borrow() => {
                shown.problems.push(format!("{} has not answered yet", self.session.server));
            }
            None => {}
        }
        shown
    }
}

/// Watches jobs until it is aborted.
async fn keep(session: Session, jobs: Api<Guarded>, shared: Arc<Shared>) {
    loop {
        let mut events = pin!(watcher(jobs.clone(), watcher::Config::default().page_size(PAGE)));
        while let Some(event) = events.next().await {
            let error = match event {
                Ok(event) => {
                    if shared.state().apply(event) {
                        shared.looked.send_replace(true);
                    }
                    continue;
                }
                Err(error) => error,
            };
            let (error, when_listing) = failure(&session, error);
            let wait = shared.state().failed(error, when_listing);
            shared.looked.send_replace(true);
            tokio::time::sleep(wait).await;
            break;
        }
    }
}

/// The error of a watch, and whether it came instead of a list.
fn failure(session: &Session, error: watcher::Error) -> (ClusterError, bool) {
    let (verb, error, when_listing) = match error {
        watcher::Error::InitialListFailed(error) => ("list", error, true),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => ("watch", error, false),
        watcher::Error::WatchError(status) => ("watch", kube::Error::Api(status), false),
        error @ watcher::Error::NoResourceVersion => {
            let answer = ClusterError::Answer { verb: "watch", resource: JOBS, message: error.to_string() };
            return (answer, true);
        }
    };
    (session.request(verb, JOBS).failed(error), when_listing)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let before = state.revision;
        state.apply(Event::Apply(job("one", "Complete")));
        assert_ne!(state.revision, before);
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
        let Some(Read::Job { job, listed }) = state.jobs.values().next() else { panic!("it is readable") };
        assert_eq!(
            (listed.place.as_str(), listed.changed.unwrap().to_string().as_str()),
            ("team", "2026-01-05T10:04:00Z")
        );
        assert!(job.metadata.managed_fields.is_none());
    }
}
