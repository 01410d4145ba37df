//! Pins: manual overrides of verdicts, effective immediately.

use crate::draft::Draft;
use crate::phase::reopen;
use crate::reason::Reason;
use crate::revision::accepted;
use crate::step::Step;
use pawl_api::spec::Pin;
use pawl_api::status::PhaseState;

/// Applies the pin of every phase, and re-opens the phases whose pin was removed.
pub(crate) fn apply(draft: &mut Draft<'_>) -> Step {
    let moved = (0..draft.spec.phases.len()).filter(|&index| apply_to(draft, index)).count();
    if moved > 0 { Step::Moved } else { Step::Pass }
}

fn apply_to(draft: &mut Draft<'_>, index: usize) -> bool {
    let status = &mut draft.status.phases[index];
    let is_pinned = Reason::Pinned.is(&status.reason) && status.state.is_final();
    match draft.spec.phases[index].pin {
        Some(Pin::Accepted) if !is_pinned || status.state != PhaseState::Accepted => {
            if !accepted(status) {
                status.fallback = 0;
                status.training_fallback = None;
            }
            status.held = false;
            draft.phase_to(index, PhaseState::Accepted, Reason::Pinned, "pin: Accepted");
            true
        }
        Some(Pin::RolledBack) if !is_pinned || status.state != PhaseState::RolledBack => {
            status.held |= accepted(status);
            draft.phase_to(index, PhaseState::RolledBack, Reason::Pinned, "pin: RolledBack");
            true
        }
        Some(Pin::DryRun) if accepted(status) && !is_pinned => {
            status.held = false;
            let message = format!("dry run; it was Accepted ({}): {}", status.reason, status.message);
            draft.phase_to(index, PhaseState::RolledBack, Reason::DryRun, &message);
            true
        }
        None | Some(Pin::DryRun) if is_pinned => {
            reopen(draft, index, Reason::Unpinned, "its pin was removed: it is evaluated");
            true
        }
        None if Reason::DryRun.is(&status.reason) && status.state.is_final() => {
            reopen(draft, index, Reason::Unpinned, "its pin was removed: it is evaluated");
            true
        }
        Some(Pin::Accepted | Pin::RolledBack | Pin::DryRun) | None => false,
    }
}
