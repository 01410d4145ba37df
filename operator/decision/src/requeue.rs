//! The time of the next decision if nothing changes: the nearest deadline.

use crate::attempt::{ending_until, facts_of, pending_since, queued_until, starting_until};
use crate::draft::Draft;
use crate::launch::Work;
use crate::lifecycle::deadline_at;
use crate::observed::{AttemptState, Leaving, Observed};
use crate::retry::after as later;
use crate::search::next_late;
use crate::step::Next;
use jiff::Timestamp;
use pawl_api::status::{AttemptStatus, Stage};
use std::time::Duration;

/// Time until the nearest deadline, plus a millisecond, so that it has passed by then.
pub(crate) fn after(draft: &Draft<'_>, observed: &Observed, next: &Next) -> Option<Duration> {
    let running = !matches!(next, Next::Idle(Stage::Complete | Stage::Failed | Stage::Suspended));
    let deadline = deadline_at(draft).filter(|_| running && draft.queued_since().is_none());
    let waits = |work: &&Work| match next {
        Next::Several { .. } => !draft.under_way().any(|attempt| attempt.seen && attempt.task == work.task),
        Next::Run(_) | Next::Drain | Next::Idle(_) => !draft.draining(),
    };
    let backoff = next.works().iter().filter(waits).filter_map(|work| draft.backoff(&work.task));
    let scheduled = draft.under_way().filter_map(|attempt| scheduled(draft, observed, attempt));
    let late = matches!(next, Next::Several { .. }).then(|| next_late(draft)).flatten();
    let nearest = deadline.into_iter().chain(backoff).chain(scheduled).chain(late).min()?;
    Some(until(draft.now, nearest))
}

/// When an attempt counts as queued, or its time to start or to end is over.
fn scheduled(draft: &Draft<'_>, observed: &Observed, attempt: &AttemptStatus) -> Option<Timestamp> {
    match facts_of(observed, &attempt.name)?.state {
        ref state if state.waits_in_turn() => {
            let unreported = Some(attempt).filter(|attempt| attempt.queued_since.is_none());
            unreported.and_then(|attempt| queued_until(attempt, state))
        }
        AttemptState::Pending { since, ref message, .. } => {
            let late = later(pending_since(attempt, since), draft.spec.lifecycle.scheduling_timeout.get().as_secs());
            let told = Some(starting_until(attempt, since)).filter(|told| message.is_empty() && *told > draft.now);
            Some(told.map_or(late, |told| told.min(late)))
        }
        AttemptState::Leaving(Leaving::Ending { since }) => {
            Some(ending_until(since)).filter(|until| attempt.stop.is_none() && *until > draft.now)
        }
        AttemptState::Queued | AttemptState::Running | AttemptState::Leaving(_) | AttemptState::Ended(_) => None,
    }
}

fn until(now: Timestamp, then: Timestamp) -> Duration {
    let milliseconds = then.as_millisecond().saturating_sub(now.as_millisecond());
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0).saturating_add(1))
}
