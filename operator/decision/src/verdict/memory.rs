//! Memory against `gates.gpuMemory`.

use super::{Trial, Verdict};
use pawl_api::quantity::Bytes;
use pawl_api::spec::Trigger;
use pawl_contract::plan::LaunchKind;

/// The memory plan predicts more than the gate allows: no device time is spent.
pub(super) fn predicted(trial: &Trial<'_>) -> Option<Verdict> {
    above(trial, true)
}

/// A launch used more than the gate allows.
pub(super) fn peak(trial: &Trial<'_>) -> Option<Verdict> {
    above(trial, false)
}

fn above(trial: &Trial<'_>, predicted: bool) -> Option<Verdict> {
    let comparison = &trial.comparison;
    let gate = comparison.draft.spec.gates.gpu_memory.as_ref()?;
    let kinds = comparison.candidates().filter(|launch| (launch.kind == LaunchKind::Preflight) == predicted);
    let memory = kinds.filter_map(|launch| launch.memory).max()?;
    if memory <= gate.get() {
        return None;
    }
    let what = if predicted { "predicted" } else { "peak" };
    let message = format!("{what} memory {} is above gates.gpuMemory {gate}", Bytes::display(memory));
    Some(Verdict::Fails { trigger: Some(Trigger::MemoryAboveGate), reason: "MemoryAboveGate", message })
}
