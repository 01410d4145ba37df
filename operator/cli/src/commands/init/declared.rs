//! What a script declares of an option.

use super::words::Style;
use serde::Deserialize;
use serde_json::Value;

/// An option that a script declares.
#[derive(Debug, Default, Deserialize)]
pub struct Declared {
    /// Long names; of a positional argument, none.
    pub names: Vec<String>,
    /// Such as `-b`.
    pub short: Vec<String>,
    /// What it is followed by.
    pub takes: Takes,
    /// Its default.
    pub default: Value,
    /// The only values that it takes.
    pub choices: Vec<String>,
    /// Whether it has to be given.
    pub required: bool,
    /// How it is given.
    pub style: Style,
    /// What turns it on, where it is followed by a boolean.
    pub on: String,
    /// The name of a positional argument, or the position of one that may be given by its name too.
    pub place: Option<String>,
}

/// What an option is followed by.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Takes {
    /// Nothing: it is a switch.
    Nothing,
    /// `True` or `False`.
    Boolean,
    /// A text or a number.
    #[default]
    Value,
    /// A text or a number, or nothing, which turns it on: `nargs="?"` with a `const`.
    Optional,
    /// Unknown, such as with a custom action.
    Other,
}

impl Declared {
    /// Whether a value may follow it.
    pub const fn has_value(&self) -> bool {
        matches!(self.takes, Takes::Value | Takes::Boolean | Takes::Optional)
    }

    /// What turns it on.
    pub fn on(&self) -> &str {
        if self.on.is_empty() { "True" } else { &self.on }
    }
}
