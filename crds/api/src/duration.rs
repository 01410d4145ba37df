//! Durations as strings, such as `10m` or `1h30m`.
//!
//! Parsed here because `kube::core::Duration` panics on overflow and would bring kube into the decision core, and jiff
//! refuses some of what Kubernetes and [`Span::PATTERN`] accept (`30m1h`, `1.5h30m`) and accepts what they refuse (`2
//! hours`, `01:30:00`).

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A non-negative duration in the form that Kubernetes uses: `300ms`, `30s`, `10m`, `1h30m`.
///
/// Decimal numbers, each with a unit: `h`, `m`, `s` or `ms`. Two values are equal when their texts are: `60s` is not
/// `1m`.
///
/// ```
/// use pawl_api::duration::Span;
///
/// let limit: Span = "1h30m".parse()?;
/// assert_eq!(limit.seconds(), 5400.0);
/// assert!("1d".parse::<Span>().is_err());
/// # Ok::<(), pawl_api::duration::NotASpan>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Span(String);

/// Error: the text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a time: write numbers with the units h, m, s or ms, such as \"1h30m\" or \"45s\"")]
pub struct NotASpan(pub String);

impl Span {
    /// The pattern that the JSON Schema enforces.
    pub const PATTERN: &'static str = r"^([0-9]+(\.[0-9]+)?(h|m|s|ms))+$";

    /// The duration.
    pub fn get(&self) -> Duration {
        parse(&self.0).unwrap_or_default()
    }

    /// The duration in seconds.
    pub fn seconds(&self) -> f64 {
        self.get().as_secs_f64()
    }

    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn parse(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?)?;
        rest = next;
    }
    (!text.is_empty()).then_some(total)
}

impl FromStr for Span {
    type Err = NotASpan;

    fn from_str(text: &str) -> Result<Self, NotASpan> {
        parse(text).map(|_| Self(text.to_owned())).ok_or_else(|| NotASpan(text.to_owned()))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Span {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": 32, "pattern": Self::PATTERN})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_durations_of_kubernetes_and_rejects_others() {
        for (text, seconds) in [("10m", 600.0), ("1h30m", 5400.0), ("168h", 604_800.0), ("250ms", 0.25), ("1.5s", 1.5)]
        {
            assert_eq!(text.parse::<Span>().unwrap().seconds(), seconds, "{text}");
        }
        for text in ["", "10", "m", "10 m", "-5s", "1d", "1h30", "1..5s", "99999999999999999999999999999h"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
