//! The end of a stage.

use super::outcome::described;
use super::{Open, whole_hash};
use crate::draft::{Draft, bounded};
use crate::reason::Reason;
use crate::step::Step;
use pawl_api::status::{BestTrial, SearchState};
use pawl_search::history::State;

/// Ends the stage with this trial.
pub(super) fn end(draft: &mut Draft<'_>, open: &Open, number: u32, values: &[f64], evidence: &str) -> Step {
    let spec = &draft.spec.search[open.index];
    let found = described(spec, values);
    let accepted = open.recorded.first().filter(|recorded| number != 0 && recorded.trial.state == State::Complete);
    let before = accepted.map(|recorded| format!("; trial 0: {}", described(spec, &recorded.trial.values)));
    let message =
        format!("trial {number} of {}: {found} ({evidence}){}", open.recorded.len(), before.unwrap_or_default());
    let winner = open.result(number, values);
    finish(draft, open, winner, &message)
}

/// Ends the stage with these settings.
pub(super) fn finish(draft: &mut Draft<'_>, open: &Open, winner: BestTrial, message: &str) -> Step {
    record(draft, open, Some(winner), message);
    let text = format!("search {}: {message}", draft.spec.search[open.index].name);
    draft.normal(Reason::SearchDone, text, None);
    Step::Moved
}

/// Records that the stage has ended; without a winner the settings of its trial 0 remain.
pub(super) fn record(draft: &mut Draft<'_>, open: &Open, winner: Option<BestTrial>, message: &str) {
    let completed = whole_hash(draft.spec, open.index);
    let status = &mut draft.status.search[open.index];
    (status.state, status.winner, status.completed) = (SearchState::Done, winner, completed);
    status.message = bounded(message);
}
