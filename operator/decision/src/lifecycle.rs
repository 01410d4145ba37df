//! Suspension and the deadline.

use crate::draft::Draft;
use crate::retry::{after, time};
use crate::step::{Next, Step};
use jiff::Timestamp;
use pawl_api::status::Stage;

/// When the job's deadline is, if it has one; suspended time does not count.
pub(crate) fn deadline_at(draft: &Draft<'_>) -> Option<Timestamp> {
    let limit = draft.spec.lifecycle.active_deadline.as_ref()?.get().as_secs();
    let start = draft.status.start_time.as_deref().and_then(time)?;
    let since = draft.status.suspended_since.as_deref().and_then(time);
    let now = since.map_or(0, |since| seconds_between(since, draft.now));
    let suspended = draft.status.suspended_seconds.saturating_add(now);
    Some(after(start, limit.saturating_add(suspended)))
}

/// Whole seconds from one time to another; 0 when they are reversed.
pub(crate) fn seconds_between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.as_second().saturating_sub(from.as_second())).unwrap_or(0)
}

/// The job was active for too long. A job that is done is not late.
pub(crate) fn deadline(draft: &mut Draft<'_>) -> Step {
    let late = deadline_at(draft).is_some_and(|deadline| deadline <= draft.now);
    if !late || draft.status.stage == Stage::Complete || draft.spec.suspend {
        return Step::Pass;
    }
    let limit = draft.spec.lifecycle.active_deadline.as_ref().map(|limit| limit.to_string()).unwrap_or_default();
    let message = format!("active for longer than lifecycle.activeDeadline {limit}");
    draft.fail("DeadlineExceeded", &message);
    Step::Moved
}

/// A person suspended the job. One that is done stays done.
pub(crate) fn suspended(draft: &mut Draft<'_>) -> Step {
    if draft.spec.suspend && draft.status.stage != Stage::Complete {
        return Step::Go(Next::Idle(Stage::Suspended));
    }
    Step::Pass
}

/// Keeps count of the time spent suspended, and of begin and end.
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
        | Stage::Suspended => status.completion_time = None,
    }
}
