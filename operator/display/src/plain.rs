//! Removes control characters from texts that a trainer, or anyone who may write a status, chose.

use pawl_contract::report::printable;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// `value` with every text, and every name in a map, as [`printable`] returns it: a terminal that displays them obeys
/// nothing.
pub fn plain<T: Clone + Serialize + DeserializeOwned>(value: &T) -> T {
    let Ok(mut json) = serde_json::to_value(value) else { return value.clone() };
    if !clean(&mut json) {
        return value.clone();
    }
    // Names that differ only in control characters may become equal, which every type of the API accepts.
    serde_json::from_value(json).unwrap_or_else(|_| value.clone())
}

/// Cleans `value`; returns whether anything changed.
fn clean(value: &mut Value) -> bool {
    match value {
        Value::String(text) => {
            let cleaned = printable(text);
            let changed = cleaned != *text;
            *text = cleaned;
            changed
        }
        // No short circuit: every element is cleaned.
        Value::Array(values) => values.iter_mut().fold(false, |changed, value| clean(value) | changed),
        Value::Object(fields) => {
            let mut changed = false;
            for (name, mut value) in std::mem::take(fields) {
                changed |= clean(&mut value);
                let cleaned = printable(&name);
                changed |= cleaned != name;
                fields.insert(cleaned, value);
            }
            changed
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::summary::{self, Places};
    use crate::{headline, table};
    use pawl_api::{TrainingJob, TrainingJobStatus};
    use pawl_contract::report::unprintable;
    use serde_json::json;

    const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\rlost\u{202e}\u{200b}\u{2028}\u{e0041}";

    #[test]
    fn control_characters_of_a_trainer_reach_no_terminal() {
        let name = format!("nrmse{HOSTILE}");
        let validation = json!({"items": 1, "metrics": {"loss": "0.5", name: "0.1"}});
        let status: TrainingJobStatus = serde_json::from_value(json!({
            "stage": "Training",
            "retry": {"trial": HOSTILE, "count": 1, "message": HOSTILE},
            "failure": {"reason": HOSTILE, "message": HOSTILE, "specHash": ""},
            "conditions": [{"type": "Degraded", "status": "True", "reason": HOSTILE, "message": HOSTILE,
                            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "phases": [{"name": HOSTILE, "state": "RolledBack", "reason": HOSTILE, "message": HOSTILE, "rung": 0}],
            "training": {"steps": 3, "items": 4, "straggler": HOSTILE, "degraded": HOSTILE, "storage": HOSTILE,
                         "validation": validation,
                         "lastCheckpoint": {"name": HOSTILE, "step": 1, "items": 2},
                         "bestCheckpoint": {"checkpoint": {"name": HOSTILE, "step": 1, "items": 2}, "metric": HOSTILE, "value": "0.1"}},
        }))
        .unwrap();
        let job: TrainingJob =
            serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"}}}))
                .unwrap();
        let places = Places { checkpoints: Some(HOSTILE.to_owned()), report: None };
        for text in [
            summary::render(&job, &status, &places, None, false),
            table::render(&status, Some(80), false),
            headline::render(&status, 7),
        ] {
            let obeyed: Vec<char> = text.chars().filter(|c| unprintable(*c) && *c != '\n').collect();
            assert!(obeyed.is_empty(), "{obeyed:?} in {text:?}");
        }
    }
}
