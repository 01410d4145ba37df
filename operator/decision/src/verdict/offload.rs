//! What optimizer offload costs.

use super::{Trial, Verdict};
use crate::verdict::speed::median;
use pawl_api::spec::Trigger;
use pawl_contract::plan::LaunchKind;

/// Offload takes a larger share of the step than `gates.maxOffloadOverhead`.
pub(super) fn overhead(trial: &Trial<'_>) -> Option<Verdict> {
    let gate = trial.comparison.draft.spec.gates.max_offload_overhead.as_ref()?;
    let measured = trial.comparison.candidates().filter(|launch| launch.kind == LaunchKind::Measure);
    let share = median(measured.filter_map(|launch| launch.offload_share.as_ref()).map(|share| share.value()))?;
    if share <= gate.value() {
        return None;
    }
    let message = format!("optimizer offload takes {share:.3} of a step, above gates.maxOffloadOverhead {gate}");
    Some(Verdict::Fails { trigger: Some(Trigger::OffloadOverhead), reason: "OffloadOverhead", message })
}
