//! The attempts that have not ended: one, or several while a search runs several trials at the same time.
//!
//! A decision knows them by name. That the status has the first one in `attempt` and the others in `parallel` is known
//! here only.
//!
//! # Why a task never has two gangs
//! - A task whose attempt is in the status gets no other one: it is started again under its name, and names are unique.
//! - An attempt leaves the status only after it was observed to have ended.
//! - The name of an attempt that was never observed may be given to another task: a gang of the first may exist under
//!   it. Therefore no further name is used until all attempts in the status were observed, nor while an observed gang
//!   runs another plan than the one in the status.

use crate::draft::Draft;
use crate::observed::{AttemptState, Observed};
use crate::retry::time;
use pawl_api::status::{AttemptStatus, Purpose};

impl Draft<'_> {
    /// The attempts that have not ended.
    pub fn under_way(&self) -> impl Iterator<Item = &AttemptStatus> {
        self.status.under_way()
    }

    /// Their names.
    pub fn under_way_names(&self) -> Vec<String> {
        self.under_way().map(|attempt| attempt.name.clone()).collect()
    }

    /// The attempt of this name, if it has not ended.
    pub fn attempt(&self, name: &str) -> Option<&AttemptStatus> {
        self.under_way().find(|attempt| attempt.name == name)
    }

    /// As [`Self::attempt`].
    pub fn attempt_mut(&mut self, name: &str) -> Option<&mut AttemptStatus> {
        self.status.under_way_mut().find(|attempt| attempt.name == name)
    }

    /// The attempt that trains: there is at most one.
    pub fn training_attempt(&self) -> Option<&AttemptStatus> {
        self.under_way().find(|attempt| attempt.purpose == Purpose::Train)
    }

    /// As [`Self::training_attempt`].
    pub fn training_attempt_mut(&mut self) -> Option<&mut AttemptStatus> {
        self.status.under_way_mut().find(|attempt| attempt.purpose == Purpose::Train)
    }

    /// Adds an attempt, or replaces the one of its name.
    pub fn set_attempt(&mut self, new: AttemptStatus) {
        if let Some(old) = self.attempt_mut(&new.name) {
            *old = new;
        } else if self.status.attempt.is_none() {
            self.status.attempt = Some(new);
        } else {
            self.status.parallel.push(new);
        }
    }

    /// The attempt of this name has ended.
    pub fn end_attempt(&mut self, name: &str) {
        let others = self.status.attempt.take().into_iter().chain(std::mem::take(&mut self.status.parallel));
        let mut others = others.filter(|attempt| attempt.name != name);
        self.status.attempt = others.next();
        self.status.parallel = others.collect();
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
