//! Revisions: the baseline with the accepted patches applied.

use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use crate::reason::Reason;
use pawl_api::spec::{Phase, TrainingJobSpec};
use pawl_api::status::{PhaseState, PhaseStatus, TrainingJobStatus};
use pawl_contract::settings::Settings;

/// Hash of the settings, 12 digits.
pub(crate) fn revision(settings: &Settings) -> String {
    fingerprint(settings, 12)
}

/// The patch of a phase with the fallback of this number (0: none), which replaces earlier fallbacks.
pub fn patch(phase: &Phase, number: u32) -> Settings {
    let fallback = (number as usize).checked_sub(1).and_then(|index| phase.fallbacks.get(index));
    fallback.map_or_else(|| phase.settings.clone(), |fallback| phase.settings.with(&fallback.settings))
}

/// The baseline with the patches of the required phases and of the phase itself, with the fallback of this number (0:
/// none).
pub(crate) fn standalone(spec: &TrainingJobSpec, index: usize, fallback: u32) -> Settings {
    let Some(phase) = spec.phases.get(index) else { return spec.settings.clone() };
    let mut needed: Vec<&str> = phase.requires.iter().map(String::as_str).collect();
    for earlier in spec.phases[..index].iter().rev() {
        if needed.contains(&earlier.name.as_str()) {
            needed.extend(earlier.requires.iter().map(String::as_str));
        }
    }
    let required = spec.phases[..index].iter().filter(|earlier| needed.contains(&earlier.name.as_str()));
    required
        .fold(spec.settings.clone(), |settings, earlier| settings.with(&earlier.settings))
        .with(&patch(phase, fallback))
}

/// The baseline with the effective patches of the phases selected by `keep`, in order.
pub(crate) fn fold(
    spec: &TrainingJobSpec,
    status: &TrainingJobStatus,
    keep: impl Fn(usize, &PhaseStatus) -> bool,
) -> Settings {
    folded(spec, status, keep, PhaseStatus::effective_fallback)
}

/// [`fold`] with the patches as they were evaluated. Input hashes are based on it, so that a fallback selected in
/// training does not repeat evaluations.
pub(crate) fn judged_fold(
    spec: &TrainingJobSpec,
    status: &TrainingJobStatus,
    keep: impl Fn(usize, &PhaseStatus) -> bool,
) -> Settings {
    folded(spec, status, keep, |phase| phase.fallback)
}

fn folded(
    spec: &TrainingJobSpec,
    status: &TrainingJobStatus,
    keep: impl Fn(usize, &PhaseStatus) -> bool,
    fallback: impl Fn(&PhaseStatus) -> u32,
) -> Settings {
    let phases = spec.phases.iter().zip(&status.phases).enumerate();
    phases
        .filter(|(index, (_, state))| keep(*index, state))
        .fold(spec.settings.clone(), |settings, (_, (phase, state))| settings.with(&patch(phase, fallback(state))))
}

/// Whether a phase's patch is in effect.
pub(crate) fn accepted(phase: &PhaseStatus) -> bool {
    phase.state == PhaseState::Accepted
}

impl Draft<'_> {
    /// The settings in effect: the baseline and every accepted patch.
    pub fn effective(&self) -> Settings {
        fold(self.spec, &self.status, |_, phase| accepted(phase))
    }

    /// The settings with which the phase at `index` is compared.
    pub fn control(&self, index: usize) -> Settings {
        fold(self.spec, &self.status, |i, phase| i < index && accepted(phase))
    }

    /// [`Self::control`] without the reverts that followed a phase's own verdict. Input hashes are based on it, so that
    /// such a revert does not repeat the evaluation of later phases; a pin does.
    pub fn judged_control(&self, index: usize) -> Settings {
        let judged = |phase: &PhaseStatus| accepted(phase) || phase.held && !Reason::Pinned.is(&phase.reason);
        judged_fold(self.spec, &self.status, |i, phase| i < index && judged(phase))
    }

    /// Names of the accepted phases.
    pub fn accepted_names(&self) -> Vec<String> {
        self.status.phases.iter().filter(|phase| accepted(phase)).map(|phase| phase.name.clone()).collect()
    }
}
