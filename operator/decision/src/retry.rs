//! Infrastructure failures: missing evidence leads to a retry, never to a verdict; retries are limited, with
//! exponential back-off.

use crate::draft::{Draft, bounded};
use crate::reason::Reason;
use crate::task::Task;
use jiff::{SignedDuration, Timestamp};
use pawl_api::status::{Arm, LaunchStatus, Manner, OwnFailure, RetryStatus};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;
use pawl_contract::report::truncated;

/// Back-off after the first failure, seconds; it doubles with each. After the first loss of ranks there is no back-off.
const FIRST_BACKOFF: u64 = 10;
/// Maximum back-off, seconds.
const LONGEST_BACKOFF: u64 = 300;

/// A program that has ended in the same way so many times in a row, while nothing has succeeded, is not started again.
const ALIKE: u32 = 3;

/// A program that has failed by itself so many times in the same way, while others have succeeded, fails because of its
/// settings.
const TWICE: u32 = 2;

/// First back-off while a storage is full or cannot be used, seconds: somebody has to mend it.
const STORAGE_BACKOFF: u64 = 60;
/// Longest back-off then, seconds: what is mended is found soon.
const LONGEST_STORAGE_BACKOFF: u64 = 120;

/// A launch that finds its storage full, or cannot use it, so many times in a row is not started again: after a quarter
/// of an hour. Other programs on the same storage may fill it for some minutes, and somebody may be mending it.
const STORAGE_ATTEMPTS: u32 = 9;

/// Maximum length of the message of a failure beside the newest one, bytes: there may be one for each running task.
const SHORT: usize = 96;

/// Whether another attempt may succeed where one failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Again {
    /// The infrastructure failed, or may have.
    #[default]
    Useful,
    /// A program ended by itself: not useful once it has ended [`ALIKE`] times in this way and nothing has succeeded.
    Doubtful(Manner),
    /// The settings do not work here: useful only if something has succeeded, elsewhere perhaps.
    Elsewhere,
    /// A storage is full or cannot be used: useful once somebody has mended it.
    OnceStorageWorks(Manner),
    /// What is missing would be missing again.
    Useless,
}

/// Why there is no evidence about the settings of a launch.
pub(crate) struct MissingEvidence {
    pub message: String,
    /// Outcome of the control launch, when the accepted settings failed.
    pub control_outcome: Option<Outcome>,
    /// Whether the failed settings are those of the baseline.
    pub baseline: bool,
    /// Whether ranks were lost, which is unlikely to recur immediately.
    pub ranks_lost: bool,
    /// Whether the cluster ended the attempt or had no devices for it: that does not count as a failure.
    pub disrupted: bool,
    /// Whether another attempt may succeed.
    pub again: Again,
    /// The failure, if it is one of the program itself: evidence once it repeats.
    pub own: Option<OwnFailure>,
}

impl MissingEvidence {
    /// Missing evidence for an infrastructure reason.
    pub fn because(message: String) -> Self {
        Self {
            message,
            control_outcome: None,
            baseline: false,
            ranks_lost: false,
            disrupted: false,
            again: Again::Useful,
            own: None,
        }
    }

    /// Missing evidence because the cluster took the ranks away.
    pub fn disrupted(message: String) -> Self {
        Self { ranks_lost: true, disrupted: true, ..Self::because(message) }
    }
}

/// Parses a time of the status.
pub(crate) fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// `seconds` after `from`, saturating.
pub(crate) fn after(from: Timestamp, seconds: u64) -> Timestamp {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    from.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// How often it failed, and the newest failure.
pub(crate) fn summary(retry: &RetryStatus, budget: u32) -> String {
    let RetryStatus { count, message, .. } = retry;
    match (retry.repeated >= ALIKE || repeats(retry)) && *count <= budget {
        true if *count == 1 => message.clone(),
        true => format!("{count} failures in the same way; the last: {message}"),
        false => format!("{count} failures, lifecycle.maxRestarts is {budget}; the last: {message}"),
    }
}

/// Whether a program has failed by itself in the same way often enough to be evidence.
fn repeats(retry: &RetryStatus) -> bool {
    retry.own_failure.as_ref().is_some_and(|own| own.count >= TWICE)
}

/// The failure of a program itself and how often it has happened. What happens to the machines in between does not
/// change it.
fn counted(before: Option<OwnFailure>, new: Option<OwnFailure>) -> Option<OwnFailure> {
    match (before, new) {
        (Some(before), Some(new)) if before.is_like(&new) => {
            Some(OwnFailure { count: before.count.saturating_add(1), ..new })
        }
        (before, new) => new.or(before),
    }
}

/// Whether the newest failure is one of the storage.
fn is_of_storage(retry: &RetryStatus) -> bool {
    retry.manner.is_some_and(|manner| matches!(manner.outcome, Outcome::StorageFull | Outcome::CheckpointUnreadable))
}

impl Draft<'_> {
    /// Counts a failure or a disruption of the task, and sets the back-off. Only failures are limited.
    pub fn count_failure(&mut self, task: &str, missing: &MissingEvidence) {
        if let Again::OnceStorageWorks(manner) = missing.again {
            return self.wait_for_storage(task, missing, manner);
        }
        let message = &missing.message;
        let before = self.retry(task).cloned().unwrap_or_default();
        let in_a_row = before.count.saturating_add(before.disruptions);
        let wait = match in_a_row {
            0 if missing.ranks_lost => 0,
            _ => FIRST_BACKOFF.saturating_mul(1 << in_a_row.min(16)).min(LONGEST_BACKOFF),
        };
        let count = before.count.saturating_add(u32::from(!missing.disrupted));
        let disruptions = before.disruptions.saturating_add(u32::from(missing.disrupted));
        let repeated = match missing.again {
            Again::Useless | Again::OnceStorageWorks(_) => ALIKE,
            Again::Useful => 0,
            _ if self.has_succeeded() => 0,
            Again::Elsewhere => ALIKE,
            Again::Doubtful(manner) if before.manner == Some(manner) => before.repeated.saturating_add(1),
            Again::Doubtful(_) => 1,
        };
        let manner = match missing.again {
            Again::Doubtful(manner) => Some(manner),
            Again::Useful | Again::Elsewhere | Again::OnceStorageWorks(_) | Again::Useless => None,
        };
        let retry = RetryStatus {
            task: task.to_owned(),
            control_outcome: missing.control_outcome,
            baseline_failed: missing.baseline,
            count,
            disruptions,
            manner,
            repeated,
            own_failure: counted(before.own_failure, missing.own.clone()),
            not_before: Some(after(self.now, wait).to_string()),
            message: bounded(message),
        };
        if missing.disrupted {
            self.warning(Reason::Disrupted, format!("{task}: {message} (not counted as a failure)"), None);
        } else {
            let limit = self.spec.lifecycle.max_restarts;
            let last = self.is_over(&retry);
            let then = if last { "the last attempt".to_owned() } else { format!("again after {wait} s") };
            let text = format!("{task}: {message} (failure {count}, lifecycle.maxRestarts {limit}; {then})");
            self.warning(Reason::AttemptFailed, text, None);
        }
        self.set_retry(retry);
    }

    /// Sets the back-off after a launch that found its storage full, or could not use it. Neither the settings nor the
    /// machines are to blame: it counts against no task, and the job fails when nobody mends it.
    fn wait_for_storage(&mut self, task: &str, missing: &MissingEvidence, manner: Manner) {
        let message = &missing.message;
        let before = self.retry(task).cloned().unwrap_or_default();
        let repeated = if is_of_storage(&before) { before.repeated.saturating_add(1) } else { 1 };
        let wait = STORAGE_BACKOFF.saturating_mul(1 << (repeated - 1).min(16)).min(LONGEST_STORAGE_BACKOFF);
        let (reason, remedy) = if manner.outcome == Outcome::StorageFull {
            (Reason::Outcome(manner.outcome), "make space")
        } else {
            (Reason::StorageUnusable, "mend the storage or its mount")
        };
        if repeated >= STORAGE_ATTEMPTS {
            let again = format!("{remedy}, then set spec.suspend to true and back to false to continue");
            self.fail(reason, &format!("{task}: {message} ({repeated} attempts in a row; {again})"));
        } else {
            let text = format!("{task}: {message} (not counted in lifecycle.maxRestarts; again after {wait} s)");
            self.warning(reason, text, None);
        }
        let not_before = Some(after(self.now, wait).to_string());
        let (task, message) = (task.to_owned(), bounded(message));
        self.set_retry(RetryStatus { task, manner: Some(manner), repeated, not_before, message, ..before });
    }

    /// Sets the failures of a task, which are the newest. Those of others are kept while several trials may run at the
    /// same time.
    fn set_retry(&mut self, newest: RetryStatus) {
        let several = self.spec.search.iter().any(|search| search.parallelism > 1);
        let known = self.status.retry.take().into_iter().chain(std::mem::take(&mut self.status.retries));
        let others = known.filter(|retry| several && retry.task != newest.task);
        let short = |retry: RetryStatus| RetryStatus { message: truncated(&retry.message, SHORT).to_owned(), ..retry };
        self.status.retries = others.map(short).collect();
        self.status.retry = Some(newest);
    }

    /// The failures of the task.
    fn retry(&self, task: &str) -> Option<&RetryStatus> {
        self.status.retry.iter().chain(&self.status.retries).find(|retry| retry.task == task)
    }

    /// Number of failures of the task.
    pub fn failures(&self, task: &str) -> u32 {
        self.retry(task).map_or(0, |retry| retry.count)
    }

    /// The task's failures, when they exceed `lifecycle.maxRestarts` or another attempt would fail in the same way.
    pub fn exhausted(&self, task: &str) -> Option<RetryStatus> {
        self.retry(task).filter(|retry| self.is_over(retry)).cloned()
    }

    fn is_over(&self, retry: &RetryStatus) -> bool {
        let own = retry.own_failure.as_ref().filter(|_| repeats(retry));
        retry.count > self.spec.lifecycle.max_restarts
            || retry.repeated >= ALIKE && !is_of_storage(retry)
            || own.is_some_and(|own| own.control || self.has_worked_elsewhere(&retry.task, own.kind))
    }

    /// Whether the task's settings are to blame for its failures: its program has failed by itself in the same way more
    /// than once, and others have not.
    pub fn is_crashing(&self, task: &str) -> bool {
        let own = self.retry(task).filter(|retry| repeats(retry)).and_then(|retry| retry.own_failure.as_ref());
        own.is_some_and(|own| !own.control && self.has_worked_elsewhere(task, own.kind))
    }

    /// Whether the task's candidate has failed by itself, and it is not known yet whether the control does, too.
    pub fn needs_its_control(&self, task: &str) -> bool {
        let own = self.retry(task).and_then(|retry| retry.own_failure.as_ref());
        own.is_some_and(|own| !own.control && !self.has_worked_elsewhere(task, own.kind))
    }

    /// Whether a launch of this kind has succeeded with other settings than those of the task. Of trials of a search
    /// that nothing succeeds with, the search sees itself.
    fn has_worked_elsewhere(&self, task: &str, kind: LaunchKind) -> bool {
        let status = &self.status;
        let worked = |launch: &&LaunchStatus| launch.kind == kind && launch.outcome == Outcome::Done;
        let others = |launch: &&LaunchStatus, own: bool| !own || launch.arm == Arm::Control;
        match kind {
            LaunchKind::Preflight => status.baseline.is_some(),
            LaunchKind::Search => true,
            LaunchKind::Train => false,
            LaunchKind::Measure | LaunchKind::Quality => {
                let of_phases = status.phases.iter().any(|phase| {
                    let own = Task::of_phase(phase, phase.fallback).to_string() == task;
                    phase.launches.iter().filter(worked).any(|launch| others(&launch, own))
                });
                let mut baseline = status.baseline.iter().flat_map(|baseline| &baseline.launches);
                let bundle = status.bundle.iter().flat_map(|bundle| &bundle.launches);
                of_phases
                    || baseline.any(|launch| worked(&launch))
                    || bundle.filter(worked).any(|launch| others(&launch, true))
            }
        }
    }

    /// Whether a launch of the job has succeeded, or may have: trials of a search are not looked into. Checks do not
    /// count.
    fn has_succeeded(&self) -> bool {
        let status = &self.status;
        let phases = status.phases.iter().flat_map(|phase| &phase.launches);
        let baseline = status.baseline.iter().flat_map(|baseline| &baseline.launches);
        let bundle = status.bundle.iter().flat_map(|bundle| &bundle.launches);
        let worked = |launch: &LaunchStatus| launch.kind != LaunchKind::Preflight && launch.outcome == Outcome::Done;
        phases.chain(baseline).chain(bundle).any(worked)
            || status.training.as_ref().is_some_and(|training| training.measured.items > 0)
            || !status.search.is_empty()
    }

    /// End of the task's back-off, when that is in the future. An end that is further away than any back-off was
    /// written with a clock that was ahead: there is nothing to wait for.
    pub fn backoff(&self, task: &str) -> Option<Timestamp> {
        let retry = self.retry(task)?;
        let longest = after(self.now, LONGEST_BACKOFF);
        retry.not_before.as_deref().and_then(time).filter(|until| *until > self.now && *until <= longest)
    }
}
