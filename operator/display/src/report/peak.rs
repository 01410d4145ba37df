//! The peak memory of the accepted settings beside that of the baseline.

use crate::numbers::bytes;
use crate::together::is_current;
use pawl_api::TrainingJobStatus;
use pawl_api::status::PhaseState;

/// Change, in parts of the baseline's, from which it is one of the key numbers.
const LARGE: f64 = 0.1;

/// Label, value and detail of its tile; `None` where the peaks hardly differ, or one of them was not measured.
pub fn tile(status: &TrainingJobStatus) -> Option<(String, String, String)> {
    let before = status.baseline.as_ref()?.measured.peak_memory_bytes?;
    let after = accepted(status)?;
    let change = after as f64 / before as f64 - 1.0;
    (change.abs() > LARGE).then(|| ("peak memory".to_owned(), bytes(after), format!("baseline {}", bytes(before))))
}

/// Of all accepted phases together, or of the last one that was accepted, which is measured on top of the others.
fn accepted(status: &TrainingJobStatus) -> Option<u64> {
    let bundle =
        status.bundle.as_ref().filter(|bundle| bundle.state == PhaseState::Accepted && is_current(bundle, status));
    let last = || status.phases.iter().rfind(|phase| phase.state == PhaseState::Accepted);
    bundle.and_then(|bundle| bundle.measured.peak_memory_bytes).or_else(|| last()?.measured.peak_memory_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(baseline: Value, phases: Value, bundle: Value) -> Option<(String, String)> {
        let status = json!({"baseline": baseline, "phases": phases, "bundle": bundle});
        tile(&serde_json::from_value(status).unwrap()).map(|(_, value, detail)| (value, detail))
    }

    #[test]
    fn memory_that_the_accepted_settings_need_is_a_key_number_where_it_is_another_one() {
        let peak = |gib: f64| json!({"peakMemoryBytes": (gib * 1024.0 * 1024.0 * 1024.0) as u64});
        let phase = |state: &str, gib: f64| {
            let mut phase = peak(gib);
            (phase["name"], phase["state"]) = (json!("a"), json!(state));
            phase
        };
        let bundle = phase("Accepted", 50.9);
        let tile = |value: &str, detail: &str| Some((value.to_owned(), detail.to_owned()));
        let phases = json!([phase("Accepted", 30.0), phase("RolledBack", 70.0)]);
        assert_eq!(of(peak(14.3), phases.clone(), bundle), tile("50.90 GiB", "baseline 14.30 GiB"));
        assert_eq!(of(peak(14.3), phases.clone(), Value::Null), tile("30.00 GiB", "baseline 14.30 GiB"));
        assert_eq!(of(peak(29.0), phases.clone(), Value::Null), None, "hardly another one");
        assert_eq!(of(json!({}), phases, Value::Null), None);
        assert_eq!(of(peak(14.3), json!([phase("RolledBack", 70.0)]), Value::Null), None, "nothing was accepted");
    }
}
