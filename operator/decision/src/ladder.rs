//! A phase's ladder: rungs are tried in order, each at most once; a rung replaces the one before.

use crate::comparison::Comparison;
use crate::draft::Draft;
use crate::launch::Target;
use pawl_api::spec::Trigger;
use pawl_api::status::PhaseState;

/// Rungs taken by the phase of a comparison.
pub(crate) fn rung(comparison: &Comparison<'_>) -> u32 {
    match comparison.target {
        Target::Phase(index) => comparison.draft.status.phases.get(index).map_or(0, |phase| phase.rung),
        Target::PreflightBaseline
        | Target::PreflightPhase { .. }
        | Target::Baseline
        | Target::Bundle
        | Target::Train => 0,
    }
}

/// Takes the next rung that answers `trigger`; `false` when there is none.
pub(crate) fn take(draft: &mut Draft<'_>, index: usize, trigger: Trigger, reason: &str, message: &str) -> bool {
    let spec = &draft.spec.phases[index];
    let phase = &mut draft.status.phases[index];
    let rungs = spec.fallbacks.iter().enumerate().skip(phase.rung as usize);
    let Some((found, _)) = rungs.into_iter().find(|(_, fallback)| fallback.when.contains(&trigger)) else {
        return false;
    };
    phase.rung = found as u32 + 1;
    phase.launches.clear();
    phase.speedup = None;
    phase.quality = None;
    phase.peak_memory = None;
    phase.predicted_memory = None;
    let message = format!("{message}; rung {} of {} is tried", found + 1, spec.fallbacks.len());
    draft.phase_to(index, PhaseState::Retrying, reason, &message);
    true
}
