//! Hashes of the inputs of verdicts, and of what attempts are made from.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The first `digits` (at most 64) hexadecimal digits of the SHA-256 of the value's canonical JSON: keys sorted, no
/// spaces.
///
/// `fingerprint(&json!({"a": 1}), 4)` is the same wherever and whenever it is computed: the status stores it.
pub fn fingerprint(value: &impl Serialize, digits: usize) -> String {
    let mut text = String::new();
    // A value that is not JSON (a map with keys that are not strings) cannot occur in a manifest.
    canonical(&serde_json::to_value(value).unwrap_or(Value::Null), &mut text);
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex.truncate(digits);
    hex
}

/// JSON with sorted keys and without spaces: equal values give equal text, however their maps are ordered.
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.keys().collect();
            keys.sort_unstable();
            out.push('{');
            for key in keys {
                let _ = write!(out, "{}:", Value::from(key.as_str()));
                canonical(&map[key], out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let _ = write!(out, "{value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_keys_does_not_matter_and_values_do() {
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let hash = |text: &str| fingerprint(&parse(text), 16);
        assert_eq!(
            hash(r#"{"a": 1, "b": {"c": [1, 2], "d": "x"}}"#),
            hash(r#"{"b": {"d": "x", "c": [1, 2]}, "a": 1}"#)
        );
        assert_ne!(hash(r#"{"a": [1, 2]}"#), hash(r#"{"a": [2, 1]}"#));
        assert_ne!(hash(r#"{"a": "1"}"#), hash(r#"{"a": 1}"#));
    }
}
