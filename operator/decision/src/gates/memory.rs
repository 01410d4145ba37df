//! Memory: `gates.gpuMemory` in bytes, `gates.gpuMemoryIncrease` relative to the baseline.

use super::{DryRun, Subject, Verdict};
use crate::aggregate::together;
use crate::reason::Reason;
use pawl_api::quantity::Bytes;
use pawl_api::spec::{Gates, Trigger};
use pawl_contract::plan::LaunchKind;

/// Fails when the predicted memory violates a gate, before any device time is used.
pub(super) fn predicted(subject: &Subject<'_>) -> Option<Verdict> {
    let baseline = subject.comparison.draft.status.baseline.as_ref();
    let baseline = baseline.and_then(|baseline| baseline.measured.predicted_memory_bytes);
    let checks = subject.comparison.candidates().filter(|launch| launch.kind == LaunchKind::Preflight);
    judge(subject, "predicted", baseline, checks.filter_map(|launch| launch.measured.predicted_memory_bytes).max()?)
}

/// Fails when the measured peak memory violates a gate.
pub(super) fn peak(subject: &Subject<'_>) -> Option<Verdict> {
    let baseline = subject.comparison.draft.baseline_peak();
    judge(subject, "peak", baseline, together(subject.comparison.candidates()).peak_memory_bytes?)
}

/// The violation by the peak memory of a dry run.
pub(super) fn of_dry_run(run: &DryRun<'_>) -> Option<String> {
    above(&run.spec.gates, "peak", run.result.measured.peak_memory_bytes?, None)
}

fn judge(subject: &Subject<'_>, what: &str, baseline: Option<u64>, memory: u64) -> Option<Verdict> {
    let message = above(&subject.spec().gates, what, memory, baseline)?;
    Some(Verdict::Fails { trigger: Some(Trigger::MemoryAboveGate), reason: Reason::MemoryAboveGate, message })
}

/// The violation by `memory`, bytes, if any. Without a measured baseline, the increase is not checked.
fn above(gates: &Gates, what: &str, memory: u64, baseline: Option<u64>) -> Option<String> {
    if let Some(gate) = gates.gpu_memory.as_ref().filter(|gate| memory > gate.get()) {
        return Some(format!("{what} memory {} is above gates.gpuMemory {gate}", Bytes::display(memory)));
    }
    let (gate, baseline) = (gates.gpu_memory_increase.as_ref()?, baseline?);
    let increase = memory as f64 / baseline.max(1) as f64 - 1.0;
    (increase > gate.value()).then(|| {
        format!(
            "{what} memory {} is {increase:.3} above the baseline's {}, more than gates.gpuMemoryIncrease {gate}",
            Bytes::display(memory),
            Bytes::display(baseline)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_an_absolute_and_a_relative_limit() {
        let gates = Gates {
            gpu_memory: Some("50Gi".parse().unwrap()),
            gpu_memory_increase: Some("0.2".parse().unwrap()),
            ..Gates::default()
        };
        let found =
            |gibibytes: u64, baseline: Option<u64>| above(&gates, "peak", gibibytes << 30, baseline.map(|b| b << 30));
        assert_eq!(found(48, Some(40)), None, "the limit itself is allowed");
        assert!(found(49, Some(40)).unwrap().contains("gpuMemoryIncrease 0.2"));
        assert!(found(51, Some(50)).unwrap().contains("gpuMemory 50Gi"));
        assert_eq!(found(49, None), None);
        assert_eq!(above(&Gates::default(), "peak", u64::MAX, Some(1)), None);
    }
}
