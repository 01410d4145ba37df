//! Values of a CEL interpreter.

use cel::Value as Cel;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// A JSON value as CEL sees it.
pub fn to_cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => n.as_i64().map_or_else(|| Cel::Float(n.as_f64().expect("a number of JSON")), Cel::Int),
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), to_cel(v))).collect::<HashMap<String, Cel>>().into(),
    }
}
