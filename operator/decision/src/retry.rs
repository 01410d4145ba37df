//! Infrastructure failures: missing data is never a verdict, it is tried again; budgeted and backed off.

use crate::draft::{Draft, bounded};
use crate::reason::Reason;
use jiff::{SignedDuration, Timestamp};
use pawl_api::status::RetryStatus;
use pawl_contract::exit::Outcome;

/// Wait after the first failure, seconds; it doubles with each. Ranks that were taken away come back at once, once.
const FIRST_BACKOFF: u64 = 10;
/// Longest wait, seconds.
const LONGEST_BACKOFF: u64 = 300;

/// Why a result says nothing about the settings.
pub(crate) struct Missing {
    pub message: String,
    /// How the accepted settings failed, when it is that.
    pub control_outcome: Option<Outcome>,
    /// Those settings are the baseline's.
    pub baseline: bool,
    /// The ranks were taken away: a deleted pod, a lost node. Nothing says that it would happen again at once.
    pub taken: bool,
}

impl Missing {
    /// Something that says nothing about any settings.
    pub fn because(message: String) -> Self {
        Self { message, control_outcome: None, baseline: false, taken: false }
    }
}

/// A time of the status.
pub(crate) fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// `from` and a number of seconds; the end of time when that is beyond it.
pub(crate) fn after(from: Timestamp, seconds: u64) -> Timestamp {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    from.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

impl Draft<'_> {
    /// Counts a failure against the trial's budget.
    pub fn count_failure(&mut self, trial: &str, missing: &Missing) {
        let message = &missing.message;
        let before = self.status.retry.take().filter(|retry| retry.trial == trial).map_or(0, |retry| retry.count);
        let wait = match before {
            0 if missing.taken => 0,
            _ => FIRST_BACKOFF.saturating_mul(1 << before.min(16)).min(LONGEST_BACKOFF),
        };
        let budget = self.spec.lifecycle.max_restarts;
        let count = before.saturating_add(1);
        let text = format!("{message} (failure {count}, lifecycle.maxRestarts {budget})");
        self.warning(Reason::AttemptFailed, format!("{trial}: {text}"), None);
        self.status.retry = Some(RetryStatus {
            trial: trial.to_owned(),
            control_outcome: missing.control_outcome,
            baseline_failed: missing.baseline,
            count,
            not_before: Some(after(self.now, wait).to_string()),
            message: bounded(message),
        });
    }

    /// The trial's failures, when they are more than the budget.
    pub fn exhausted(&self, trial: &str) -> Option<RetryStatus> {
        let retry = self.status.retry.as_ref().filter(|retry| retry.trial == trial)?;
        (retry.count > self.spec.lifecycle.max_restarts).then(|| retry.clone())
    }

    /// Until when the trial must wait, when that is in the future.
    pub fn backoff(&self, trial: &str) -> Option<Timestamp> {
        let retry = self.status.retry.as_ref().filter(|retry| retry.trial == trial)?;
        retry.not_before.as_deref().and_then(time).filter(|until| *until > self.now)
    }
}
