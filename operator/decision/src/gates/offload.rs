//! Overhead of optimizer offload: `gates.maxOffloadOverhead`.

use super::{DryRun, Subject, Verdict};
use crate::reason::Reason;
use pawl_api::spec::Trigger;
use pawl_contract::decimal::Decimal;

fn above(share: Option<f64>, gate: &Decimal) -> Option<String> {
    // A trainer that does not offload reports no share.
    let share = share.filter(|share| *share > gate.value())?;
    Some(format!("optimizer offload takes {share:.3} of a step, above gates.maxOffloadOverhead {gate}"))
}

/// Fails when offload takes a larger share of the step than allowed.
pub(super) fn overhead(subject: &Subject<'_>) -> Option<Verdict> {
    let gate = subject.spec().gates.max_offload_overhead.as_ref()?;
    let share = subject.median(|launch| launch.measured.offload_share.as_ref().map(Decimal::value));
    let message = above(share, gate)?;
    Some(Verdict::Fails { trigger: Some(Trigger::OffloadOverhead), reason: Reason::OffloadOverhead, message })
}

/// The violation by the offload of a dry run.
pub(super) fn of_dry_run(run: &DryRun<'_>) -> Option<String> {
    above(run.result.measured.offload_share, run.spec.gates.max_offload_overhead.as_ref()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_itself_is_allowed() {
        let gate: Decimal = "0.1".parse().unwrap();
        assert_eq!(above(None, &gate), None);
        assert_eq!(above(Some(0.1), &gate), None);
        assert!(above(Some(0.11), &gate).unwrap().contains("0.110"));
    }
}
