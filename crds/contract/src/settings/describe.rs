//! What the table adds to the schema of the settings.

use super::row::{Kind, Range, Setting};
use schemars::Schema;
use serde_json::{Map, Value, json};
use std::ops::Bound::{Excluded, Included, Unbounded};

/// Adds ranges of integers and defaults. Ranges of decimal numbers, which are strings, are validation rules of the API.
pub(super) fn describe(rows: &[Setting], schema: &mut Schema) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for row in rows {
        let Some(property) = properties.get_mut(&row.name).and_then(Value::as_object_mut) else { continue };
        if let (Kind::Integer, Some(range)) = (row.kind, row.range) {
            bound(property, range);
        }
        let default = match row.scalar_default() {
            Some(Value::String(name)) => format!(" Default `{name}`."),
            Some(value) => format!(" Default {value}."),
            None => continue,
        };
        if let Some(Value::String(text)) = property.get_mut("description") {
            text.push_str(&default);
        }
    }
}

fn bound(property: &mut Map<String, Value>, (low, high): Range) {
    for (key, end) in [("minimum", low), ("maximum", high)] {
        match end {
            Included(end) | Excluded(end) => drop(property.insert(key.to_owned(), json!(end as u64))),
            Unbounded => {}
        }
    }
}
