//! Decimal numbers as strings: the Kubernetes API conventions forbid floats.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A finite decimal number that is written as a string, such as `"1.36"` or `"1.4e-3"`.
///
/// It keeps its text: two values are equal when their texts are, and [`Ord`] compares texts. Compare numbers with
/// [`Decimal::value`].
///
/// ```
/// use pawl_contract::decimal::Decimal;
///
/// let ratio: Decimal = "1.36".parse()?;
/// assert_eq!(ratio.value(), 1.36);
/// assert_eq!(Decimal::from_f64(1.0 / 3.0).unwrap().as_str(), "0.333333");
/// assert!("1,36".parse::<Decimal>().is_err());
/// # Ok::<(), pawl_contract::decimal::NotADecimal>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Decimal(String);

/// Error: the text is not a finite decimal number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotADecimal(pub String);

impl fmt::Display for NotADecimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a decimal number: write one in quotes, such as \"1.02\" or \"1.4e-3\"", self.0)
    }
}

impl std::error::Error for NotADecimal {}

/// Zero.
impl Default for Decimal {
    fn default() -> Self {
        Self("0".to_owned())
    }
}

impl Decimal {
    /// The pattern that the JSON Schema enforces. With an exponent of two digits every number is finite.
    pub const PATTERN: &'static str = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?$";

    /// Rounds `value` to six significant digits, and to 0 below 1e-99; `None` when it is not finite, or 1e100 or
    /// larger.
    ///
    /// Six digits keep a status document short and equal for values that differ only by rounding.
    pub fn from_f64(value: f64) -> Option<Self> {
        if !value.is_finite() {
            return None;
        }
        let value = if value.abs() < 1e-99 { 0.0 } else { value };
        let rounded: f64 = format!("{value:.5e}").parse().ok()?;
        let magnitude = rounded.abs();
        if magnitude >= 1e100 {
            return None;
        }
        let text = if magnitude != 0.0 && !(1e-4..1e15).contains(&magnitude) {
            format!("{rounded:e}")
        } else {
            format!("{rounded}")
        };
        Some(Self(text))
    }

    /// The number. Always finite.
    pub fn value(&self) -> f64 {
        self.0.parse().unwrap_or(0.0)
    }

    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Decimal {
    type Err = NotADecimal;

    fn from_str(text: &str) -> Result<Self, NotADecimal> {
        let plain = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
        let exponent = text.split(['e', 'E']).nth(1).unwrap_or_default().trim_start_matches(['+', '-']);
        match text.parse::<f64>() {
            Ok(value) if plain && value.is_finite() && exponent.len() <= 2 => Ok(Self(text.to_owned())),
            _ => Err(NotADecimal(text.to_owned())),
        }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Decimal {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Decimal".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "maxLength": 32, "pattern": Self::PATTERN})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_significant_digits_survive() {
        for (value, text) in [(1.0 / 3.0, "0.333333"), (1234567.0, "1234570"), (0.0, "0"), (-2.5e-7, "-2.5e-7")] {
            assert_eq!(Decimal::from_f64(value).unwrap().as_str(), text);
        }
        assert_eq!(Decimal::from_f64(f64::NAN), None);
        assert_eq!(Decimal::from_f64(9.999999e99), None);
        assert_eq!(Decimal::from_f64(-1e-120).unwrap().value(), 0.0);
    }

    #[test]
    fn rejects_what_is_not_finite_or_not_a_number() {
        for text in ["", "x", "NaN", "inf", "1e999", "1e-100", "0x10", "1,5"] {
            assert!(text.parse::<Decimal>().is_err(), "{text}");
        }
    }
}
