//! Cost and savings of a job.

use crate::draft::Draft;
use crate::launch::gang;
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
    let baseline = draft.status.baseline.as_ref().and_then(|baseline| baseline.measured.items_per_second.as_ref());
    let training = draft.status.training.as_ref();
    let (Some(baseline), Some(seconds)) = (baseline, training.and_then(productive_seconds)) else { return };
    let items = training.map_or(0, |training| training.measured.items) as f64;
    let devices = devices(draft.spec, Purpose::Train);
    let price = device_hour(draft.spec);
    let cost = draft.status.cost.get_or_insert_default();
    let balance = balance((items / baseline.value(), seconds), devices, judging_hours(&cost.purposes));
    if let Some(saved) = price.and_then(|price| Decimal::from_f64(balance.saved_hours * price)) {
        cost.saved = Some(saved);
    }
    if let Some(percent) = Decimal::from_f64(balance.percent) {
        cost.saved_percent = Some(percent);
    }
}

/// Seconds that the training so far took at the measured speeds: what was trained with settings that were replaced
/// since, at their speed. `None` before a speed is known.
pub(crate) fn productive_seconds(training: &TrainingStatus) -> Option<f64> {
    let earlier = training.replaced.as_ref();
    let (before, spent) = earlier.map_or((0, 0.0), |earlier| (earlier.items, earlier.seconds.value()));
    let items = training.measured.items.saturating_sub(before);
    let speed = training.measured.items_per_second.as_ref().map(Decimal::value).filter(|speed| *speed > 0.0);
    match (items, speed) {
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

/// Savings in device hours, and in percent of the device hours of training with the baseline.
struct Balance {
    saved_hours: f64,
    percent: f64,
}

/// The seconds that the baseline would take for what was trained, and those of the training.
fn balance((baseline, training): (f64, f64), devices: f64, judging_hours: f64) -> Balance {
    let hours = |seconds: f64| seconds * devices / 3600.0;
    let saved_hours = hours(baseline) - hours(training) - judging_hours;
    Balance { saved_hours, percent: saved_hours / hours(baseline) * 100.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judging_is_paid_for_before_anything_is_saved() {
        // 4 devices; the baseline takes 10 hours, the training 5, judging took 2 device hours.
        let whole = balance((36e3, 18e3), 4.0, 2.0);
        assert!((whole.saved_hours - 18.0).abs() < 1e-9 && (whole.percent - 45.0).abs() < 1e-9);
        let early = balance((360.0, 180.0), 4.0, 2.0);
        assert!(early.saved_hours < 0.0 && early.percent < 0.0);
        assert_eq!(Decimal::from_f64(balance((0.0, 0.0), 4.0, 0.0).percent), None, "nothing was trained");
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
