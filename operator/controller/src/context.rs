//! What every reconcile shares.

use crate::belief::Beliefs;
use crate::build::Images;
use crate::events::Events;
use crate::facts::{Facts, Key};
use crate::leader::Leadership;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::services::Services;
use kube::Client;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Wait after the first failure of a job's reconcile; it doubles with each.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// Longest wait.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// What every reconcile shares.
pub struct Context {
    /// The API server: counted, with deadlines, fenced by the lease.
    pub client: Client,
    /// The operator's images.
    pub images: Images,
    /// What the watches say.
    pub facts: Arc<Facts>,
    /// What was written, and what is newer.
    pub beliefs: Beliefs,
    /// What running gangs say.
    pub live: Live,
    /// Counts and samples.
    pub metrics: Metrics,
    /// Whether this replica acts.
    pub leadership: Leadership,
    /// Tells people.
    pub events: Events,
    /// The Services of namespaces.
    pub services: Services,
    /// Failures in a row of each job.
    pub failures: Failures,
    /// When something was last tried for an attempt that may be tried again only so often.
    pub tried: Tried,
}

/// Failures in a row, by job.
#[derive(Default)]
pub struct Failures {
    counts: Mutex<HashMap<Key, u32>>,
}

impl Failures {
    /// A reconcile of the job failed: how long to wait.
    pub fn failed(&self, key: &Key) -> Duration {
        let mut counts = lock(&self.counts);
        let count = counts.entry(key.clone()).or_default();
        let wait = FIRST_BACKOFF.saturating_mul(1 << (*count).min(16)).min(LONGEST_BACKOFF);
        *count = count.saturating_add(1);
        wait
    }

    /// A reconcile of the job went well, or the job is gone.
    pub fn clear(&self, key: &Key) {
        lock(&self.counts).remove(key);
    }
}

/// When something was last tried, by attempt.
#[derive(Default)]
pub struct Tried {
    last: Mutex<HashMap<(Key, String), Instant>>,
}

impl Tried {
    /// Whether `what` may be tried again for the job; then it counts as tried.
    pub fn again(&self, key: &Key, what: &str, every: Duration) -> bool {
        let mut last = lock(&self.last);
        last.retain(|_, when| when.elapsed() < Duration::from_secs(600));
        let now = Instant::now();
        let entry = last.entry((key.clone(), what.to_owned()));
        let mut may = false;
        entry
            .and_modify(|when| {
                if when.elapsed() >= every {
                    *when = now;
                    may = true;
                }
            })
            .or_insert_with(|| {
                may = true;
                now
            });
        may
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Maps of independent entries: a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_for_each_job_alone() {
        let failures = Failures::default();
        let (a, b) = (Key::new("n", "a"), Key::new("n", "b"));
        let waits: Vec<_> = (0..12).map(|_| failures.failed(&a)).collect();
        assert_eq!(waits[0], FIRST_BACKOFF);
        assert_eq!(waits[3], FIRST_BACKOFF * 8);
        assert_eq!(waits[11], LONGEST_BACKOFF);
        assert_eq!(failures.failed(&b), FIRST_BACKOFF);
        failures.clear(&a);
        assert_eq!(failures.failed(&a), FIRST_BACKOFF);
    }
}
