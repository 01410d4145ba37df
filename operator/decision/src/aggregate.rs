//! Aggregates the measurements of several launches with the same settings.

use crate::statistics::median;
use pawl_api::status::LaunchStatus;
use pawl_contract::decimal::Decimal;
use pawl_contract::measured::Measured;
use pawl_contract::plan::LaunchKind;

/// The median of the rates and shares of the Measure launches that were steady, and the maximum of all launches of
/// memory and of what is out of the range of 8-bit floats. Values that cannot be aggregated (steps, items, losses,
/// validation) are absent.
pub(crate) fn together<'a>(launches: impl Iterator<Item = &'a LaunchStatus>) -> Measured<Decimal> {
    let launches: Vec<&LaunchStatus> = launches.collect();
    let middle = |number: fn(&Measured<Decimal>) -> Option<&Decimal>| {
        let steady = |launch: &&&LaunchStatus| launch.kind == LaunchKind::Measure && launch.measured.is_steady();
        let speeds = launches.iter().filter(steady);
        median(speeds.filter_map(|launch| number(&launch.measured)).map(Decimal::value)).and_then(Decimal::from_f64)
    };
    // A preflight allocates nothing: its report has no valid peak.
    let ran = || launches.iter().filter(|launch| launch.kind != LaunchKind::Preflight);
    let largest = |number: fn(&Measured<Decimal>) -> Option<&Decimal>| {
        ran().filter_map(|launch| number(&launch.measured)).max_by(|a, b| a.value().total_cmp(&b.value())).cloned()
    };
    Measured {
        items_per_second: middle(|measured| measured.items_per_second.as_ref()),
        loader_wait_share: middle(|measured| measured.loader_wait_share.as_ref()),
        collective_wait_share: middle(|measured| measured.collective_wait_share.as_ref()),
        offload_share: middle(|measured| measured.offload_share.as_ref()),
        utilization: middle(|measured| measured.utilization.as_ref()),
        float8_overflow_share: largest(|measured| measured.float8_overflow_share.as_ref()),
        float8_underflow_share: largest(|measured| measured.float8_underflow_share.as_ref()),
        peak_memory_bytes: ran().filter_map(|launch| launch.measured.peak_memory_bytes).max(),
        predicted_memory_bytes: launches.iter().filter_map(|launch| launch.measured.predicted_memory_bytes).max(),
        ..Measured::default()
    }
}
