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
    /// The number, of a number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Int(number) => Some(*number as f64),
            Self::Text(_) => None,
        }
    }
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
