//! The schema of a `TrainingJob` in the form that Kubernetes requires: structural, self-contained, bounded.
//!
//! `schemars` describes the Rust types in JSON Schema; [`of`] rewrites that into the subset of OpenAPI v3 that a
//! CustomResourceDefinition may use. The same schema checks manifests that are read from files (crate `pawl-manifest`).

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Maximum length of strings whose type sets none, characters: values of labels, annotations and environment variables.
const MAX_STRING: u64 = 4096;

/// The structural OpenAPI v3 schema of `T`, without references to other schemas.
pub fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
        object.remove("components");
        object.remove("title");
        rewrite(object);
    }
    schema
}

/// Rewrites a schema and all nested schemas into structural ones.
fn rewrite(schema: &mut Map<String, Value>) {
    unwrap_option(schema);
    fold_enum(schema);
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text
            .split("\n\n")
            .map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join("\n");
    }
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    schema.remove("nullable");
    number(schema);
    if schema.get("type").and_then(Value::as_str) == Some("array") {
        schema.entry("x-kubernetes-list-type").or_insert_with(|| json!("atomic"));
    }
    // The API server prunes or rejects unknown fields by default, and `false` is not allowed together with
    // `properties`.
    match schema.get_mut("additionalProperties") {
        Some(Value::Bool(_)) => drop(schema.remove("additionalProperties")),
        Some(Value::Object(values)) => {
            rewrite(values);
            if values.get("type").and_then(Value::as_str) == Some("string") && !values.contains_key("enum") {
                values.entry("maxLength").or_insert_with(|| json!(MAX_STRING));
            }
        }
        _ => {}
    }
    if let Some(Value::Object(items)) = schema.get_mut("items") {
        rewrite(items);
    }
    for property in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        match property {
            Value::Object(property) => rewrite(property),
            // `true` admits any value.
            other => *other = json!({"x-kubernetes-preserve-unknown-fields": true}),
        }
    }
}

/// `Option<T>` is `T`: an absent field is absent, and the API server prunes nulls.
fn unwrap_option(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = schema.get("type") {
        let real = types.iter().find(|t| t.as_str() != Some("null")).cloned();
        schema.extend(real.map(|t| ("type".to_owned(), t)));
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        let Some(Value::Array(choices)) = schema.get(key) else { continue };
        let real: Vec<_> = choices.iter().filter(|c| !is_null(c)).cloned().collect();
        if let [Value::Object(only)] = real.as_slice() {
            let only = only.clone();
            schema.remove(key);
            for (key, value) in only {
                // The description of the field is more specific than that of its type.
                schema.entry(key).or_insert(value);
            }
        }
    }
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("null")
        || schema.get("const").is_some_and(Value::is_null)
        || schema.get("enum") == Some(&json!([null]))
}

/// An enum whose variants have documentation is a list of constants; Kubernetes wants one `enum`. The documentation of
/// the variants goes into the description.
fn fold_enum(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|v| !v.is_null());
    }
    let Some(Value::Array(choices)) = schema.get("oneOf") else { return };
    let mut names = Vec::new();
    let mut lines = Vec::new();
    for choice in choices {
        let of_choice = choice.get("enum").and_then(Value::as_array).cloned();
        let constants = of_choice.unwrap_or_else(|| choice.get("const").cloned().into_iter().collect());
        if let (Some(text), [Value::String(name)]) = (choice.get("description").and_then(Value::as_str), &constants[..])
        {
            lines.push(format!("- {name}: {}", text.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
        names.extend(constants);
    }
    schema.remove("oneOf");
    schema.insert("type".to_owned(), json!("string"));
    schema.insert("enum".to_owned(), Value::Array(names));
    if !lines.is_empty() {
        let own = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        let text = format!("{own}\n\n{}", lines.join("\n\n"));
        schema.insert("description".to_owned(), json!(text.trim()));
    }
}

/// Replaces Rust's integer formats, which OpenAPI lacks, by bounds.
fn number(schema: &mut Map<String, Value>) {
    if schema.get("type").and_then(Value::as_str) != Some("integer") {
        return;
    }
    let largest = match schema.get("format").and_then(Value::as_str) {
        Some("uint16") => Some(u64::from(u16::MAX)),
        Some("uint32") => Some(u64::from(u32::MAX)),
        // No bound: JSON readers that use doubles could not represent it.
        Some("uint64" | "uint") => None,
        _ => return,
    };
    schema.insert("format".to_owned(), json!("int64"));
    schema.entry("minimum").or_insert_with(|| json!(0));
    if let Some(largest) = largest {
        schema.entry("maximum").or_insert_with(|| json!(largest));
    }
}

/// Removes `key` from a schema and all nested schemas.
pub(crate) fn strip(schema: &mut Value, key: &str) {
    let Some(schema) = schema.as_object_mut() else { return };
    schema.remove(key);
    for inside in ["items", "additionalProperties"] {
        schema.get_mut(inside).into_iter().for_each(|s| strip(s, key));
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(Map::values_mut).for_each(|s| strip(s, key));
}

/// Removes `key` from the items of all lists.
pub(crate) fn strip_in_items(schema: &mut Value, key: &str) {
    let Some(schema) = schema.as_object_mut() else { return };
    schema.get_mut("items").into_iter().for_each(|items| strip(items, key));
    schema.get_mut("additionalProperties").into_iter().for_each(|values| strip_in_items(values, key));
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(Map::values_mut).for_each(|property| strip_in_items(property, key));
}
