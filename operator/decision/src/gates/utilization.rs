//! Device utilization: `gates.minGpuUtilization`.

use super::{Subject, Verdict};
use crate::reason::Reason;
use pawl_contract::decimal::Decimal;

/// Fails when the device utilization is below the gate.
pub(super) fn busy(subject: &Subject<'_>) -> Option<Verdict> {
    let gate = subject.spec().gates.min_gpu_utilization.as_ref()?;
    match subject.median(|launch| launch.measured.utilization.as_ref().map(Decimal::value)) {
        None => Some(Subject::unmeasured("gates.minGpuUtilization", "utilization")),
        Some(found) => {
            let message = below(found, gate)?;
            Some(Verdict::Fails { trigger: None, reason: Reason::UtilizationBelowGate, message })
        }
    }
}

fn below(found: f64, gate: &Decimal) -> Option<String> {
    (found < gate.value()).then(|| format!("device utilization {found:.3} is below gates.minGpuUtilization {gate}"))
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
