//! Values of parameters and settings.

use std::collections::BTreeMap;
use std::fmt;

/// Value of a parameter or a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A real number.
    Float(f64),
    /// A whole number.
    Int(i64),
    /// One of a list of texts.
    Text(String),
}

/// Values of the active parameters by name.
pub type Point = BTreeMap<String, Value>;

impl Value {
    /// Whether this is the same value, up to the rounding of a multiple of a step.
    fn is_same(&self, other: &Self) -> bool {
        match (self.number(), other.number()) {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()),
            _ => self == other,
        }
    }

    /// The number, of a number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Int(number) => Some(*number as f64),
            Self::Text(_) => None,
        }
    }
}

/// Whether two points have the same values.
pub(crate) fn is_same(a: &Point, b: &Point) -> bool {
    a.len() == b.len() && a.iter().all(|(name, value)| b.get(name).is_some_and(|other| value.is_same(other)))
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(number) => number.fmt(f),
            Self::Int(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}
