//! The parts of a decision, in their order.

use crate::draft::Draft;
use crate::step::{Next, Step};
use pawl_api::status::Stage;

/// The parts, in order.
const PARTS: &[fn(&mut Draft<'_>) -> Step] = &[
    crate::refuse::failed,
    crate::refuse::refuse,
    crate::pin::apply,
    crate::preflight::advance,
    crate::phase::advance,
    crate::enabler::advance,
    crate::bundle::advance,
    crate::goal::paused,
    crate::search::advance,
    crate::train::advance,
];

/// Advances the job as far as the evidence in its status allows, and returns what should run.
pub(crate) fn settle(draft: &mut Draft<'_>) -> Next {
    // Every step advances a phase, a fallback, the bundle or a search; no job needs as many steps as this bound.
    let bound = 64
        + 16 * draft.spec.phases.iter().map(|phase| 4 + phase.fallbacks.len()).sum::<usize>()
        + 16 * draft.spec.search.len();
    'moved: for _ in 0..bound {
        for part in PARTS {
            match part(draft) {
                Step::Moved => continue 'moved,
                Step::Go(next) => return next,
                Step::Pass => {}
            }
        }
        return Next::Idle(Stage::Complete);
    }
    Next::Drain
}
