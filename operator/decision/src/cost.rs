//! What a job cost, and what it saved.

use crate::draft::Draft;
use pawl_contract::decimal::Decimal;
use pawl_contract::report::LaunchResult;

/// Counts the device time of a launch.
pub(crate) fn count(draft: &mut Draft<'_>, result: &LaunchResult) {
    let world = f64::from(draft.spec.trainer.world_size().max(1));
    // A negative or absurd time counts as none; the cast saturates.
    let milliseconds = (result.wall_seconds.max(0.0) * world * 1000.0) as u64;
    let purpose = draft.status.attempt.as_ref().map(|attempt| attempt.purpose);
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
