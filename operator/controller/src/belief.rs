//! What the operator believes of each job: the newest status, whether or not the API server or the cache has it yet.
//!
//! # Why no evidence is lost, and no attempt is made twice
//!
//! 1. *Intent first*, as in the [protocol](pawl_decision::protocol) of all shells: a reconcile writes the status and
//!    only then acts.
//! 2. *Only the newest may decide.* A status is written with the resource version that the decision was made on, so a
//!    decision on stale data is refused as a whole: it writes nothing, and since acting comes after writing, it does
//!    nothing. An action that needs no write (a start that is repeated) first reads the resource version.
//! 3. *The cache may lag.* What this process wrote last is kept ([`crate::jobs`]) until the cache has caught up, so
//!    that its next decision is made on it. Resource versions of one kind are ordered; an older cache is simply passed
//!    over. Of a job that rests nothing is kept once the cache has caught up.
//! 4. *Facts may lag.* A fact that is late only delays. An attempt's number advances when all of its pods were seen to
//!    end or to be gone, which is for ever; until then any start bears the same name, and names are unique.
//! 5. *Releasing comes last.* What holds results (pods, and in this process the facts of pods that are gone) is let go
//!    only when the status that was given to the decision core, and therefore written, no longer needs it.

use crate::compressed::Compressed;
use pawl_api::{TrainingJob, TrainingJobStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum interval between writes of a status in which only the training progressed.
pub const PROGRESS_WRITE: Duration = Duration::from_secs(30);

/// The newest status of a job.
#[derive(Clone, Debug)]
pub struct Belief {
    /// Resource version of the job that `saved` was written to or read from.
    pub version: String,
    /// The status as it is in the API server.
    pub saved: Arc<TrainingJobStatus>,
    /// The newest status: what was saved, and perhaps progress that is not worth a write yet.
    pub newest: Arc<TrainingJobStatus>,
    /// When it was saved, if by this process.
    since: Option<Instant>,
}

impl Belief {
    /// The status of `job` in the API server.
    pub fn read(job: &TrainingJob) -> Self {
        let status = Arc::new(job.status.clone().unwrap_or_default());
        let version = job.metadata.resource_version.clone().unwrap_or_default();
        Self { version, saved: status.clone(), newest: status, since: None }
    }

    /// `status` was written, which made the job this version.
    pub fn written(version: String, status: TrainingJobStatus) -> Self {
        let status = Arc::new(status);
        Self { version, saved: status.clone(), newest: status, since: Some(Instant::now()) }
    }

    /// The same belief about a job that has this version by now.
    pub(crate) fn at(self, version: String) -> Self {
        Self { version, ..self }
    }

    /// Whether `status` is to be written now rather than with what comes next. `urgent`: there are actions or events.
    pub fn worth_writing(&self, status: &TrainingJobStatus, urgent: bool) -> bool {
        let (saved, new) = (known(&self.saved), known(status));
        if saved == new {
            return false;
        }
        urgent
            || self.since.is_none_or(|since| since.elapsed() >= PROGRESS_WRITE)
            || saved.without_progress() != new.without_progress()
    }

    /// When what is not saved yet is to be written; `None` when all of it is.
    pub fn due(&self) -> Option<Duration> {
        let unsaved = known(&self.saved) != known(&self.newest);
        unsaved.then(|| self.since.map_or(PROGRESS_WRITE, |since| PROGRESS_WRITE.saturating_sub(since.elapsed())))
    }
}

/// The belief about a job that rests, until the cache has it: many jobs may come to rest at once.
#[derive(Debug)]
pub(crate) struct Resting {
    pub(crate) version: String,
    status: Compressed,
    since: Option<Instant>,
}

impl Resting {
    /// `None`: not all of it is saved.
    pub(crate) fn of(belief: &Belief) -> Option<Self> {
        let Belief { version, saved, newest, since } = belief;
        let status = (saved == newest).then(|| Compressed::new(&**saved))??;
        Some(Self { version: version.clone(), status, since: *since })
    }

    pub(crate) fn open(&self) -> Option<Belief> {
        let status: Arc<TrainingJobStatus> = Arc::new(self.status.open()?);
        Some(Belief { version: self.version.clone(), saved: status.clone(), newest: status, since: self.since })
    }
}

/// A status without what can be found out again: that an attempt was seen.
fn known(status: &TrainingJobStatus) -> TrainingJobStatus {
    let mut known = status.clone();
    known.attempt.iter_mut().chain(&mut known.parallel).for_each(|attempt| attempt.seen = false);
    known
}

/// Whether resource version `a` is older than `b`. They are decimal numbers that grow (KEP-5504); what does not parse
/// is not older: then the write, which names its version, is refused if it is.
pub(crate) fn is_older(a: &str, b: &str) -> bool {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a < b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_api::status::{AttemptStatus, TrainingStatus};
    use pawl_contract::measured::Measured;

    #[test]
    fn progress_alone_waits() {
        let training = |steps, restarts| TrainingJobStatus {
            training: Some(TrainingStatus {
                measured: Measured { steps, ..Measured::default() },
                restarts,
                ..TrainingStatus::default()
            }),
            attempt: Some(AttemptStatus::default()),
            ..TrainingJobStatus::default()
        };
        let belief = Belief::written("1".to_owned(), training(1, 0));
        assert!(!belief.worth_writing(&training(1, 0), false));
        assert!(!belief.worth_writing(&training(2, 0), false));
        assert!(belief.worth_writing(&training(2, 0), true));
        assert!(belief.worth_writing(&training(1, 1), false));
        let mut seen = training(1, 0);
        seen.attempt.as_mut().unwrap().seen = true;
        // Written, it would make an operator that restarts with old caches believe that the attempt went away.
        assert!(!Belief { since: None, ..belief }.worth_writing(&seen, true));
    }
}
