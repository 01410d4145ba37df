//! Rules of configurations beyond their types: an error names the field, the value and the remedy.

use crate::workload::WorkloadError;
use serde_json::Value;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// The result of a rule.
pub(crate) type Validated = Result<(), WorkloadError>;

/// The error that `field` of the configuration must not be `value`.
pub(crate) fn wrong(field: &str, value: &dyn Display, remedy: &str) -> Validated {
    Err(WorkloadError::config(field, &Value::String(value.to_string()), remedy))
}

/// Requires a number within limits.
pub(crate) fn bounded(field: &str, value: usize, limits: RangeInclusive<usize>) -> Validated {
    match limits.contains(&value) {
        true => Ok(()),
        false => wrong(field, &value, &format!("must be between {} and {}", limits.start(), limits.end())),
    }
}

/// Requires a probability of dropout, of which something must be left.
pub(crate) fn dropout(field: &str, probability: f64) -> Validated {
    match (0.0..1.0).contains(&probability) {
        true => Ok(()),
        false => wrong(field, &probability, "must be at least 0 and less than 1"),
    }
}

/// Requires a fraction, which may be 0 or 1.
pub(crate) fn fraction(field: &str, value: f64) -> Validated {
    match (0.0..=1.0).contains(&value) {
        true => Ok(()),
        false => wrong(field, &value, "must be between 0 and 1"),
    }
}
