//! The parts of a decision, in their order.

use crate::draft::Draft;
use crate::step::{Next, Step};
use pawl_api::status::Stage;

/// In the order in which a job goes through them.
const PARTS: &[fn(&mut Draft<'_>) -> Step] = &[
    crate::refuse::failed,
    crate::refuse::refuse,
    crate::pin::apply,
    crate::preflight::advance,
    crate::phase::advance,
    crate::enabler::advance,
    crate::leave_one_out::advance,
    crate::bundle::advance,
    crate::goal::paused,
    crate::train::advance,
];

/// Moves the job as far as the evidence in its status carries it, and says what should run.
pub(crate) fn settle(draft: &mut Draft<'_>) -> Next {
    // Every move brings a phase, a rung or the bundle further; this bound is far above what any job needs.
    let bound = 64 + 16 * draft.spec.phases.iter().map(|phase| 4 + phase.fallbacks.len()).sum::<usize>();
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
