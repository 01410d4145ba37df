//! Reverting what was accepted: the fold without that patch, and without those that require it.

use crate::draft::Draft;
use crate::reason::Reason;
use crate::revision::accepted;
use pawl_api::spec::{Numerics, Pin, Scope};
use pawl_api::status::PhaseState;
use std::collections::BTreeSet;

/// What is looked for when a responsible phase is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The last accepted one that changes the mathematics, then the last accepted one.
    Numerics,
    /// The last accepted one.
    Newest,
}

/// Accepted phases that measurement may revert: a pin beats it.
fn revertible(draft: &Draft<'_>) -> impl DoubleEndedIterator<Item = usize> {
    let phases = draft.spec.phases.iter().zip(&draft.status.phases).enumerate();
    let free = phases.filter(|(_, (phase, status))| accepted(status) && phase.pin != Some(Pin::Accepted));
    free.map(|(index, _)| index).collect::<Vec<_>>().into_iter()
}

/// The accepted phases that can explain a failure, the likeliest first.
pub(crate) fn suspects(draft: &Draft<'_>, blame: Blame) -> Vec<usize> {
    let mut found: Vec<usize> = revertible(draft).rev().collect();
    if blame == Blame::Numerics {
        found.sort_by_key(|index| draft.spec.phases[*index].numerics != Numerics::Changed);
    }
    found
}

/// The accepted phase that can explain a failure best.
pub(crate) fn responsible(draft: &Draft<'_>, blame: Blame) -> Option<usize> {
    suspects(draft, blame).first().copied()
}

/// The accepted phases that go when the phase at `index` goes.
pub(crate) fn with_dependents(draft: &Draft<'_>, index: usize) -> BTreeSet<usize> {
    let mut gone = BTreeSet::from([index]);
    for later in revertible(draft).filter(|later| *later > index) {
        let requires = &draft.spec.phases[later].requires;
        if gone.iter().any(|gone| requires.contains(&draft.spec.phases[*gone].name)) {
            gone.insert(later);
        }
    }
    gone
}

/// Reverts the phase at `index` and, by `scope`, others.
pub(crate) fn revert(draft: &mut Draft<'_>, index: usize, scope: Scope, reason: Reason, message: &str) {
    let also: BTreeSet<usize> = match scope {
        Scope::Phase => with_dependents(draft, index),
        Scope::Dependents => revertible(draft).filter(|other| *other >= index).collect(),
        Scope::All => revertible(draft).collect(),
    };
    let state = if draft.draining() { PhaseState::RollingBack } else { PhaseState::RolledBack };
    let name = draft.spec.phases[index].name.clone();
    for other in also.into_iter().chain([index]).collect::<BTreeSet<_>>() {
        draft.status.phases[other].held = true;
        if other == index {
            draft.phase_to(other, state, reason, message);
        } else {
            draft.phase_to(other, state, Reason::RevertedWith, &format!("reverted with {name}: {message}"));
        }
    }
}
