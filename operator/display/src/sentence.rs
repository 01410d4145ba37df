//! The result of a ladder in one sentence.

use crate::settings::{Difference, differences};
use pawl_api::status::{PhaseState, QualityStatus, Speedup};
use pawl_api::{TrainingJob, TrainingJobStatus};

/// How much faster the accepted settings are, what the quality did, and which settings to keep. `None` while a verdict
/// is open, and for a job without phases. Of texts that may be obeyed by a terminal, the caller takes care.
///
/// `4.20 times as fast as the baseline (at least 3.81), validation loss +0.0001 (0.01 more allowed). Keep: compile: Graph`
pub fn sentence(job: &TrainingJob, status: &TrainingJobStatus) -> Option<String> {
    if status.phases.is_empty() || status.phases.iter().any(|phase| !phase.state.is_final()) {
        return None;
    }
    let accepted: Vec<_> = status.phases.iter().filter(|phase| phase.state == PhaseState::Accepted).collect();
    let (speedup, quality) = match (&status.bundle, &accepted[..]) {
        (_, []) => return Some("No phase was accepted: the baseline is kept.".to_owned()),
        (Some(bundle), _) if bundle.state == PhaseState::Accepted && !bundle.outdated => {
            (bundle.speedup.as_ref()?, bundle.quality.as_ref())
        }
        (None, [phase]) => (phase.speedup.as_ref()?, phase.quality.as_ref()),
        _ => return None,
    };
    let quality = quality.map(|quality| of_quality(job, quality)).unwrap_or_default();
    let effective = status.effective_settings.as_ref()?;
    let changed: Vec<String> = differences(&job.spec.settings, effective)
        .into_iter()
        .filter(Difference::changed)
        .map(|setting| format!("{}: {}", setting.name, setting.effective.unwrap_or_else(|| "default".to_owned())))
        .collect();
    Some(format!("{}{quality}. Keep: {}", times(speedup), changed.join(", ")))
}

/// `4.20 times as fast as the baseline`, with the lower bound.
fn times(speedup: &Speedup) -> String {
    let number = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
    let least = speedup.lower.as_ref().map(|lower| format!(" (at least {})", number(lower.value())));
    format!("{} times as fast as the baseline{}", number(speedup.estimate.value()), least.unwrap_or_default())
}

/// How the validation loss changed, and how much more of it the gates allow.
fn of_quality(job: &TrainingJob, quality: &QualityStatus) -> String {
    let allowed = job.spec.gates.validation_loss_delta.as_ref().map(|gate| format!(" ({gate} more allowed)"));
    format!(", validation loss {:+.4}{}", quality.loss_delta.value(), allowed.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn told(phases: Value, bundle: Value) -> Option<String> {
        let spec = json!({"workload": {"name": "ups"}, "settings": {"batchPerGpu": 8},
            "gates": {"validationLossDelta": "0.01"}});
        let job = serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": spec})).unwrap();
        let effective = json!({"batchPerGpu": 8, "compile": "Graph", "lossFrequency": 4});
        let status = json!({"phases": phases, "bundle": bundle, "effectiveSettings": effective});
        sentence(&job, &serde_json::from_value(status).unwrap())
    }

    #[test]
    fn all_accepted_phases_together_are_told_with_their_bound_and_their_quality() {
        let phases = json!([{"name": "a", "state": "Accepted"}, {"name": "b", "state": "Accepted"}]);
        let bundle = json!({"inputHash": "x", "state": "Accepted", "reason": "", "message": "",
            "speedup": {"estimate": "4.2", "lower": "3.812", "pairs": 3},
            "quality": {"lossDelta": "0.0001", "seeds": 1, "items": 64}});
        let expected = "4.20 times as fast as the baseline (at least 3.81), validation loss +0.0001 (0.01 more allowed). Keep: \
                        compile: Graph, lossFrequency: 4";
        assert_eq!(told(phases.clone(), bundle).as_deref(), Some(expected));
        assert_eq!(told(phases, Value::Null), None, "they were not measured together");
    }

    #[test]
    fn one_phase_stands_for_itself_and_none_keeps_the_baseline() {
        let phase = |state: &str| json!([{"name": "a", "state": state, "speedup": {"estimate": "12.34", "pairs": 1}}]);
        let one = told(phase("Accepted"), Value::Null).unwrap();
        assert!(one.starts_with("12.3 times as fast as the baseline. Keep: compile"), "{one}");
        assert_eq!(
            told(phase("RolledBack"), Value::Null).as_deref(),
            Some("No phase was accepted: the baseline is kept.")
        );
        assert_eq!(told(phase("Measuring"), Value::Null), None);
    }
}
