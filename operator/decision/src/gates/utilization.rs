//! Device utilization: `gates.minGpuUtilization`.

use super::{DryRun, Subject, Verdict, unmeasured};
use crate::reason::Reason;
use pawl_api::spec::TrainingJobSpec;
use pawl_contract::decimal::Decimal;
use pawl_contract::measured::Measured;
use pawl_contract::plan::UTILIZATION_SECONDS;

/// The gate.
const GATE: &str = "gates.minGpuUtilization";

/// Fails when the device utilization is below the gate.
pub(super) fn busy(subject: &Subject<'_>) -> Option<Verdict> {
    let gate = subject.spec().gates.min_gpu_utilization.as_ref()?;
    let warmup = subject.comparison.warmup_steps();
    let utilization = |measured: Measured| sampled(subject.spec(), &measured, warmup);
    match subject.median(|launch| utilization(Measured::from(&launch.measured))) {
        None => Some(Subject::unmeasured(GATE, &required(subject.spec()))),
        Some(found) => {
            let message = below(found, gate)?;
            Some(Verdict::Fails { trigger: None, reason: Reason::UtilizationBelowGate, message })
        }
    }
}

/// The violation by the utilization of a dry run.
pub(super) fn of_dry_run(run: &DryRun<'_>) -> Option<String> {
    let gate = run.spec.gates.min_gpu_utilization.as_ref()?;
    match sampled(run.spec, &run.result.measured, run.spec.analysis.warmup_steps.into()) {
        None => Some(unmeasured(GATE, &required(run.spec))),
        Some(found) => below(found, gate),
    }
}

/// What the gate requires a trainer to report.
fn required(spec: &TrainingJobSpec) -> String {
    match spec.trainer.gpus_per_replica {
        0 => "utilization".to_owned(),
        _ => format!("utilization of a window of {UTILIZATION_SECONDS} s (raise analysis.windowSteps)"),
    }
}

/// The utilization over the steps after the warm-up. That of a GPU is an average over up to a second before each
/// reading: of a short window it says what came before.
fn sampled(spec: &TrainingJobSpec, measured: &Measured, warmup: u64) -> Option<f64> {
    let on_cpu = spec.trainer.gpus_per_replica == 0;
    let long = || {
        let seconds = measured.items as f64 / measured.items_per_second?;
        let share = measured.steps.saturating_sub(warmup) as f64 / measured.steps.max(1) as f64;
        // The last step may end a little earlier than the trainer has predicted.
        Some(seconds * share >= 0.95 * UTILIZATION_SECONDS as f64)
    };
    measured.utilization.filter(|_| on_cpu || long() == Some(true))
}

fn below(found: f64, gate: &Decimal) -> Option<String> {
    (found < gate.value()).then(|| format!("device utilization {found:.3} is below {GATE} {gate}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_itself_is_allowed() {
        let gate: Decimal = "0.75".parse().unwrap();
        assert_eq!(below(0.75, &gate), None);
        assert!(below(0.74, &gate).unwrap().contains("0.740"));
    }

    #[test]
    fn the_utilization_of_a_gpu_needs_a_long_window() {
        let spec = |gpus: u32| -> TrainingJobSpec {
            let trainer = serde_json::json!({"gpusPerReplica": gpus});
            serde_json::from_value(serde_json::json!({"workload": {"name": "ups"}, "trainer": trainer})).unwrap()
        };
        // 64 items in 16 ms, after 20 steps of warm-up.
        let of = |steps: u64| Measured {
            steps,
            items: 64 * steps,
            items_per_second: Some(4_000.0),
            utilization: Some(0.97),
            ..Measured::default()
        };
        assert_eq!(sampled(&spec(1), &of(70), 20), None, "0.8 s");
        assert_eq!(sampled(&spec(1), &of(645), 20), Some(0.97), "10 s");
        assert_eq!(sampled(&spec(1), &of(645), 64), None, "a part of the steps is warm-up");
        assert_eq!(sampled(&spec(0), &of(70), 20), Some(0.97), "the time of CPUs is exact");
    }
}
