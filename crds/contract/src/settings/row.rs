//! What the table says of a setting.

use crate::decimal::Decimal;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};

/// NCCL environment variables by name.
pub type NcclVariables = BTreeMap<String, String>;
/// Settings specific to the workload.
pub type WorkloadSettings = Map<String, Value>;
/// A range of numbers.
pub type Range = (Bound<f64>, Bound<f64>);

/// One setting: a row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its name, as in a manifest.
    pub name: String,
    /// What its values are.
    pub kind: Kind,
    /// Its value where none is given; `None` where that is another one for each workload or script.
    pub default: Option<Value>,
    /// Whether it changes the numerics.
    pub numerics: Numerics,
    /// The range of a number.
    pub range: Option<Range>,
    /// For a decimal number: the remedy of an error, with an example of a valid value.
    pub remedy: Option<&'static str>,
}

impl Setting {
    /// The default, unless that is an empty map.
    pub fn scalar_default(&self) -> Option<&Value> {
        self.default.as_ref().filter(|value| !value.is_object())
    }
}

/// What the values of a setting are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One of several names.
    Choice,
    /// `true` or `false`.
    Boolean,
    /// An integer.
    Integer,
    /// A decimal number, written as a string.
    Decimal,
    /// A list or a map.
    Composite,
}

/// Whether a setting changes the numerics, whatever its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// It changes the results by rounding errors at most, or (batch sizes, `workload`) another check decides: an
    /// `Equivalent` phase may set it.
    Keeps,
    /// It changes the computation: an `Equivalent` phase must not set it.
    Changes,
}

/// Both ends of `range`, such as `1..=256` or `0.0..1.0`.
pub(super) fn ends<T: Copy + Into<f64>>(range: &impl RangeBounds<T>) -> Range {
    (range.start_bound().map(|end| (*end).into()), range.end_bound().map(|end| (*end).into()))
}

/// A type of settings.
pub(super) trait Typed: Clone {
    /// What its values are.
    const KIND: Kind;

    /// How one field of a patch changes one field of the settings: by default the value is replaced.
    fn merge(base: &Option<Self>, patch: &Option<Self>) -> Option<Self> {
        patch.clone().or_else(|| base.clone())
    }
}

impl Typed for bool {
    const KIND: Kind = Kind::Boolean;
}

impl Typed for u32 {
    const KIND: Kind = Kind::Integer;
}

impl Typed for Decimal {
    const KIND: Kind = Kind::Decimal;
}

impl Typed for NcclVariables {
    const KIND: Kind = Kind::Composite;

    fn merge(base: &Option<Self>, patch: &Option<Self>) -> Option<Self> {
        by_key(base, patch)
    }
}

impl Typed for WorkloadSettings {
    const KIND: Kind = Kind::Composite;

    fn merge(base: &Option<Self>, patch: &Option<Self>) -> Option<Self> {
        by_key(base, patch)
    }
}

fn by_key<K, V, M>(base: &Option<M>, patch: &Option<M>) -> Option<M>
where
    M: Clone + Default + IntoIterator<Item = (K, V)> + Extend<(K, V)>,
{
    let mut all = base.clone();
    if let Some(patch) = patch {
        all.get_or_insert_default().extend(patch.clone());
    }
    all
}

/// The given value, or the default.
pub(super) fn value_or<T: Clone>(value: &Option<T>, default: impl FnOnce() -> T) -> T {
    value.clone().unwrap_or_else(default)
}

/// The name of a field, as in a manifest.
pub(super) fn camel_case(field: &str) -> String {
    let mut words = field.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| text + &word[..1].to_uppercase() + &word[1..])
}
