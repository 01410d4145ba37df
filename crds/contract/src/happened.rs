//! What happened to a job: what `pawl run` prints as a line, and the operator publishes as a Kubernetes event, which
//! the API server deletes after an hour.

use crate::text::truncated;
use serde::{Deserialize, Serialize};

/// Longest description that is kept, bytes.
pub const MAX_MESSAGE: usize = 1024;
/// Maximum size of [`Recent`] events, bytes: their texts, and [`OTHERS`] for each.
const MAX_RECENT: usize = 2048;
/// Seconds within which events that say the same are one: longer than a decision takes to be repeated.
const REPEATED: u64 = 120;
/// Bytes that an event takes beside its texts, in JSON.
const OTHERS: usize = 64;

/// One event of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Happened {
    /// Seconds since 1970.
    #[serde(default)]
    pub time: u64,
    /// Whether it requires attention.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warning: bool,
    /// Reason, in one CamelCase word.
    pub reason: String,
    /// What happened.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The phase that it concerns, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

impl Happened {
    /// This with a description of at most [`MAX_MESSAGE`] bytes.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let end = truncated(&self.message, MAX_MESSAGE).len();
        self.message.truncate(end);
        self
    }

    /// Whether `other` says the same, whenever it happened.
    fn says_the_same(&self, other: &Self) -> bool {
        (&self.reason, &self.message) == (&other.reason, &other.message)
    }

    /// Whether `other` says the same, and at nearly the same time: a decision that was repeated, or another account of
    /// the same event.
    ///
    /// ```
    /// use pawl_contract::happened::Happened;
    ///
    /// let at = |time| Happened {
    ///     time, warning: true, reason: "AttemptFailed".to_owned(), message: "exit code 1".to_owned(), phase: None,
    /// };
    /// assert!(at(1000).is_same(&at(1020)) && !at(1000).is_same(&at(4600)), "it failed again");
    /// ```
    pub fn is_same(&self, other: &Self) -> bool {
        self.says_the_same(other) && self.time.abs_diff(other.time) <= REPEATED
    }

    fn size(&self) -> usize {
        OTHERS + self.reason.len() + self.message.len() + self.phase.as_ref().map_or(0, String::len)
    }
}

/// The newest events of a job, oldest first: about 2 KiB, for the next attempt to keep.
///
/// ```
/// use pawl_contract::happened::{Happened, Recent};
///
/// let event = |time| Happened {
///     time, warning: false, reason: "Paused".to_owned(), message: "by hand".to_owned(), phase: None,
/// };
/// let mut recent = Recent::default();
/// recent.add(event(1));
/// recent.add(event(2));
/// assert_eq!(recent.events(), [event(2)], "of those that say the same, the newest");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Recent(Vec<Happened>);

impl Recent {
    /// Adds an event in place of one that says the same. The oldest ones make room for it.
    pub fn add(&mut self, event: Happened) {
        let event = event.bounded();
        self.0.retain(|known| !known.says_the_same(&event));
        self.0.push(event);
        let mut size: usize = self.0.iter().map(Happened::size).sum();
        while size > MAX_RECENT && self.0.len() > 1 {
            size -= self.0.remove(0).size();
        }
    }

    /// The events, oldest first.
    pub fn events(&self) -> &[Happened] {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_events_are_kept_within_the_bound() {
        let mut recent = Recent::default();
        for number in 0..1_000u64 {
            let message = format!("{number}: {}", "é".repeat(number as usize));
            let event = Happened { time: number, warning: false, reason: "A".to_owned(), message, phase: None };
            recent.add(event);
            let newest = recent.events().last().unwrap();
            assert!(newest.time == number && newest.message.len() <= MAX_MESSAGE);
            assert!(serde_json::to_vec(recent.events()).unwrap().len() <= MAX_RECENT + MAX_MESSAGE);
        }
        assert_eq!(recent.events().first().unwrap().time, 999, "two long ones do not fit");
    }
}
