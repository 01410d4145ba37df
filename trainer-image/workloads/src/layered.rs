//! Layered configurations: a preset, overridden by the manifest, overridden by a phase's patch.

use crate::workload::WorkloadError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

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
pub(crate) fn preset<T: DeserializeOwned>(
    asked: &Value,
    field: &str,
    default: T,
    problem: &str,
) -> Result<T, WorkloadError> {
    let Some(name) = asked.get(field) else { return Ok(default) };
    T::deserialize(name).map_err(|_| WorkloadError::config(field, name, problem))
}

/// `preset`, overridden by `asked`.
pub(crate) fn over(mut preset: Value, asked: &Value) -> Value {
    overlay(&mut preset, asked);
    preset
}

/// Reads a complete configuration.
///
/// # Errors
/// Names the field that is missing, unknown or of another type, and its value.
pub fn parse<T: DeserializeOwned>(complete: &Value) -> Result<T, WorkloadError> {
    serde_path_to_error::deserialize(complete).map_err(|error| {
        let path = error.path().to_string();
        let pointer = format!("/{}", path.replace('.', "/"));
        let value = complete.pointer(&pointer).unwrap_or(&Value::Null);
        WorkloadError::config(&path, value, &error.inner().to_string())
    })
}
