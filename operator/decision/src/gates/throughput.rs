//! Absolute throughput: `gates.minItemsPerSecond` and `gates.maxEpochSeconds`, of the bundle and in training; and in
//! training the throughput expected from the measurements.

use super::cusum::{Cusum, allowance};
use super::{Alarm, DryRun, RunningTraining, Subject, Verdict, unmeasured};
use crate::reason::Reason;
use pawl_api::spec::Gates;
use pawl_contract::decimal::Decimal;

/// The gates, and what they require a trainer to report.
const RATE: &str = "gates.minItemsPerSecond";
const EPOCH: &str = "gates.maxEpochSeconds";
const SPEED: &str = "items per second";
const ITEMS: &str = "itemsPerEpoch";

/// Fails when all accepted phases together train fewer items per second than the gate requires.
pub(super) fn items_per_second(subject: &Subject<'_>) -> Option<Verdict> {
    let gates = &subject.spec().gates;
    gates.min_items_per_second.as_ref()?;
    match speed(subject) {
        None => Some(Subject::unmeasured(RATE, SPEED)),
        Some(speed) => Some(too_slow(below_rate(gates, speed)?)),
    }
}

/// Fails when an epoch with all accepted phases together takes longer than the gate allows.
pub(super) fn epoch_seconds(subject: &Subject<'_>) -> Option<Verdict> {
    let gates = &subject.spec().gates;
    gates.max_epoch_seconds.as_ref()?;
    let items = subject.comparison.draft.status.baseline.as_ref().and_then(|baseline| baseline.items_per_epoch);
    match (speed(subject), items) {
        (Some(speed), Some(items)) => Some(too_slow(epoch_too_long(gates, speed, items)?)),
        (None, _) => Some(Subject::unmeasured(EPOCH, SPEED)),
        (_, None) => Some(Subject::unmeasured(EPOCH, ITEMS)),
    }
}

/// By which factor all accepted phases together are slower than the gates require; below 1 if they are not. `None` if
/// nothing is measured.
pub(crate) fn lacking(subject: &Subject<'_>) -> Option<f64> {
    let (gates, speed) = (&subject.spec().gates, speed(subject)?);
    let items = subject.comparison.draft.status.baseline.as_ref().and_then(|baseline| baseline.items_per_epoch);
    let rate = gates.min_items_per_second.as_ref().map(Decimal::value);
    let epoch = gates.max_epoch_seconds.as_ref().zip(items).map(|(gate, items)| items as f64 / gate.value());
    Some(rate.into_iter().chain(epoch).fold(0.0, f64::max) / speed)
}

/// The violation by the items per second of a dry run.
pub(super) fn items_per_second_of_dry_run(run: &DryRun<'_>) -> Option<String> {
    run.spec.gates.min_items_per_second.as_ref()?;
    match run.result.measured.items_per_second {
        None => Some(unmeasured(RATE, SPEED)),
        Some(speed) => below_rate(&run.spec.gates, speed),
    }
}

/// The violation by the seconds of an epoch of a dry run.
pub(super) fn epoch_seconds_of_dry_run(run: &DryRun<'_>) -> Option<String> {
    run.spec.gates.max_epoch_seconds.as_ref()?;
    match (run.result.measured.items_per_second, run.result.items_per_epoch) {
        (Some(speed), Some(items)) => epoch_too_long(&run.spec.gates, speed, items),
        (None, _) => Some(unmeasured(EPOCH, SPEED)),
        (_, None) => Some(unmeasured(EPOCH, ITEMS)),
    }
}

/// Alarm when the windows of a training show that it is slower than expected; see [`cusum`](super::cusum).
pub(super) fn below_expected(watched: &RunningTraining<'_>) -> Option<Alarm> {
    let guard = &watched.spec.train.guard;
    let cusum = Cusum::from(watched.training.cusum.as_ref()?);
    if !cusum.alarms(guard.throughput_tolerance.value(), guard.windows) {
        return None;
    }
    let (windows, tolerance) = (cusum.since().0, &guard.throughput_tolerance);
    Some(Alarm::BelowExpected(format!(
        "{:.1} items/s on average in {windows} windows: {:.1} were expected, train.guard.throughputTolerance is {tolerance}",
        found(watched)?,
        expected(watched)?
    )))
}

/// Items per second that are expected on the devices of a training: as measured; on a machine that is known to be slow,
/// as it was there.
pub(crate) fn expected(watched: &RunningTraining<'_>) -> Option<f64> {
    let here = watched.training.slow_machine.as_ref().filter(|machine| machine.placement == watched.placement);
    let promised = watched.training.promised_items_per_second.as_ref();
    Some(here.map(|machine| &machine.items_per_second).or(promised)?.value())
}

/// Items per second on average since the training seems slow.
pub(crate) fn found(watched: &RunningTraining<'_>) -> Option<f64> {
    let cusum = Cusum::from(watched.training.cusum.as_ref()?);
    Some(expected(watched)? * cusum.since().1)
}

/// Logarithm of expected over measured items per second of the newest window.
pub(crate) fn shortfall(watched: &RunningTraining<'_>) -> Option<f64> {
    let speed = in_window(watched)?.max(f64::MIN_POSITIVE);
    Some((expected(watched)? / speed).ln()).filter(|shortfall| shortfall.is_finite())
}

/// Whether the newest window is as fast as measured, whatever its machine.
pub(crate) fn as_measured(watched: &RunningTraining<'_>) -> bool {
    let promised = watched.training.promised_items_per_second.as_ref().map(Decimal::value);
    let allowed = allowance(watched.spec.train.guard.throughput_tolerance.value());
    match (promised, in_window(watched)) {
        (Some(promised), Some(speed)) => speed >= promised * (-allowed).exp(),
        (None, _) | (_, None) => true,
    }
}

/// Alarm when training is slower than a gate allows.
pub(super) fn least_in_training(watched: &RunningTraining<'_>) -> Option<Alarm> {
    let (gates, speed) = (&watched.spec.gates, in_window(watched)?);
    let items = watched.baseline.and_then(|baseline| baseline.items_per_epoch);
    let epoch = || epoch_too_long(gates, speed, items?);
    below_rate(gates, speed).or_else(epoch).map(Alarm::BelowGate)
}

fn speed(subject: &Subject<'_>) -> Option<f64> {
    subject.median(|launch| launch.measured.items_per_second.as_ref().map(Decimal::value))
}

/// Items per second of the newest window of a training.
fn in_window(watched: &RunningTraining<'_>) -> Option<f64> {
    watched.progress.items_per_second.filter(|speed| speed.is_finite())
}

fn too_slow(message: String) -> Verdict {
    Verdict::Fails { trigger: None, reason: Reason::ThroughputBelowGate, message }
}

fn below_rate(gates: &Gates, speed: f64) -> Option<String> {
    let gate = gates.min_items_per_second.as_ref().filter(|gate| speed < gate.value())?;
    Some(format!("{speed:.1} items/s are below {RATE} {gate}"))
}

fn epoch_too_long(gates: &Gates, speed: f64, items: u64) -> Option<String> {
    let gate = gates.max_epoch_seconds.as_ref()?;
    // Without throughput, an epoch takes infinitely long.
    let seconds = items as f64 / speed.max(0.0);
    (seconds > gate.value()).then(|| {
        format!("an epoch of {items} items takes {seconds:.1} s at {speed:.1} items/s, longer than {EPOCH} {gate}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Option<Decimal> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn limits_themselves_are_allowed() {
        let gates = Gates { min_items_per_second: number("100"), max_epoch_seconds: number("90"), ..Gates::default() };
        assert_eq!(below_rate(&gates, 100.0), None);
        assert!(below_rate(&gates, 99.9).is_some());
        assert_eq!(epoch_too_long(&gates, 100.0, 9_000), None);
        assert!(epoch_too_long(&gates, 100.0, 9_001).is_some());
        assert!(epoch_too_long(&gates, 0.0, 1).is_some(), "no progress is too slow");
        assert_eq!((below_rate(&Gates::default(), 0.0), epoch_too_long(&Gates::default(), 0.0, 1)), (None, None));
    }
}
