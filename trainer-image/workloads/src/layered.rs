//! Layered configurations: a preset, overridden by the manifest, overridden by a phase's patch.

use crate::workload::WorkloadError;
use serde::de::DeserializeOwned;
use serde_json::Value;

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
