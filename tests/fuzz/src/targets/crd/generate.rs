//! Values that conform to a structural schema.

use arbitrary::{Result, Unstructured};
use regex::Regex;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::HashMap;

/// Texts to choose from: names that refer to each other, and what numbers, times, quantities and addresses look like.
#[rustfmt::skip]
const TEXTS: &[&str] = &[
    "a", "b", "c", "compile", "loss", "ups", "learningRate", "0", "1", "0.5", "1.02", "-1", "+1e300", "1e-300", "9e999", ".5", "5.",
    "100", "49.999", "1s", "10m", "1.5h", "999999999999h", "0.0001ms", "1h2m3s", "0s", "87600h", "50Gi", "1.5Ti", "9999999999999999Pi",
    "0.1k", "pvc://claim/dir", "s3://bucket/dir", "gs://b", "file:///d", "None", "NCCL_ALGO", "Ring", "2026-01-01T00:00:00Z", "",
    "nvidia.com/gpu", "quay.io/a/b@sha256:0", "/data", "500m", "\u{0}", "ä\u{1F980}", "2", "24", "1e", "0x10",
];
/// Number of the names at the beginning of [`TEXTS`].
const NAMES: usize = 3;
/// Fields that are almost always present, because little is tested without them.
const COMMON: &[&str] = &["workload", "phases", "settings", "name", "gates", "train"];
/// Deepest nesting; absent fields from there on.
const DEEPEST: usize = 12;

/// A value that conforms to `schema`. `name` is that of the field.
pub fn value(schema: &Value, choices: &mut Unstructured<'_>, name: &str) -> Result<Value> {
    inner(schema, choices, name, 0)
}

fn inner(schema: &Value, choices: &mut Unstructured<'_>, name: &str, depth: usize) -> Result<Value> {
    if let Some(values) = schema["enum"].as_array() {
        return choices.choose(values).cloned();
    }
    match schema["type"].as_str() {
        Some("string") => text(schema, choices, name).map(Value::String),
        Some("integer") => integer(schema, choices),
        Some("number") => Ok(json!(f64::from(choices.int_in_range(-1000..=1000)?) / 8.0)),
        Some("boolean") => Ok(json!(choices.arbitrary::<bool>()?)),
        Some("array") => list(schema, choices, name, depth),
        Some("object") => object(schema, choices, depth),
        _ if schema["x-kubernetes-int-or-string"] == true => {
            let texts = ["1", "500m", "2Gi", "1e3", "-1", "0", "Unlimited"];
            Ok(if chance(choices, 1, 3)? {
                json!(choices.int_in_range(0..=8)?)
            } else {
                json!(choices.choose(&texts)?)
            })
        }
        _ => anything(choices, depth),
    }
}

/// True for `some` of `all` choices, and never once there are no choices left.
fn chance(choices: &mut Unstructured<'_>, some: u8, all: u8) -> Result<bool> {
    Ok(!choices.ratio(all - some, all)?)
}

/// A value of a field that may have any.
fn anything(choices: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    Ok(match choices.int_in_range(0..=6)? {
        0 => json!(choices.arbitrary::<bool>()?),
        1 => json!(choices.arbitrary::<i64>()?),
        2 => json!(choices.choose(TEXTS)?),
        3 if depth < DEEPEST => json!([anything(choices, depth + 1)?]),
        4 if depth < DEEPEST => json!({*choices.choose(TEXTS)?: anything(choices, depth + 1)?}),
        5 => json!(f64::from(choices.arbitrary::<i16>()?) / 256.0),
        _ => json!("x"),
    })
}

fn text(schema: &Value, choices: &mut Unstructured<'_>, name: &str) -> Result<String> {
    if schema["format"] == "date-time" {
        return Ok("2026-01-01T00:00:00Z".to_owned());
    }
    let bound = |key: &str| schema[key].as_u64().and_then(|bound| usize::try_from(bound).ok());
    let (least, most) = (bound("minLength").unwrap_or(0), bound("maxLength").unwrap_or(64));
    let pattern = schema["pattern"].as_str();
    // Phases refer to each other by name.
    let refers = matches!(name, "name" | "requires" | "conflictsWith") && chance(choices, 3, 4)?;
    let texts = if refers { &TEXTS[..NAMES] } else { TEXTS };
    for _ in 0..4 {
        let mut text = (*choices.choose(texts)?).to_owned();
        if chance(choices, 1, 8)? {
            text.push_str(choices.choose(TEXTS)?);
        }
        let length = text.chars().count();
        if (least..=most).contains(&length) && pattern.is_none_or(|pattern| matches(pattern, &text)) {
            return Ok(text);
        }
    }
    // One of the texts fits every pattern and length of the schema.
    let fits = |text: &&&str| {
        text.len() >= least && text.len() <= most && pattern.is_none_or(|pattern| matches(pattern, text))
    };
    Ok(TEXTS.iter().find(fits).unwrap_or_else(|| panic!("{name}: no text conforms to {schema}")).to_string())
}

fn matches(pattern: &str, text: &str) -> bool {
    thread_local! {
        static COMPILED: RefCell<HashMap<String, Regex>> = RefCell::default();
    }
    COMPILED.with_borrow_mut(|compiled| {
        let make = || Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        compiled.entry(pattern.to_owned()).or_insert_with(make).is_match(text)
    })
}

fn integer(schema: &Value, choices: &mut Unstructured<'_>) -> Result<Value> {
    let bound = |key: &str| schema[key].as_i64().or_else(|| schema[key].as_f64().map(|bound| bound as i64));
    let int32 = schema["format"] == "int32";
    let (lowest, highest) = if int32 { (i32::MIN.into(), i32::MAX.into()) } else { (i64::MIN, i64::MAX) };
    let least = bound("minimum").unwrap_or(lowest).max(lowest);
    let most = bound("maximum").unwrap_or(highest).min(highest);
    let chosen = match choices.int_in_range(0..=4)? {
        0 => least,
        1 => most,
        2 => choices.int_in_range(least..=most)?,
        _ => least.saturating_add(choices.int_in_range(0..=16)?).min(most),
    };
    Ok(json!(chosen))
}

fn list(schema: &Value, choices: &mut Unstructured<'_>, name: &str, depth: usize) -> Result<Value> {
    let least = schema["minItems"].as_u64().unwrap_or(0);
    let most = schema["maxItems"].as_u64().unwrap_or(u64::MAX).min(least + 4);
    let mut items: Vec<Value> = Vec::new();
    let length = if depth < DEEPEST { choices.int_in_range(least..=most)? } else { least };
    let keys: Vec<&str> =
        schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for _ in 0..length {
        let item = inner(&schema["items"], choices, name, depth + 1)?;
        let same = |other: &Value| match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => *other == item,
            Some("map") => {
                keys.iter().all(|key| defaulted_key(schema, other, key) == defaulted_key(schema, &item, key))
            }
            _ => false,
        };
        if !items.iter().any(same) {
            items.push(item);
        }
    }
    // Too few remain only where all were equal: the API server would refuse the list.
    if (items.len() as u64) < least { Err(arbitrary::Error::IncorrectFormat) } else { Ok(Value::Array(items)) }
}

/// The key of an item of a list, which may have a default.
fn defaulted_key<'v>(schema: &'v Value, item: &'v Value, key: &str) -> &'v Value {
    item.get(key).unwrap_or_else(|| &schema["items"]["properties"][key]["default"])
}

fn object(schema: &Value, choices: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let mut fields = Map::new();
    let required =
        |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|known| known == name));
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let present = if required(name) {
            true
        } else if depth >= DEEPEST {
            false
        } else if COMMON.contains(&name.as_str()) {
            chance(choices, 3, 4)?
        } else {
            chance(choices, 1, 6)?
        };
        if present {
            fields.insert(name.clone(), inner(property, choices, name, depth + 1)?);
        }
    }
    let values = &schema["additionalProperties"];
    let preserved = schema["x-kubernetes-preserve-unknown-fields"] == true;
    if (values.is_object() || preserved) && depth < DEEPEST {
        let most = schema["maxProperties"].as_u64().unwrap_or(2).min(2);
        for _ in 0..choices.int_in_range(0..=most)? {
            let name = *choices.choose(TEXTS)?;
            let value =
                if preserved { anything(choices, depth + 1)? } else { inner(values, choices, name, depth + 1)? };
            fields.insert(name.to_owned(), value);
        }
    }
    if (fields.len() as u64) < schema["minProperties"].as_u64().unwrap_or(0)
        && let Some((name, property)) = schema["properties"].as_object().and_then(|properties| properties.iter().next())
    {
        fields.insert(name.clone(), inner(property, choices, name, depth + 1)?);
    }
    Ok(Value::Object(fields))
}

/// `value` with the defaults of `schema`, as the API server stores it.
pub fn defaulted(schema: &Value, mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(default) = property.get("default") {
                    fields.entry(name.clone()).or_insert_with(|| default.clone());
                }
                if let Some(field) = fields.get_mut(name) {
                    *field = defaulted(property, field.take());
                }
            }
            let values = schema.get("additionalProperties").filter(|values| values.is_object());
            let others = |name: &str| schema["properties"].get(name).is_none();
            if let Some(values) = values {
                for (_, field) in fields.iter_mut().filter(|(name, _)| others(name)) {
                    *field = defaulted(values, field.take());
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = defaulted(&schema["items"], item.take())),
        _ => {}
    }
    value
}
