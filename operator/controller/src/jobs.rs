//! What this process keeps of each job between reconciles, in one place: dropped as a whole when the job is gone.

use crate::belief::{Belief, is_older};
use crate::facts::Key;
use crate::reconcile::key_of;
use pawl_api::TrainingJob;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Wait after the first failure of a job's reconcile; it doubles with each.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// Longest wait.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// Longer than anything must wait before it may be tried again.
const TRIED_LONG_AGO: Duration = Duration::from_secs(600);

/// What is kept of one job.
#[derive(Debug, Default)]
struct JobState {
    /// The newest status that this process wrote or decided, and the uid of the job that it is of.
    belief: Option<(String, Belief)>,
    /// Reconciles that failed in a row.
    failures: u32,
    /// When something was last tried that may be tried again only so often.
    tried: HashMap<String, Instant>,
}

impl JobState {
    fn is_empty(&self) -> bool {
        let Self { belief, failures, tried } = self;
        belief.is_none() && *failures == 0 && tried.is_empty()
    }
}

/// What is kept of all jobs.
#[derive(Debug, Default)]
pub struct Jobs {
    states: Mutex<HashMap<Key, JobState>>,
}

impl Jobs {
    /// The newest belief about `job`, which comes from the cache: what this process knows of it, unless the cache is as
    /// new or somebody else wrote since.
    pub fn belief(&self, job: &TrainingJob) -> Belief {
        let read = Belief::read(job);
        let states = self.lock();
        let state = states.get(&key_of(job)).and_then(|state| state.belief.as_ref());
        let Some((_, own)) = state.filter(|(uid, _)| job.metadata.uid.as_ref() == Some(uid)) else { return read };
        if is_older(&read.version, &own.version) {
            return own.clone();
        }
        if *read.saved == *own.saved {
            return own.clone().at(read.version);
        }
        read
    }

    /// Keeps a belief.
    pub fn keep(&self, job: &TrainingJob, belief: Belief) {
        if let Some(uid) = job.metadata.uid.clone() {
            self.lock().entry(key_of(job)).or_default().belief = Some((uid, belief));
        }
    }

    /// Drops the belief about a job that rests, once the cache has caught up with it.
    pub fn rest(&self, job: &TrainingJob) {
        let version = job.metadata.resource_version.as_deref().unwrap_or_default();
        self.change(&key_of(job), |state| {
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

    /// A reconcile of the job failed: how long to wait.
    pub fn failed(&self, key: &Key) -> Duration {
        let mut states = self.lock();
        let failures = &mut states.entry(key.clone()).or_default().failures;
        let wait = FIRST_BACKOFF.saturating_mul(1 << (*failures).min(16)).min(LONGEST_BACKOFF);
        *failures = failures.saturating_add(1);
        wait
    }

    /// A reconcile of the job went well.
    pub fn succeeded(&self, key: &Key) {
        self.change(key, |state| state.failures = 0);
    }

    /// Whether `what` may be tried again for the job; then it counts as tried.
    pub fn may_try(&self, key: &Key, what: &str, every: Duration) -> bool {
        let mut states = self.lock();
        let tried = &mut states.entry(key.clone()).or_default().tried;
        tried.retain(|_, when| when.elapsed() < TRIED_LONG_AGO);
        let may = tried.get(what).is_none_or(|when| when.elapsed() >= every);
        if may {
            tried.insert(what.to_owned(), Instant::now());
        }
        may
    }

    /// The job is gone: nothing is kept of it.
    pub fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// Forgets all: another replica may write.
    pub fn forget_all(&self) {
        self.lock().clear();
    }

    /// Changes what is kept of a job; nothing is kept of one of which nothing is left to keep.
    fn change(&self, key: &Key, change: impl FnOnce(&mut JobState)) {
        let mut states = self.lock();
        let Some(state) = states.get_mut(key) else { return };
        change(state);
        if state.is_empty() {
            states.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, JobState>> {
        // A map of independent entries: a panic elsewhere leaves nothing half done.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
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
