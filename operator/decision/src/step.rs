//! What the parts of a decision hand to each other.

use crate::draft::Draft;
use crate::launch::Work;
use pawl_api::status::Stage;

/// What should run now.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// These launches.
    Run(Work),
    /// Nothing until the attempt that is alive has ended.
    Drain,
    /// Nothing.
    Idle(Stage),
}

/// What a part of the decision did.
pub(crate) enum Step {
    /// The status moved: look at everything again.
    Moved,
    /// This is next.
    Go(Next),
    /// It has nothing to do or to wait for.
    Pass,
}

/// The parts, in the order in which a job goes through them.
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
