//! Layered configurations: a preset, overridden by the manifest, overridden by a phase's patch.

use crate::names::{choices, unknown};
use crate::workload::WorkloadError;
use pawl_contract::problem::nearest;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;

/// Merges `patch` into `base`: objects key by key, all other values are replaced.
pub fn overlay(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                overlay(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, patch) => *base = patch.clone(),
    }
}

/// `config` (`spec.workload.config`), overridden by `patch` (`settings.workload`): what a job asks for, over a preset.
pub(crate) fn asked(config: &Map<String, Value>, patch: &Map<String, Value>) -> Value {
    let mut asked = Value::Object(config.clone());
    overlay(&mut asked, &Value::Object(patch.clone()));
    asked
}

/// The preset that `asked` names in `field`, or `default`.
///
/// # Errors
/// When there is no such preset; `problem` lists those that there are.
pub(crate) fn preset<T: DeserializeOwned + JsonSchema>(
    asked: &Value,
    field: &str,
    default: T,
    problem: &str,
) -> Result<T, WorkloadError> {
    let Some(name) = asked.get(field) else { return Ok(default) };
    T::deserialize(name).map_err(|_| {
        let schema = schemars::schema_for!(T).to_value();
        let meant = name.as_str().and_then(|name| nearest(name, choices(&schema)));
        let meant = meant.map(|meant| format!(" (did you mean {meant}?)")).unwrap_or_default();
        WorkloadError::config(field, name, &format!("{problem}{meant}"))
    })
}

/// `preset`, overridden by `asked`.
pub(crate) fn over(mut preset: Value, asked: &Value) -> Value {
    overlay(&mut preset, asked);
    preset
}

/// Reads a complete configuration.
///
/// # Errors
/// Names the field that is missing, unknown or of another type, its value, and what there is instead of an unknown
/// name.
pub fn parse<T: DeserializeOwned + JsonSchema>(complete: &Value) -> Result<T, WorkloadError> {
    serde_path_to_error::deserialize(complete).map_err(|error| {
        let path: Vec<&Segment> = error.path().iter().collect();
        let value = path.iter().try_fold(complete, |value, segment| match segment {
            Segment::Map { key } => value.get(key),
            Segment::Seq { index } => value.get(index),
            Segment::Enum { .. } | Segment::Unknown => None,
        });
        let value = value.unwrap_or(&Value::Null);
        let problem = unknown(&schemars::schema_for!(T).to_value(), &path, value);
        let problem = problem.unwrap_or_else(|| error.inner().to_string());
        WorkloadError::config(&error.path().to_string(), value, &problem)
    })
}
