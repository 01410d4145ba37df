//! Suspension and the deadline.

use crate::draft::Draft;
use crate::reason::Reason;
use crate::retry::{after, time};
use crate::step::Next;
use jiff::Timestamp;
use pawl_api::status::Stage;

/// Time of the job's deadline, if any; time while suspended, queued or complete does not count.
pub(crate) fn deadline_at(draft: &Draft<'_>) -> Option<Timestamp> {
    let limit = draft.spec.lifecycle.active_deadline.as_ref()?.get().as_secs();
    let start = draft.status.start_time.as_deref().and_then(time)?;
    let status = &draft.status;
    let queued = draft.queued_since();
    let since = status.suspended_since.as_deref().or(status.completion_time.as_deref()).or(queued).and_then(time);
    let now = since.map_or(0, |since| seconds_between(since, draft.now));
    let suspended = status.suspended_seconds.saturating_add(now);
    Some(after(start, limit.saturating_add(suspended)))
}

/// Whole seconds from one time to another; 0 when they are reversed.
pub(crate) fn seconds_between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.as_second().saturating_sub(from.as_second())).unwrap_or(0)
}

/// What should run, unless the job is suspended or exceeds its deadline. A job that is done stays done.
pub(crate) fn limited(draft: &mut Draft<'_>, next: Next) -> Next {
    match next {
        Next::Idle(_) => next,
        Next::Run(_) | Next::Several { .. } | Next::Drain if draft.spec.suspend => Next::Idle(Stage::Suspended),
        Next::Run(_) | Next::Several { .. } | Next::Drain => {
            let Some(limit) = draft.spec.lifecycle.active_deadline.as_ref() else { return next };
            if deadline_at(draft).is_none_or(|deadline| deadline > draft.now) {
                return next;
            }
            let message = format!("active for longer than lifecycle.activeDeadline {limit}: raise it to resume");
            draft.fail(Reason::DeadlineExceeded, &message);
            Next::Idle(Stage::Failed)
        }
    }
}

/// Records that Kueue admitted the attempt: the time in which no other one was admitted either does not count.
pub(crate) fn leave_queue(draft: &mut Draft<'_>, name: &str) {
    let since = draft.queued_since().and_then(time);
    let now = draft.now;
    let Some(attempt) = draft.attempt_mut(name) else { return };
    if attempt.queued_since.take().is_none() {
        return;
    }
    attempt.started = now.to_string();
    let waited = since.map_or(0, |since| seconds_between(since, now));
    draft.status.suspended_seconds = draft.status.suspended_seconds.saturating_add(waited);
}

/// Updates the suspended time and the completion time.
pub(crate) fn keep_time(draft: &mut Draft<'_>) {
    let now = draft.now.to_string();
    let status = &mut draft.status;
    match (status.stage, status.suspended_since.take()) {
        (Stage::Suspended, since) => status.suspended_since = Some(since.unwrap_or_else(|| now.clone())),
        (_, Some(since)) => {
            let seconds = time(&since).map_or(0, |since| seconds_between(since, draft.now));
            status.suspended_seconds = status.suspended_seconds.saturating_add(seconds);
        }
        (_, None) => {}
    }
    match status.stage {
        Stage::Complete | Stage::Failed => {
            status.completion_time.get_or_insert(now);
        }
        Stage::Pending
        | Stage::Preflight
        | Stage::Optimizing
        | Stage::Searching
        | Stage::Training
        | Stage::Suspended => {
            // The job was complete and resumes after a change of the spec.
            let done = status.completion_time.take().and_then(|done| time(&done));
            let seconds = done.map_or(0, |done| seconds_between(done, draft.now));
            status.suspended_seconds = status.suspended_seconds.saturating_add(seconds);
        }
    }
}
