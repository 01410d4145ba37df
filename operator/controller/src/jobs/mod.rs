//! All that this process knows of each job, in one place, so that nothing of a deleted job is left behind.
//!
//! [`Facts`], [`Live`](crate::live::Live) and [`Metrics`](crate::metrics::Metrics) are views of this one
//! map: each reads and writes its own field.

mod attempts;
mod facts;
mod gang;
mod tokens;

pub(crate) use facts::place;
pub use facts::{Facts, Listing};
pub(crate) use gang::Gang;

use crate::belief::{Belief, Resting, is_older};
use crate::clock::Clock;
use crate::error::Error;
use crate::key::Key;
use crate::sample::Sample;
use attempts::JobFacts;
use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::{Mutex, MutexGuard};
use pawl_api::TrainingJob;
use pawl_contract::happened::{Happened, Recent};
use pawl_decision::action::Event;
use pawl_rendezvous::Token;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokens::KnownSecret;
use tokio::time::Instant;

/// Backoff after the first failed reconcile of a job; it doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// The same after a decision on data that were not the newest: the caches catch up soon.
const FIRST_STALE: Duration = Duration::from_millis(20);
/// Longest backoff.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// Longer than any cool-down.
const TRIED_LONG_AGO: Duration = Duration::from_secs(600);

/// All that is known of one job.
#[derive(Debug, Default)]
pub(crate) struct JobState {
    /// The newest status that this process wrote or decided.
    belief: Option<Own>,
    /// Consecutive failed reconciles.
    failures: u32,
    /// Why the last reconcile failed, if that is to be reported once it lasts.
    refusal: Option<Refusal>,
    /// Whether a queue handed a batch Job of it to another cluster, which was not asked before.
    handed_on: bool,
    /// When an action with a cool-down was last tried.
    tried: HashMap<String, Instant>,
    /// What was decided lately, for the records, until the job is over; with the uid of the job.
    recent: Option<(String, Recent)>,
    /// What the watches report of its attempts.
    pub(crate) facts: JobFacts,
    /// Its running gangs, and the newest answer of the agent of each.
    pub(crate) gangs: Vec<Gang>,
    /// Its metrics.
    pub(crate) sample: Option<Sample>,
    /// The Secrets with tokens that are deleted with it.
    tokens: Vec<KnownSecret>,
}

/// What this process believes of a job.
#[derive(Debug)]
struct Own {
    /// Of the job.
    uid: String,
    held: Held,
}

/// How a belief is kept.
#[derive(Debug)]
enum Held {
    Whole(Belief),
    /// Nothing is left to do: it is kept only until the cache has it.
    Resting(Resting),
}

/// Why reconciles fail.
#[derive(Debug)]
struct Refusal {
    text: String,
    /// When the first one in a row failed.
    since: Instant,
    /// How long that must last before it is reported.
    reported_after: Duration,
}

impl JobState {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { belief, failures, refusal, handed_on, tried, recent, facts, gangs, sample, tokens } = self;
        belief.is_none()
            && *failures == 0
            && refusal.is_none()
            && !*handed_on
            && tried.is_empty()
            && recent.is_none()
            && facts.is_empty()
            && gangs.is_empty()
            && sample.is_none()
            && tokens.is_empty()
    }

    /// Forgets all that only the leader knows. The facts stay: watches keep them current on every replica.
    fn step_down(&mut self) {
        let Self { belief, failures, refusal, handed_on, tried, recent, facts: _, gangs, sample, tokens } = self;
        (*belief, *failures, *refusal, *handed_on, *sample) = (None, 0, None, false, None);
        gangs.clear();
        tried.clear();
        tokens.clear();
        *recent = None;
    }
}

/// What is known of all jobs. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    states: Arc<Mutex<BTreeMap<Key, JobState>>>,
    /// When facts change.
    clock: Clock,
    /// What the tokens of gangs are derived from; random, of this process.
    origin: Arc<OnceLock<Token>>,
}

impl Jobs {
    /// None yet; facts change at the time of this clock.
    pub fn new(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// The time.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The newest belief about `job`, which comes from the cache: this process's own, unless the cache is as new or
    /// another writer has changed the status since.
    pub fn belief(&self, job: &TrainingJob) -> Belief {
        let read = Belief::read(job);
        let states = self.lock();
        let state = states.get(&Key::of(job)).and_then(|state| state.belief.as_ref());
        let own = state.filter(|own| job.metadata.uid.as_ref() == Some(&own.uid));
        match own.map(|own| &own.held) {
            Some(Held::Whole(own)) if is_older(&read.version, &own.version) => own.clone(),
            Some(Held::Whole(own)) if *read.saved == *own.saved => own.clone().at(read.version),
            // If it could not be opened, what is decided on an old version would be refused.
            Some(Held::Resting(own)) if is_older(&read.version, &own.version) => own.open().unwrap_or(read),
            Some(Held::Whole(_) | Held::Resting(_)) | None => read,
        }
    }

    /// Sets the belief about a job.
    pub fn keep(&self, job: &TrainingJob, belief: Belief) {
        if let Some(uid) = job.metadata.uid.clone() {
            self.entry(&Key::of(job), |state| state.belief = Some(Own { uid, held: Held::Whole(belief) }));
        }
    }

    /// Nothing is left to do for a job: the belief about it is dropped once the cache [has](Self::cached) it.
    pub fn rest(&self, job: &TrainingJob) {
        self.change(&Key::of(job), |state| {
            if let Some(Own { held, .. }) = &mut state.belief
                && let Held::Whole(belief) = held
                && let Some(resting) = Resting::of(belief)
            {
                *held = Held::Resting(resting);
            }
            state.tried.retain(|_, when| when.elapsed() < TRIED_LONG_AGO);
        });
    }

    /// The cache has this version of a job. To be called after it was put there, and after each reconcile with what is
    /// there then: one of the two comes last.
    pub fn cached(&self, job: &impl ResourceExt) {
        let version = job.resource_version().unwrap_or_default();
        self.change(&Key::of(job), |state| {
            state.belief.take_if(|own| match &own.held {
                Held::Whole(_) => false,
                Held::Resting(resting) => !is_older(&version, &resting.version),
            });
        });
    }

    /// Remembers events of a decision whose status was written.
    pub fn happened(&self, job: &TrainingJob, events: &[Event]) {
        let Some(uid) = job.metadata.uid.as_ref().filter(|_| !events.is_empty()) else { return };
        let now = self.clock.now();
        self.entry(&Key::of(job), |state| {
            // That of an earlier job of this name is not this one's.
            let known = state.recent.take().filter(|(of, _)| of == uid);
            let (_, recent) = state.recent.insert(known.unwrap_or_else(|| (uid.clone(), Recent::default())));
            events.iter().for_each(|event| recent.add(event.clone().at(now)));
        });
    }

    /// What was decided about a job lately, oldest first: by another replica, nothing is known.
    pub fn recent(&self, job: &TrainingJob) -> Vec<Happened> {
        let states = self.lock();
        let recent = states.get(&Key::of(job)).and_then(|state| state.recent.as_ref());
        let own = recent.filter(|(of, _)| job.metadata.uid.as_ref() == Some(of));
        own.map(|(_, recent)| recent.events().to_vec()).unwrap_or_default()
    }

    /// A job is over: no attempt follows that keeps what happened.
    pub fn forget_recent(&self, key: &Key) {
        self.change(key, |state| state.recent = None);
    }

    /// Drops the belief about a job: the API server has a newer status.
    pub fn distrust(&self, key: &Key) {
        self.change(key, |state| state.belief = None);
    }

    /// Counts a failed reconcile. Returns the backoff, whatever the error is: nothing may be tried again and again at
    /// once.
    pub fn failed(&self, key: &Key, error: &Error) -> Duration {
        let first = match error {
            Error::Stale => FIRST_STALE,
            Error::Api { .. }
            | Error::Taken { .. }
            | Error::Leaving { .. }
            | Error::Elsewhere { .. }
            | Error::Local { .. } => FIRST_BACKOFF,
        };
        self.entry(key, |state| {
            let wait = first.saturating_mul(1 << state.failures.min(16)).min(LONGEST_BACKOFF);
            state.failures = state.failures.saturating_add(1);
            wait
        })
    }

    /// Resets the backoff after a successful reconcile.
    pub fn succeeded(&self, key: &Key) {
        self.change(key, |state| state.failures = 0);
    }

    /// Records why a reconcile failed, or that it did not. What says nothing about the cause, such as stale data,
    /// changes nothing. `reported`: a failure is reported already, so that this one is at once.
    pub fn refused(&self, key: &Key, error: Option<&Error>, reported: bool) {
        let Some(error) = error else {
            self.change(key, |state| state.refusal = None);
            return;
        };
        let Some(reported_after) = error.reported_after() else { return };
        let reported_after = if reported { Duration::ZERO } else { reported_after };
        self.entry(key, |state| {
            let since = state.refusal.as_ref().map_or_else(Instant::now, |known| known.since);
            state.refusal = Some(Refusal { text: error.to_string(), since, reported_after });
        });
    }

    /// Why reconciles fail, once that has lasted long enough to be reported.
    pub fn refusal(&self, key: &Key) -> Option<String> {
        let states = self.lock();
        let refusal = states.get(key)?.refusal.as_ref()?;
        (refusal.since.elapsed() >= refusal.reported_after).then(|| refusal.text.clone())
    }

    /// Records whether a queue hands batch Jobs of this job to another cluster: it is asked before the next one then,
    /// as the deletion of each would be the reason for another one.
    pub fn hand_on(&self, key: &Key, handed_on: bool) {
        self.entry(key, |state| state.handed_on = handed_on);
    }

    /// What [`Jobs::hand_on`] recorded.
    pub fn was_handed_on(&self, key: &Key) -> bool {
        self.lock().get(key).is_some_and(|state| state.handed_on)
    }

    /// Whether this process has decided about a job that is under way.
    pub fn is_known(&self, key: &Key) -> bool {
        self.lock().get(key).is_some_and(|state| state.belief.is_some())
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
    use pawl_decision::action::EventKind;
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
        jobs.cached(&job("12", 2));
        assert_eq!(jobs.lock().len(), 1, "there may be more to do");
        jobs.rest(&job("11", 1));
        jobs.cached(&job("11", 1));
        assert_eq!(jobs.lock().len(), 1, "the cache does not have it yet");
        let belief = jobs.belief(&job("11", 1));
        assert_eq!((belief.newest.attempts, belief.version.as_str()), (2, "12"), "and is passed over");
        jobs.cached(&job("12", 2));
        assert_eq!(jobs.lock().len(), 0);
        // What is decided next begins with the cache.
        jobs.keep(&job("12", 2), Belief::written("13".to_owned(), job("13", 3).status.unwrap()));
        jobs.cached(&job("13", 3));
        assert_eq!(jobs.lock().len(), 1);
    }

    #[test]
    fn progress_that_is_not_saved_is_kept() {
        let jobs = Jobs::default();
        let mut belief = Belief::written("12".to_owned(), job("12", 2).status.unwrap());
        belief.newest = Arc::new(job("12", 3).status.unwrap());
        jobs.keep(&job("12", 2), belief);
        jobs.rest(&job("12", 2));
        jobs.cached(&job("12", 2));
        assert_eq!(jobs.belief(&job("12", 2)).newest.attempts, 3);
    }

    #[test]
    fn waits_grow_for_each_job_alone() {
        let jobs = Jobs::default();
        let (a, b) = (Key::new("n", "a"), Key::new("n", "b"));
        let local = Error::Local { what: "a token", why: String::new() };
        let failed = |key| jobs.failed(key, &local);
        let waits: Vec<_> = (0..12).map(|_| failed(&a)).collect();
        assert_eq!(waits[0], FIRST_BACKOFF);
        assert_eq!(waits[3], FIRST_BACKOFF * 8);
        assert_eq!(waits[11], LONGEST_BACKOFF);
        assert_eq!(failed(&b), FIRST_BACKOFF);
        jobs.succeeded(&a);
        assert_eq!(failed(&a), FIRST_BACKOFF);
    }

    #[test]
    fn stale_data_are_waited_for_ever_longer() {
        let (jobs, key) = (Jobs::default(), Key::new("n", "a"));
        let waits: Vec<_> = (0..14).map(|_| jobs.failed(&key, &Error::Stale)).collect();
        assert_eq!((waits[0], waits[1], waits[13]), (FIRST_STALE, FIRST_STALE * 2, LONGEST_BACKOFF));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_reported_once_it_has_lasted_and_until_it_is_over() {
        let (jobs, key) = (Jobs::default(), Key::new("n", "a"));
        let taken = Error::Taken { kind: "Service", name: "s".to_owned(), why: "w".to_owned() };
        jobs.refused(&key, Some(&taken), false);
        assert_eq!(jobs.refusal(&key), Some(taken.to_string()), "somebody has to act");
        jobs.refused(&key, None, false);
        assert_eq!((jobs.refusal(&key), jobs.lock().len()), (None, 0));

        let leaving = Error::Leaving { kind: "batch Job", name: "a-1".to_owned(), why: "is being deleted".to_owned() };
        for (seconds, reported) in [(0, false), (9, false), (2, true), (60, true)] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            jobs.refused(&key, Some(&leaving), false);
            jobs.refused(&key, Some(&Error::Stale), false);
            assert_eq!(jobs.refusal(&key).is_some(), reported, "{seconds}");
        }
    }

    #[test]
    fn what_is_kept_of_a_job_goes_with_it() {
        let (jobs, key) = (Jobs::default(), Key::new("n", "toy"));
        jobs.keep(&job("12", 2), Belief::written("12".to_owned(), job("12", 2).status.unwrap()));
        jobs.failed(&key, &Error::Stale);
        let event = Event { kind: EventKind::Normal, reason: "Paused".to_owned(), message: String::new(), phase: None };
        let mut other = job("13", 0);
        other.metadata.uid = Some("v".to_owned());
        jobs.happened(&other, std::slice::from_ref(&event));
        assert!(jobs.recent(&job("12", 2)).is_empty(), "it is of an earlier job of this name");
        jobs.happened(&job("12", 2), &[event.clone(), event]);
        assert_eq!(jobs.recent(&job("12", 2)).len(), 1, "it was decided again");
        assert!(jobs.recent(&other).is_empty());
        let every = Duration::from_secs(60);
        assert!(jobs.may_try(&key, "token", every) && !jobs.may_try(&key, "token", every));
        jobs.forget(&key);
        assert_eq!(jobs.lock().len(), 0);
        assert!(jobs.may_try(&key, "token", every));
    }
}
