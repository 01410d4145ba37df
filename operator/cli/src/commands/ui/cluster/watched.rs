//! Jobs that a watch keeps up to date.

use super::state::{Name, Read, State, is_refusal, is_unauthenticated};
use crate::commands::kubectl::error::ClusterError;
use crate::commands::kubectl::session::{JOBS, Session};
use futures::StreamExt;
use jiff::Timestamp;
use kube::api::Api;
use kube::runtime::watcher::{self, watcher};
use pawl_api::TrainingJob;
use pawl_controller::reading::{Guarded, JOB_PAGE};
use pawl_display::ui::awaited::Awaited;
use pawl_display::ui::listed::Listed;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

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

    /// Changes when [`Self::read`] does, or a job has become silent by `now`.
    pub fn revision(&self, now: Timestamp) -> u64 {
        self.shared.state().revision(now)
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

    /// For how long the job called `name` has been as it is; 0 when it is not there.
    pub fn unchanged_for(&self, name: &Name) -> Duration {
        match self.shared.state().jobs.get(name) {
            Some(Read::Job { seen, .. }) => seen.elapsed(),
            Some(Read::Unreadable(_)) | None => Duration::ZERO,
        }
    }

    /// What is awaited of the job called `name`.
    pub fn awaited(&self, name: &Name) -> Awaited {
        match self.shared.state().jobs.get(name) {
            Some(Read::Job { listed, .. }) => listed.awaited,
            Some(Read::Unreadable(_)) | None => Awaited::default(),
        }
    }

    /// What can be shown now.
    pub fn read(&self) -> Shown {
        let state = self.shared.state();
        let mut shown = Shown::default();
        for (name, read) in &state.jobs {
            match read {
                Read::Job { job, listed, .. } => {
                    shown.jobs.push((name.clone(), Arc::clone(job), Listed::clone(listed)));
                }
                Read::Unreadable(problem) => shown.problems.push(problem.clone()),
            }
        }
        match &state.problem {
            Some(error) if is_refusal(error) => shown.refused = Some(error.cause()),
            Some(error) => shown.problems.push(error.cause()),
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
        let mut events = pin!(watcher(jobs.clone(), watcher::Config::default().page_size(JOB_PAGE)));
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
