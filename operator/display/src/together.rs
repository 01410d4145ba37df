//! All accepted phases together: what they are called, and whether what was measured is of the settings in effect.

use pawl_api::TrainingJobStatus;
use pawl_api::status::{BundleStatus, PhaseState};

/// The name of the comparison of all accepted phases with the baseline.
pub const TOGETHER: &str = "all together";

/// Whether all together were measured with the settings that are in effect.
pub fn is_current(bundle: &BundleStatus, status: &TrainingJobStatus) -> bool {
    let is_in_effect = bundle.revision.is_empty() || status.revision.as_ref() == Some(&bundle.revision);
    !bundle.outdated && is_in_effect
}

/// The verdict on all together in words: whether it is of the settings in effect.
pub fn together_word(bundle: &BundleStatus, status: &TrainingJobStatus) -> &'static str {
    if is_current(bundle, status) { "measured together" } else { "measured together, with earlier settings" }
}

/// Whether the speedup of the job is the product of several phases, which were not measured together.
pub fn is_product(status: &TrainingJobStatus) -> bool {
    let factors = status.phases.iter().filter(|phase| phase.state == PhaseState::Accepted).count();
    factors > 1 && !status.bundle.as_ref().is_some_and(|bundle| bundle.speedup.is_some() && is_current(bundle, status))
}
