//! The attempts of one job.

use crate::facts::AttemptFacts;
use crate::observe::signature;
use jiff::Timestamp;

/// What is known of a job's attempts.
#[derive(Debug, Default)]
pub(crate) struct JobFacts {
    /// Oldest first.
    pub(super) attempts: Vec<AttemptFacts>,
    /// Its `TrainingJob` is gone: nothing is evidence any more.
    pub(super) orphaned: bool,
}

impl JobFacts {
    pub(crate) fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// The `TrainingJob` is gone: only what still exists is remembered.
    pub(crate) fn orphan(&mut self) {
        self.orphaned = true;
        self.attempts.iter_mut().for_each(AttemptFacts::drop_gone);
        self.drop_empty();
    }

    /// Changes what is known of an attempt. Returns whether that matters to decisions.
    pub(super) fn change(&mut self, attempt: &str, now: Timestamp, change: impl FnOnce(&mut AttemptFacts)) -> bool {
        let index = self.attempts.iter().position(|facts| facts.name == attempt).unwrap_or_else(|| {
            let new = AttemptFacts { name: attempt.to_owned(), ..AttemptFacts::default() };
            let at = self.attempts.partition_point(|facts| facts.number() < new.number());
            self.attempts.insert(at, new);
            at
        });
        let facts = &mut self.attempts[index];
        let before = signature(facts);
        change(facts);
        if self.orphaned || facts.released {
            facts.drop_gone();
        }
        let changed = signature(facts) != before;
        if changed {
            facts.changed = Some(now);
        }
        self.drop_empty();
        changed
    }

    /// Drops attempts of which nothing is left.
    pub(super) fn drop_empty(&mut self) {
        self.attempts.retain(|facts| !facts.is_empty());
    }
}
