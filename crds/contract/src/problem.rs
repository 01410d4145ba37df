//! Errors of a specification: field, value, message, remedy.

use serde_json::Value;
use std::fmt;

/// `text` in quotes, with what JSON escapes escaped: a string as the value of a [`Problem`].
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A validation error. Displayed as `field: value message: remedy`.
///
/// ```
/// use pawl_contract::problem::Problem;
///
/// let problem = Problem::new("spec.search[0].trials", "0", "is not positive", "use at least 1");
/// assert_eq!(problem.to_string(), "spec.search[0].trials: 0 is not positive: use at least 1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, such as `spec.phases[1].settings.precision`.
    pub field: String,
    /// The value as it was written, strings in quotes; empty when it adds no information.
    pub value: String,
    /// The violated requirement, such as `is not above 0`.
    pub message: String,
    /// How to correct it; empty when the message includes that.
    pub remedy: String,
}

impl Problem {
    /// A problem at `field`; `value`, `message` and `remedy` as in the fields of the same names.
    pub fn new(
        field: impl Into<String>,
        value: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), value: value.into(), message: message.into(), remedy: remedy.into() }
    }

    /// Value, message and remedy, without the field.
    pub fn text(&self) -> String {
        let space = if self.value.is_empty() { "" } else { " " };
        let colon = if self.remedy.is_empty() { "" } else { ": " };
        format!("{}{space}{}{colon}{}", self.value, self.message, self.remedy)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.text())
    }
}
