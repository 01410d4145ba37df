//! Bytes as strings, such as `50Gi`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// A number of bytes in the form of Kubernetes' quantities: `512Mi`, `50Gi`, `2G`, `1048576`.
///
/// A non-negative decimal number with an optional suffix: `k`, `M`, `G`, `T`, `P` (powers of 1000) or `Ki`, `Mi`, `Gi`,
/// `Ti`, `Pi` (powers of 1024). More than 9e18 bytes count as 9e18. Two values are equal when their texts are.
///
/// ```
/// use pawl_api::quantity::Bytes;
///
/// let limit: Bytes = "1.5Gi".parse()?;
/// assert_eq!(limit.get(), 3 << 29);
/// assert!("5GiB".parse::<Bytes>().is_err());
/// # Ok::<(), pawl_api::quantity::NotBytes>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Bytes(String);

/// Error: the text is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a number of bytes: write a number with Ki, Mi, Gi, Ti (or k, M, G, T), such as \"50Gi\"")]
pub struct NotBytes(pub String);

impl Bytes {
    /// The pattern that the JSON Schema enforces.
    pub const PATTERN: &'static str = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$";

    /// The number of bytes, rounded down.
    pub fn get(&self) -> u64 {
        parse(&self.0).unwrap_or(0)
    }

    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A number of bytes in the largest binary unit that keeps three significant digits, such as `1.25Gi`.
    pub fn display(bytes: u64) -> String {
        let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
        let power = ((63 - bytes.max(1).leading_zeros()) as usize / 10).min(5);
        let scaled = bytes as f64 / (1u64 << (10 * power)) as f64;
        match power {
            0 => format!("{bytes}"),
            _ if scaled >= 100.0 => format!("{scaled:.0}{}", units[power]),
            _ => format!("{scaled:.2}{}", units[power]),
        }
    }
}

/// Largest number of bytes, below that of signed 64-bit integers.
const MOST: f64 = 9.0e18;

fn parse(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let scale: f64 = match suffix {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "Ki" => 1024f64,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * scale;
    // What the pattern accepts is readable: the API server accepts it, too.
    bytes.is_finite().then(|| bytes.min(MOST) as u64)
}

impl FromStr for Bytes {
    type Err = NotBytes;

    fn from_str(text: &str) -> Result<Self, NotBytes> {
        parse(text).map(|_| Self(text.to_owned())).ok_or_else(|| NotBytes(text.to_owned()))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Bytes {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": 32, "pattern": Self::PATTERN})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_quantities_and_writes_them() {
        assert_eq!("50Gi".parse::<Bytes>().unwrap().get(), 50 << 30);
        assert_eq!("1.5k".parse::<Bytes>().unwrap().get(), 1500);
        for text in ["", "Gi", "-1Gi", "5GiB", "1e3"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!("99999999999Pi".parse::<Bytes>().unwrap().get(), 9_000_000_000_000_000_000);
        assert_eq!(Bytes::display(50 << 30), "50.00Gi");
        assert_eq!(Bytes::display(0), "0");
        assert_eq!(Bytes::display(u64::MAX), "16384Pi");
    }
}
