//! Reverts accepted phases: removes the patch of a phase, and of the phases that require it, from the settings.

use crate::draft::Draft;
use crate::reason::Reason;
use crate::revision::accepted;
use pawl_api::spec::{Pin, Role, Scope};
use pawl_api::status::PhaseState;
use std::collections::BTreeSet;

/// Order in which accepted phases are suspected of having caused a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// First the newest accepted phase that changes the numerics, then the newest accepted phase.
    Numerics,
    /// The newest accepted phase first.
    Newest,
}

/// Accepted phases that may be reverted: those that are not pinned.
fn revertible(draft: &Draft<'_>) -> impl DoubleEndedIterator<Item = usize> {
    let phases = draft.spec.phases.iter().zip(&draft.status.phases).enumerate();
    let free = phases.filter(|(_, (phase, status))| accepted(status) && phase.pin != Some(Pin::Accepted));
    free.map(|(index, _)| index).collect::<Vec<_>>().into_iter()
}

/// The accepted phases that may have caused a failure, the most likely first.
pub(crate) fn suspects(draft: &Draft<'_>, blame: Blame) -> Vec<usize> {
    let mut found: Vec<usize> = revertible(draft).rev().collect();
    if blame == Blame::Numerics {
        found.sort_by_key(|index| !draft.is_judged_as_changed(*index));
    }
    found
}

/// The accepted phase that most likely caused a failure.
pub(crate) fn responsible(draft: &Draft<'_>, blame: Blame) -> Option<usize> {
    suspects(draft, blame).first().copied()
}

/// The accepted phase whose speedup is the least certain: whose lower bound is the smallest multiple of its threshold.
/// Enablers are not accepted for their speed.
pub(crate) fn least_certain(draft: &Draft<'_>) -> Option<usize> {
    let certainty = |index: &usize| {
        let speedup = draft.status.phases[*index].speedup.as_ref();
        let lower = speedup.and_then(|speedup| speedup.lower.as_ref().or(Some(&speedup.estimate)));
        lower.map_or(f64::INFINITY, |lower| lower.value() / draft.spec.phases[*index].min_speedup())
    };
    let selected = revertible(draft).filter(|index| draft.spec.phases[*index].role == Role::Optimization);
    selected.min_by(|a, b| certainty(a).total_cmp(&certainty(b)))
}

/// The phase at `index` and the accepted phases that depend on it.
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

/// The phase at `index` and the accepted phases that are reverted with it.
pub(crate) fn gone_with(draft: &Draft<'_>, index: usize, scope: Scope) -> BTreeSet<usize> {
    match scope {
        Scope::Phase => with_dependents(draft, index),
        Scope::Dependents => revertible(draft).filter(|other| *other >= index).collect(),
        Scope::All => revertible(draft).collect(),
    }
}

/// Reverts the phase at `index` and, depending on `scope`, others.
pub(crate) fn revert(draft: &mut Draft<'_>, index: usize, scope: Scope, reason: Reason, message: &str) {
    let also = gone_with(draft, index, scope);
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

/// Reverts a phase with the scope of `rollback.scope`.
pub(crate) fn revert_by_scope(draft: &mut Draft<'_>, index: usize, reason: Reason, message: &str) {
    let scope: Scope = draft.spec.rollback.scope;
    revert(draft, index, scope, reason, message);
}
