//! All that this process knows of each job, in one place, so that nothing of a deleted job is left behind.
//!
//! [`Facts`], [`Live`](crate::live::Live) and [`Metrics`](crate::metrics::Metrics) are views of this one
//! map: each reads and writes its own field.

mod attempts;
mod facts;
mod gang;

pub(crate) use facts::place;
pub use facts::{Facts, Listing};
pub(crate) use gang::Gang;

use crate::belief::{Belief, is_older};
use crate::key::Key;
use crate::sample::Sample;
use attempts::JobFacts;
use parking_lot::{Mutex, MutexGuard};
use pawl_api::TrainingJob;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Backoff after the first failed reconcile of a job; it doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// Longest backoff.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// Longer than any cool-down.
const TRIED_LONG_AGO: Duration = Duration::from_secs(600);

/// All that is known of one job.
#[derive(Debug, Default)]
pub(crate) struct JobState {
    /// The newest status that this process wrote or decided, and the uid of the job it belongs to.
    belief: Option<(String, Belief)>,
    /// Consecutive failed reconciles.
    failures: u32,
    /// What the API server or another owner refuses until somebody acts, and how; as the last reconcile found it.
    refusal: Option<String>,
    /// When an action with a cool-down was last tried.
    tried: HashMap<String, Instant>,
    /// What the watches report of its attempts.
    pub(crate) facts: JobFacts,
    /// Its running gangs, and the newest answer of the agent of each.
    pub(crate) gangs: Vec<Gang>,
    /// Its metrics.
    pub(crate) sample: Option<Sample>,
}

impl JobState {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { belief, failures, refusal, tried, facts, gangs, sample } = self;
        belief.is_none()
            && *failures == 0
            && refusal.is_none()
            && tried.is_empty()
            && facts.is_empty()
            && gangs.is_empty()
            && sample.is_none()
    }

    /// Forgets all that only the leader knows. The facts stay: watches keep them current on every replica.
    fn step_down(&mut self) {
        let Self { belief, failures, refusal, tried, facts: _, gangs, sample } = self;
        (*belief, *failures, *refusal, *sample) = (None, 0, None, None);
        gangs.clear();
        tried.clear();
    }
}

/// What is known of all jobs. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    states: Arc<Mutex<BTreeMap<Key, JobState>>>,
}

impl Jobs {
    /// The newest belief about `job`, which comes from the cache: this process's own, unless the cache is as new or another
    /// writer has changed the status since.
    pub fn belief(&self, job: &TrainingJob) -> Belief {
        let read = Belief::read(job);
        let states = self.lock();
        let state = states.get(&Key::of(job)).and_then(|state| state.belief.as_ref());
        let Some((_, own)) = state.filter(|(uid, _)| job.metadata.uid.as_ref() == Some(uid)) else { return read };
        if is_older(&read.version, &own.version) {
            return own.clone();
        }
        if *read.saved == *own.saved {
            return own.clone().at(read.version);
        }
        read
    }

    /// Sets the belief about a job.
    pub fn keep(&self, job: &TrainingJob, belief: Belief) {
        if let Some(uid) = job.metadata.uid.clone() {
            self.entry(&Key::of(job), |state| state.belief = Some((uid, belief)));
        }
    }

    /// Drops the belief about an idle job once the cache has caught up with it.
    pub fn rest(&self, job: &TrainingJob) {
        let version = job.metadata.resource_version.as_deref().unwrap_or_default();
        self.change(&Key::of(job), |state| {
            state.belief.take_if(|(_, own)| {
                !is_older(version, &own.version)
                    && *own.saved == *own.newest
                    && job.status.as_ref() == Some(&*own.saved)
            });
            state.tried.retain(|_, when| when.elapsed() < TRIED_LONG_AGO);
        });
    }

    /// Drops the belief about a job: the API server has a newer status.
    pub fn distrust(&self, key: &Key) {
        self.change(key, |state| state.belief = None);
    }

    /// Counts a failed reconcile. Returns the backoff.
    pub fn failed(&self, key: &Key) -> Duration {
        self.entry(key, |state| {
            let wait = FIRST_BACKOFF.saturating_mul(1 << state.failures.min(16)).min(LONGEST_BACKOFF);
            state.failures = state.failures.saturating_add(1);
            wait
        })
    }

    /// Resets the backoff after a successful reconcile.
    pub fn succeeded(&self, key: &Key) {
        self.change(key, |state| state.failures = 0);
    }

    /// Records what a reconcile was refused. Returns whether a refusal has begun or ended.
    pub fn refused(&self, key: &Key, refusal: Option<String>) -> bool {
        match refusal {
            Some(refusal) => self.entry(key, |state| state.refusal.replace(refusal).is_none()),
            None => self.change(key, |state| state.refusal.take().is_some()).unwrap_or(false),
        }
    }

    /// What the last reconcile was refused.
    pub fn refusal(&self, key: &Key) -> Option<String> {
        self.lock().get(key).and_then(|state| state.refusal.clone())
    }

    /// Whether the cool-down `every` of action `what` has passed; if so, a new one begins.
    pub fn may_try(&self, key: &Key, what: &str, every: Duration) -> bool {
        self.entry(key, |JobState { tried, .. }| {
            tried.retain(|_, when| when.elapsed() < TRIED_LONG_AGO);
            let may = tried.get(what).is_none_or(|when| when.elapsed() >= every);
            if may {
                tried.insert(what.to_owned(), Instant::now());
            }
            may
        })
    }

    /// The `TrainingJob` is gone: only those of its pods and batch Jobs that still exist are remembered.
    pub fn forget(&self, key: &Key) {
        self.change(key, |state| {
            state.step_down();
            state.facts.orphan();
        });
    }

    /// This replica no longer leads: another one may write.
    pub fn step_down(&self) {
        let mut states = self.lock();
        states.values_mut().for_each(JobState::step_down);
        states.retain(|_, state| !state.is_empty());
    }

    /// Changes the state of a job, if there is one, and drops it when nothing is left of it.
    pub(crate) fn change<T>(&self, key: &Key, change: impl FnOnce(&mut JobState) -> T) -> Option<T> {
        let mut states = self.lock();
        let state = states.get_mut(key)?;
        let result = change(state);
        if state.is_empty() {
            states.remove(key);
        }
        Some(result)
    }

    /// Changes the state of a job, which begins empty, and drops it when nothing is left of it.
    pub(crate) fn entry<T>(&self, key: &Key, change: impl FnOnce(&mut JobState) -> T) -> T {
        let mut states = self.lock();
        let state = states.entry(key.clone()).or_default();
        let result = change(state);
        if state.is_empty() {
            states.remove(key);
        }
        result
    }

    /// The states of all jobs, in the order of their keys.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, JobState>> {
        self.states.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_api::TrainingJobStatus;
    use serde_json::json;
    use std::sync::Arc;

    fn job(version: &str, attempts: u32) -> TrainingJob {
        let mut job: TrainingJob = serde_json::from_value(json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "toy", "namespace": "n", "uid": "u", "resourceVersion": version},
            "spec": {"workload": {"name": "ups"}},
        }))
        .unwrap();
        job.status = Some(TrainingJobStatus { attempts, ..TrainingJobStatus::default() });
        job
    }

    #[test]
    fn a_cache_that_lags_is_passed_over_and_one_that_is_newer_is_believed() {
        let jobs = Jobs::default();
        let status = |attempts| TrainingJobStatus { attempts, ..TrainingJobStatus::default() };
        jobs.keep(&job("10", 1), Belief::written("12".to_owned(), status(2)));
        assert_eq!(jobs.belief(&job("10", 1)).newest.attempts, 2);
        assert_eq!(jobs.belief(&job("9", 0)).version, "12");
        // The spec was edited meanwhile.
        let edited = jobs.belief(&job("13", 2));
        assert_eq!((edited.newest.attempts, edited.version.as_str()), (2, "13"));
        // Another replica wrote meanwhile.
        assert_eq!(jobs.belief(&job("14", 3)).newest.attempts, 3);
        // Another job has its name by now.
        let mut other = job("9", 0);
        other.metadata.uid = Some("v".to_owned());
        assert_eq!(jobs.belief(&other).newest.attempts, 0);
    }

    #[test]
    fn unsaved_progress_outlives_an_edit_of_the_spec() {
        let jobs = Jobs::default();
        let mut belief = Belief::written("12".to_owned(), TrainingJobStatus { attempts: 2, ..Default::default() });
        belief.newest =
            Arc::new(TrainingJobStatus { attempts: 2, cost: Some(Default::default()), ..Default::default() });
        jobs.keep(&job("12", 2), belief);
        assert!(jobs.belief(&job("13", 2)).newest.cost.is_some());
    }

    #[test]
    fn a_job_that_rests_costs_no_memory() {
        let jobs = Jobs::default();
        jobs.keep(&job("12", 2), Belief::written("12".to_owned(), job("12", 2).status.unwrap()));
        jobs.rest(&job("11", 1));
        assert_eq!(jobs.lock().len(), 1);
        jobs.rest(&job("12", 2));
        assert_eq!(jobs.lock().len(), 0);
    }

    #[test]
    fn waits_grow_for_each_job_alone() {
        let jobs = Jobs::default();
        let (a, b) = (Key::new("n", "a"), Key::new("n", "b"));
        let waits: Vec<_> = (0..12).map(|_| jobs.failed(&a)).collect();
        assert_eq!(waits[0], FIRST_BACKOFF);
        assert_eq!(waits[3], FIRST_BACKOFF * 8);
        assert_eq!(waits[11], LONGEST_BACKOFF);
        assert_eq!(jobs.failed(&b), FIRST_BACKOFF);
        jobs.succeeded(&a);
        assert_eq!(jobs.failed(&a), FIRST_BACKOFF);
    }

    #[test]
    fn what_is_kept_of_a_job_goes_with_it() {
        let (jobs, key) = (Jobs::default(), Key::new("n", "toy"));
        jobs.keep(&job("12", 2), Belief::written("12".to_owned(), job("12", 2).status.unwrap()));
        jobs.failed(&key);
        let every = Duration::from_secs(60);
        assert!(jobs.may_try(&key, "token", every) && !jobs.may_try(&key, "token", every));
        jobs.forget(&key);
        assert_eq!(jobs.lock().len(), 0);
        assert!(jobs.may_try(&key, "token", every));
    }
}
