//! Errors of a specification: field, value, message, remedy.

use serde_json::Value;
use std::fmt;

/// Minimum similarity (1 is equal) of two names for one to be suggested for the other.
const ALIKE: f64 = 0.7;

/// `text` in quotes, with what JSON escapes escaped: a string as the value of a [`Problem`].
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The one of `names` that is most similar to `wrong`, if it is similar enough to have been meant: the case of letters,
/// `_` and `-` do not count.
pub fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| name.to_lowercase().replace(['_', '-'], "");
    let distance = |name: &&str| strsim::damerau_levenshtein(&plain(wrong), &plain(name));
    let (distance, name) = names.into_iter().map(|name| (distance(&name), name)).min_by_key(|(least, _)| *least)?;
    let longer = wrong.len().max(name.len()).max(1);
    (1.0 - distance as f64 / longer as f64 >= ALIKE).then_some(name)
}

/// The remedy for a name that is none of `names`: the one that was probably meant, and all of them.
///
/// ```
/// use pawl_contract::problem::choose;
///
/// assert_eq!(choose("direktory", &["source", "directory"]), "did you mean directory? Choose one of source, directory");
/// assert_eq!(choose("width", &["source", "directory"]), "choose one of source, directory");
/// ```
pub fn choose(wrong: &str, names: &[&str]) -> String {
    let all = names.join(", ");
    match nearest(wrong, names.iter().copied()) {
        Some(meant) => format!("did you mean {meant}? Choose one of {all}"),
        None => format!("choose one of {all}"),
    }
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
