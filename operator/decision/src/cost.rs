//! What a job cost, and what it saved.

use crate::draft::Draft;
use crate::launch::gang;
use pawl_api::spec::TrainingJobSpec;
use pawl_api::status::Purpose;
use pawl_contract::decimal::Decimal;
use pawl_contract::report::LaunchResult;

/// Counts the device time of a launch.
pub(crate) fn count(draft: &mut Draft<'_>, result: &LaunchResult) {
    let purpose = draft.status.attempt.as_ref().map(|attempt| attempt.purpose);
    // A negative or absurd time counts as none; the cast saturates.
    let milliseconds = (result.wall_seconds.max(0.0) * devices(draft.spec, purpose) * 1000.0) as u64;
    let cost = draft.status.cost.get_or_insert_default();
    if let Some(purpose) = purpose {
        let spent = cost.purposes.entry(purpose).or_default();
        *spent = spent.saturating_add(milliseconds);
    }
    cost.device_milliseconds = cost.device_milliseconds.saturating_add(milliseconds);
    let hours = cost.device_milliseconds as f64 / 3.6e6;
    cost.gpu_hours = Decimal::from_f64(hours);
    let price = draft.spec.cost.gpu_hour.as_ref().map(Decimal::value);
    cost.spent = price.and_then(|price| Decimal::from_f64(hours * price));
    cost.currency = if price.is_some() { draft.spec.cost.currency.clone() } else { String::new() };
}

/// What a launch is paid for: GPUs, or processes of a job that has none.
fn devices(spec: &TrainingJobSpec, purpose: Option<Purpose>) -> f64 {
    let gang = gang(spec, purpose.unwrap_or(Purpose::Train));
    let free = spec.trainer.gpus_per_replica > 0 && gang.gpus_per_replica == 0;
    if free { 0.0 } else { f64::from(gang.replicas) * f64::from(gang.ranks_per_replica) }
}

/// Estimates what training the same items with the baseline would have cost more.
pub(crate) fn saved(draft: &mut Draft<'_>) {
    let baseline = draft.status.baseline.as_ref().and_then(|baseline| baseline.items_per_second.as_ref());
    let training = draft.status.training.as_ref();
    let speed = training.and_then(|training| training.items_per_second.as_ref());
    let (Some(baseline), Some(speed), Some(price)) = (baseline, speed, draft.spec.cost.gpu_hour.as_ref()) else {
        return;
    };
    let items = training.map_or(0, |training| training.items) as f64;
    let world = f64::from(draft.spec.trainer.world_size().max(1));
    let seconds = items / baseline.value() - items / speed.value();
    let saved = Decimal::from_f64(seconds * world / 3600.0 * price.value());
    if saved.is_some() {
        draft.status.cost.get_or_insert_default().saved = saved;
    }
}
