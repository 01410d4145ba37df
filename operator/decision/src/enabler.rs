//! Enablers are accepted provisionally: they remain accepted only if a phase that requires them is accepted.

use crate::draft::Draft;
use crate::reason::Reason;
use crate::revert::revert;
use crate::revision::accepted;
use crate::step::Step;
use pawl_api::spec::{Pin, Role, Scope};

/// Reverts the last enabler that no accepted phase requires. All phases are final at this point.
pub(crate) fn advance(draft: &mut Draft<'_>) -> Step {
    let phases = draft.spec.phases.iter().zip(&draft.status.phases);
    let useless = phases.enumerate().rev().find(|(_, (phase, status))| {
        let mut all = draft.spec.phases.iter().zip(&draft.status.phases);
        let needed = all.any(|(other, status)| other.requires.contains(&phase.name) && accepted(status));
        phase.role == Role::Enabler && phase.pin != Some(Pin::Accepted) && accepted(status) && !needed
    });
    let Some((index, _)) = useless else { return Step::Pass };
    let message = "no phase that requires it was accepted";
    revert(draft, index, Scope::Phase, Reason::NothingNeedsIt, message);
    Step::Moved
}
