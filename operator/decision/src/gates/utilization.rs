//! Device utilization: `gates.minGpuUtilization`.

use super::{DryRun, Subject, Verdict, unmeasured};
use crate::reason::Reason;
use pawl_contract::decimal::Decimal;

/// The gate, and what it requires a trainer to report.
const GATE: &str = "gates.minGpuUtilization";
const MEASURED: &str = "utilization";

/// Fails when the device utilization is below the gate.
pub(super) fn busy(subject: &Subject<'_>) -> Option<Verdict> {
    let gate = subject.spec().gates.min_gpu_utilization.as_ref()?;
    match subject.median(|launch| launch.measured.utilization.as_ref().map(Decimal::value)) {
        None => Some(Subject::unmeasured(GATE, MEASURED)),
        Some(found) => {
            let message = below(found, gate)?;
            Some(Verdict::Fails { trigger: None, reason: Reason::UtilizationBelowGate, message })
        }
    }
}

/// The violation by the utilization of a dry run.
pub(super) fn of_dry_run(run: &DryRun<'_>) -> Option<String> {
    let gate = run.gates.min_gpu_utilization.as_ref()?;
    run.result.measured.utilization.map_or_else(|| Some(unmeasured(GATE, MEASURED)), |found| below(found, gate))
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
}
