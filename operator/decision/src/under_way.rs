//! The attempts that have not ended: one, or several while a search runs several trials at the same time.
//!
//! The parts of a decision that concern an attempt regard `status.attempt`. [`Draft::with_attempt`] makes each attempt that one
//! in turn, so that what holds for a single attempt holds for each of several.
//!
//! # Why a trial never has two gangs
//! - A trial whose attempt is in the status gets no other one: it is started again under its name, and names are unique.
//! - An attempt leaves the status only after it was observed to have ended.
//! - The name of an attempt that was never observed may be given to another trial: a gang of the first may exist under it.
//!   Therefore no further name is used until all attempts in the status were observed, nor while an observed gang runs another
//!   plan than the one in the status.

use crate::draft::Draft;
use crate::observed::{AttemptState, Observed};
use crate::retry::time;
use pawl_api::status::AttemptStatus;

impl Draft<'_> {
    /// The attempts that have not ended.
    pub fn under_way(&self) -> impl Iterator<Item = &AttemptStatus> {
        self.status.under_way()
    }

    /// Makes the attempt with this index the only one that `visit` regards; if it ends, the others close up.
    pub fn with_attempt<T>(&mut self, index: usize, visit: impl FnOnce(&mut Self) -> T) -> T {
        self.exchange(index);
        let result = visit(self);
        if self.status.attempt.is_some() {
            self.exchange(index);
        } else if !self.status.parallel.is_empty() {
            self.status.attempt = Some(self.status.parallel.remove(index.saturating_sub(1)));
        }
        result
    }

    /// Exchanges the first attempt and that with this index.
    fn exchange(&mut self, index: usize) {
        let other = index.checked_sub(1).and_then(|index| self.status.parallel.get_mut(index));
        if let (Some(first), Some(other)) = (self.status.attempt.as_mut(), other) {
            std::mem::swap(first, other);
        }
    }

    /// Visits the attempts until `visit` returns true; without any, calls it once.
    pub fn any_attempt(&mut self, mut visit: impl FnMut(&mut Self) -> bool) -> bool {
        (0..self.under_way().count().max(1)).any(|index| self.with_attempt(index, &mut visit))
    }

    /// Adds an attempt that `begin` makes.
    pub fn add_attempt<T>(&mut self, begin: impl FnOnce(&mut Self) -> T) -> T {
        let first = self.status.attempt.take();
        let result = begin(self);
        if let Some(first) = first {
            self.status.parallel.extend(self.status.attempt.replace(first));
        }
        result
    }

    /// Whether an attempt was observed and has not been observed to end.
    pub fn draining(&self) -> bool {
        self.under_way().any(|attempt| attempt.seen)
    }

    /// Time since which all attempts wait in their queue; `None` while one does not.
    pub fn queued_since(&self) -> Option<&str> {
        let since = self.under_way().map(|attempt| attempt.queued_since.as_deref());
        since.collect::<Option<Vec<_>>>()?.into_iter().max_by_key(|since| time(since))
    }
}

/// Whether a gang runs another plan than the one that the status has under its name.
pub(crate) fn is_mistaken(draft: &Draft<'_>, observed: &Observed) -> bool {
    let alive = observed.attempts.iter().filter(|facts| !matches!(facts.state, AttemptState::Ended(_)));
    let mut planned =
        alive.flat_map(|facts| draft.under_way().filter(|a| a.name == facts.name).map(move |a| (facts, a)));
    planned.any(|(facts, attempt)| facts.plan_hash != attempt.plan_hash)
}
