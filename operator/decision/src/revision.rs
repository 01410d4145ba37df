//! Revisions: the baseline and the accepted patches, folded.

use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use crate::reason::Reason;
use pawl_api::spec::{Phase, TrainingJobSpec};
use pawl_api::status::{PhaseState, PhaseStatus, TrainingJobStatus};
use pawl_contract::settings::Settings;

/// The settings' short hash.
pub(crate) fn revision(settings: &Settings) -> String {
    fingerprint(settings, 12)
}

/// A phase's patch with `rung` rungs taken; a rung replaces the one before.
pub(crate) fn patch(phase: &Phase, rung: u32) -> Settings {
    let fallback = (rung as usize).checked_sub(1).and_then(|index| phase.fallbacks.get(index));
    fallback.map_or_else(|| phase.settings.clone(), |fallback| phase.settings.with(&fallback.settings))
}

/// The baseline with the patches, as they are in effect, of those phases that `keep` names, in order.
pub(crate) fn fold(
    spec: &TrainingJobSpec,
    status: &TrainingJobStatus,
    keep: impl Fn(usize, &PhaseStatus) -> bool,
) -> Settings {
    folded(spec, status, keep, PhaseStatus::effective_rung)
}

/// [`fold`] with the patches as they were judged: the base of input hashes, so that a rung that was taken in training does
/// not judge anything anew.
pub(crate) fn judged_fold(
    spec: &TrainingJobSpec,
    status: &TrainingJobStatus,
    keep: impl Fn(usize, &PhaseStatus) -> bool,
) -> Settings {
    folded(spec, status, keep, |phase| phase.rung)
}

fn folded(
    spec: &TrainingJobSpec,
    status: &TrainingJobStatus,
    keep: impl Fn(usize, &PhaseStatus) -> bool,
    rung: impl Fn(&PhaseStatus) -> u32,
) -> Settings {
    let phases = spec.phases.iter().zip(&status.phases).enumerate();
    phases
        .filter(|(index, (_, state))| keep(*index, state))
        .fold(spec.settings.clone(), |settings, (_, (phase, state))| settings.with(&patch(phase, rung(state))))
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

    /// The settings on top of which the phase at `index` is judged.
    pub fn control(&self, index: usize) -> Settings {
        fold(self.spec, &self.status, |i, phase| i < index && accepted(phase))
    }

    /// [`Self::control`] as it was before anything was reverted after its own trial: the base of input hashes, so
    /// that such a revert does not judge later phases anew. A pin does.
    pub fn judged_control(&self, index: usize) -> Settings {
        let judged = |phase: &PhaseStatus| accepted(phase) || phase.held && !Reason::Pinned.is(&phase.reason);
        judged_fold(self.spec, &self.status, |i, phase| i < index && judged(phase))
    }

    /// Names of the accepted phases.
    pub fn accepted_names(&self) -> Vec<String> {
        self.status.phases.iter().filter(|phase| accepted(phase)).map(|phase| phase.name.clone()).collect()
    }
}
