//! The time of the next decision if nothing changes: the nearest deadline.

use crate::attempt::{current, pending_since, queued_until};
use crate::draft::Draft;
use crate::lifecycle::deadline_at;
use crate::observed::{AttemptState, Observed};
use crate::retry::after as later;
use crate::step::Next;
use jiff::Timestamp;
use pawl_api::status::Stage;
use std::time::Duration;

/// Time until the nearest deadline, plus a millisecond, so that it has passed by then.
pub(crate) fn after(draft: &Draft<'_>, observed: &Observed, next: &Next) -> Option<Duration> {
    let running = !matches!(next, Next::Idle(Stage::Complete | Stage::Failed | Stage::Suspended));
    let queued = draft.status.attempt.as_ref().is_some_and(|attempt| attempt.queued_since.is_some());
    let deadline = deadline_at(draft).filter(|_| running && !queued);
    let backoff = match next {
        Next::Run(work) if !draft.draining() => draft.backoff(&work.trial),
        Next::Run(_) | Next::Drain | Next::Idle(_) => None,
    };
    let scheduled = current(draft, observed).and_then(|facts| match facts.state {
        ref state if state.waits_in_turn() => draft.status.attempt.as_ref().filter(|_| !queued).and_then(queued_until),
        AttemptState::Pending { since, .. } => {
            let attempt = draft.status.attempt.as_ref()?;
            Some(later(pending_since(attempt, since), draft.spec.lifecycle.scheduling_timeout.get().as_secs()))
        }
        AttemptState::Queued | AttemptState::Running | AttemptState::Leaving(_) | AttemptState::Ended(_) => None,
    });
    let nearest = [deadline, backoff, scheduled].into_iter().flatten().min()?;
    Some(until(draft.now, nearest))
}

fn until(now: Timestamp, then: Timestamp) -> Duration {
    let milliseconds = then.as_millisecond().saturating_sub(now.as_millisecond());
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0).saturating_add(1))
}
