//! The progress of a search, for the printer column.

use crate::draft::Draft;
use pawl_api::status::SearchState;

/// The first stage that has not ended, and its newest trial: `search quick: trial 3/12`.
pub(crate) fn progress(draft: &Draft<'_>) -> String {
    let mut stages = draft.spec.search.iter().zip(&draft.status.search);
    let Some((spec, status)) = stages.find(|(_, status)| status.state != SearchState::Done) else {
        return String::new();
    };
    match status.state {
        SearchState::Running | SearchState::Done => {
            format!("search {}: trial {}/{}", spec.name, status.trials.len().max(1), spec.trials)
        }
        SearchState::Repeating => format!("search {}: finalists", spec.name),
    }
}
