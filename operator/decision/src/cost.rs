//! Cost and savings of a job.

use crate::draft::Draft;
use crate::launch::gang;
use pawl_api::TrainingJobStatus;
use pawl_api::spec::TrainingJobSpec;
use pawl_api::status::{Purpose, TrainingStatus};
use pawl_contract::decimal::Decimal;
use pawl_contract::report::LaunchResult;
use std::collections::BTreeMap;

/// Adds the device time of a launch.
pub(crate) fn count(draft: &mut Draft<'_>, purpose: Purpose, result: &LaunchResult) {
    // Invalid times count as 0; the cast saturates.
    let milliseconds =
        (result.measured.wall_seconds.unwrap_or(0.0).max(0.0) * devices(draft.spec, purpose) * 1000.0) as u64;
    let cost = draft.status.cost.get_or_insert_default();
    let spent = cost.purposes.entry(purpose).or_default();
    *spent = spent.saturating_add(milliseconds);
    cost.device_milliseconds = cost.device_milliseconds.saturating_add(milliseconds);
    let hours = cost.device_milliseconds as f64 / 3.6e6;
    cost.gpu_hours = Decimal::from_f64(hours);
    let price = device_hour(draft.spec);
    cost.spent = price.and_then(|price| Decimal::from_f64(hours * price));
    cost.currency = if price.is_some() { draft.spec.cost.currency.clone() } else { String::new() };
}

/// Price of one device for one hour; a machine is one replica with all its devices.
fn device_hour(spec: &TrainingJobSpec) -> Option<f64> {
    let machine =
        || spec.cost.machine_hour.as_ref().map(|price| price.value() / f64::from(spec.trainer.ranks_per_replica()));
    spec.cost.gpu_hour.as_ref().map(Decimal::value).or_else(machine)
}

/// The price of device hours; 0 without one.
pub(crate) fn price_of(spec: &TrainingJobSpec, hours: f64) -> f64 {
    device_hour(spec).unwrap_or(0.0) * hours
}

/// Number of devices of a launch: GPUs, or processes if the job uses none; 0 for a preflight without GPUs of a job with
/// GPUs.
pub(crate) fn devices(spec: &TrainingJobSpec, purpose: Purpose) -> f64 {
    let gang = gang(spec, purpose);
    let free = spec.trainer.gpus_per_replica > 0 && gang.gpus_per_replica == 0;
    if free { 0.0 } else { f64::from(gang.replicas) * f64::from(gang.ranks_per_replica) }
}

/// Estimates the savings: the cost of training the same items with the baseline, minus the cost of this training and of
/// the evidence.
pub(crate) fn saved(draft: &mut Draft<'_>) {
    let Some(payback) = payback(draft.spec, &draft.status) else { return };
    let price = device_hour(draft.spec);
    let cost = draft.status.cost.get_or_insert_default();
    if let Some(saved) = price.and_then(|price| Decimal::from_f64(payback.saved_hours() * price)) {
        cost.saved = Some(saved);
    }
    if let Some(percent) = Decimal::from_f64(payback.saved_percent()) {
        cost.saved_percent = Some(percent);
    }
}

/// What the verdicts and the search of a job cost, and what its training has gained by them so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Payback {
    /// Device hours not spent on training.
    pub judging_hours: f64,
    /// Device hours that training the same items takes with the baseline.
    pub baseline_hours: f64,
    /// Of these: how many the training did not take; negative if it took more.
    pub gained_hours: f64,
    /// Number of trained items, from the first one, at which the gain equals `judging_hours` if the training keeps its
    /// speed. `None` at a speed that is not above that of the baseline.
    pub items: Option<u64>,
}

impl Payback {
    /// The savings in device hours: what was gained, minus what judging cost.
    pub fn saved_hours(&self) -> f64 {
        self.gained_hours - self.judging_hours
    }

    /// The savings in percent of the device hours of training with the baseline.
    pub fn saved_percent(&self) -> f64 {
        self.saved_hours() / self.baseline_hours * 100.0
    }
}

/// Whether the training of a job has gained what judging cost, or after how many items it will have, computed from the
/// speeds and the device time in its status. `None` before anything was trained, or before the speeds of the baseline
/// and of the training are known.
///
/// ```
/// // A GPU trains 200 items/s instead of 100; the verdicts took an hour of it.
/// let spec = serde_json::from_value(serde_json::json!({"workload": {"name": "ups"}}))?;
/// let status = serde_json::from_value(serde_json::json!({
///     "baseline": {"itemsPerSecond": "100"},
///     "training": {"items": 180_000, "itemsPerSecond": "200"},
///     "cost": {"purposes": {"Speed": 3_600_000}},
/// }))?;
/// let payback = pawl_decision::payback(&spec, &status).unwrap();
/// // So far it has trained for a quarter of an hour, instead of half an hour.
/// assert_eq!((payback.judging_hours, payback.gained_hours, payback.saved_hours()), (1.0, 0.25, -0.75));
/// assert_eq!(payback.items, Some(720_000));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn payback(spec: &TrainingJobSpec, status: &TrainingJobStatus) -> Option<Payback> {
    let baseline = status.baseline.as_ref()?.measured.items_per_second.as_ref()?.value();
    let training = status.training.as_ref()?;
    let seconds = productive_seconds(training)?;
    let items = training.measured.items as f64;
    if !(baseline > 0.0 && items > 0.0) {
        return None;
    }
    let hours = |seconds: f64| seconds * devices(spec, Purpose::Train) / 3600.0;
    let judging_hours = status.cost.as_ref().map_or(0.0, |cost| judging_hours(&cost.purposes));
    let (baseline_hours, training_hours) = (hours(items / baseline), hours(seconds));
    let gained_hours = baseline_hours - training_hours;
    // Settings that have just replaced others have no speed yet.
    let speed = current_speed(training).unwrap_or(items / seconds);
    let gained_by_one = hours(1.0 / baseline) - hours(1.0 / speed);
    let more = (judging_hours - gained_hours) / gained_by_one;
    // The cast saturates.
    let paid_back = (gained_by_one > 0.0).then(|| (items + more).ceil() as u64);
    Some(Payback { judging_hours, baseline_hours, gained_hours, items: paid_back })
}

/// The speed of the training with its present settings, in items per second.
fn current_speed(training: &TrainingStatus) -> Option<f64> {
    training.measured.items_per_second.as_ref().map(Decimal::value).filter(|speed| *speed > 0.0)
}

/// Seconds that the training so far took at the measured speeds: what was trained with settings that were replaced
/// since, at their speed. `None` before a speed is known.
pub(crate) fn productive_seconds(training: &TrainingStatus) -> Option<f64> {
    let earlier = training.replaced.as_ref();
    let (before, spent) = earlier.map_or((0, 0.0), |earlier| (earlier.items, earlier.seconds.value()));
    let items = training.measured.items.saturating_sub(before);
    match (items, current_speed(training)) {
        (0, _) => Some(spent).filter(|spent| *spent > 0.0),
        (items, speed) => Some(spent + items as f64 / speed?),
    }
}

/// Device hours not spent on training.
fn judging_hours(purposes: &BTreeMap<Purpose, u64>) -> f64 {
    let judging = purposes.iter().filter(|(purpose, _)| **purpose != Purpose::Train);
    judging.map(|(_, milliseconds)| *milliseconds as f64).sum::<f64>() / 3.6e6
}

/// Seconds that the whole gang has spent on the verdicts on phases.
pub(crate) fn judging_seconds(draft: &Draft<'_>) -> f64 {
    let Some(cost) = &draft.status.cost else { return 0.0 };
    let spent =
        [Purpose::Speed, Purpose::Quality, Purpose::Bundle].iter().filter_map(|purpose| cost.purposes.get(purpose));
    spent.sum::<u64>() as f64 / 1000.0 / devices(draft.spec, Purpose::Train).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a job on 4 GPUs whose baseline trains 10 items/s, and of which judging took these device hours.
    fn of(training: serde_json::Value, judging_hours: u64) -> Option<Payback> {
        let trainer = serde_json::json!({"replicas": 2, "gpusPerReplica": 2});
        let spec = serde_json::json!({"workload": {"name": "ups"}, "trainer": trainer});
        let purposes = serde_json::json!({"Speed": judging_hours * 3_600_000, "Train": 5 * 3_600_000});
        let status = serde_json::json!({"baseline": {"itemsPerSecond": "10"}, "training": training,
            "cost": {"purposes": purposes}});
        payback(&serde_json::from_value(spec).unwrap(), &serde_json::from_value(status).unwrap())
    }

    #[test]
    fn judging_is_paid_for_before_anything_is_saved() {
        // The baseline takes 10 hours, the training 5, judging took 2 device hours.
        let at = |items: u64| of(serde_json::json!({"items": items, "itemsPerSecond": "20"}), 2);
        let whole = at(360_000).unwrap();
        assert!((whole.saved_hours() - 18.0).abs() < 1e-9 && (whole.saved_percent() - 45.0).abs() < 1e-9);
        let early = at(3_600).unwrap();
        assert!(early.saved_hours() < 0.0 && early.saved_percent() < 0.0);
        assert_eq!((whole.items, early.items), (Some(36_000), Some(36_000)));
        assert_eq!(at(0), None, "nothing was trained");
    }

    #[test]
    fn a_training_that_is_no_faster_never_pays_judging_back() {
        for speed in ["10", "5"] {
            let found = of(serde_json::json!({"items": 3_600, "itemsPerSecond": speed}), 2).unwrap();
            assert!(found.items.is_none() && found.gained_hours <= 0.0, "{speed}: {found:?}");
        }
        assert_eq!(of(serde_json::json!({"items": 3_600}), 2), None, "its speed is not known");
    }

    #[test]
    fn what_is_still_to_gain_is_gained_at_the_speed_of_the_present_settings() {
        // The first 3,600 items took as long as with the baseline; an item saves 0.2 device seconds since.
        let replaced = serde_json::json!({"items": 3_600, "seconds": "360"});
        let training = |speed: &str| serde_json::json!({"items": 7_200, "itemsPerSecond": speed, "replaced": replaced});
        let found = of(training("20"), 2).unwrap();
        assert!((found.gained_hours - 0.2).abs() < 1e-9, "{found:?}");
        assert_eq!(found.items, Some(3_600 + 36_000));
        assert_eq!(of(training("10"), 2).unwrap().items, None);
        let begun = serde_json::json!({"items": 3_600, "replaced": {"items": 3_600, "seconds": "180"}});
        assert_eq!(of(begun, 2).unwrap().items, Some(36_000), "these have no speed yet");
    }

    #[test]
    fn a_machine_is_a_replica_with_all_its_devices() {
        let spec = |cost| -> TrainingJobSpec {
            let trainer = serde_json::json!({"replicas": 2, "gpusPerReplica": 4});
            serde_json::from_value(serde_json::json!({"workload": {"name": "ups"}, "trainer": trainer, "cost": cost}))
                .unwrap()
        };
        assert_eq!(device_hour(&spec(serde_json::json!({"machineHour": "8"}))), Some(2.0));
        assert_eq!(device_hour(&spec(serde_json::json!({"gpuHour": "8"}))), Some(8.0));
        assert_eq!(device_hour(&spec(serde_json::json!({}))), None);
    }
}
