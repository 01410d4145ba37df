//! The action when the accepted phases together miss a gate.

use crate::draft::Draft;
use crate::reason::Reason;
use crate::revert::{Blame, responsible, revert};
use crate::step::{Next, Step};
use pawl_api::spec::{OnGoalMissed, Scope};
use pawl_api::status::{PhaseState, Stage};

/// Applies `rollback.onGoalMissed`. Returns the resulting state of the bundle.
pub(crate) fn missed(draft: &mut Draft<'_>, message: &str) -> PhaseState {
    match draft.spec.rollback.on_goal_missed {
        OnGoalMissed::KeepAccepted => PhaseState::Accepted,
        OnGoalMissed::Pause => PhaseState::Inconclusive,
        OnGoalMissed::RollBackAll => {
            if let Some(index) = responsible(draft, Blame::Newest) {
                revert(draft, index, Scope::All, Reason::GoalMissed, message);
            }
            PhaseState::RolledBack
        }
    }
}

/// Suspends the job when the goal was missed and `rollback.onGoalMissed` is Pause.
pub(crate) fn paused(draft: &mut Draft<'_>) -> Step {
    let missed = draft.status.bundle.as_ref().is_some_and(|bundle| Reason::GoalMissed.is(&bundle.reason));
    match draft.spec.rollback.on_goal_missed {
        OnGoalMissed::Pause if missed => Step::Go(Next::Idle(Stage::Suspended)),
        OnGoalMissed::Pause | OnGoalMissed::KeepAccepted | OnGoalMissed::RollBackAll => Step::Pass,
    }
}
