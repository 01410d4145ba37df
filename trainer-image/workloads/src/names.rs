//! Names in configurations: what a configuration could say instead of an unknown one, by its JSON Schema.

use pawl_contract::problem::choose;
use serde_json::Value;
use serde_path_to_error::Segment;

/// The problem with `value` at `path` of a configuration with the schema `root`, if the field or the value is an
/// unknown name: what there is instead.
pub(crate) fn unknown(root: &Value, path: &[&Segment], value: &Value) -> Option<String> {
    let (last, parents) = path.split_last()?;
    let parent = parents.iter().try_fold(resolved(root, root), |schema, segment| step(root, schema, segment))?;
    let Some(own) = step(root, parent, last) else {
        let Segment::Map { key } = last else { return None };
        let names: Vec<&str> = parent["properties"].as_object()?.keys().map(String::as_str).collect();
        return Some(format!("is not a field: {}", choose(key, &names)));
    };
    let names = choices(own);
    let value = value.as_str().filter(|value| !names.is_empty() && !names.contains(value))?;
    Some(format!("is not a value of this field: {}", choose(value, &names)))
}

/// The names that the schema of an enum lists; none of anything else.
pub(crate) fn choices(schema: &Value) -> Vec<&str> {
    // Variants with documentation of their own are alternatives.
    let alternatives = schema["oneOf"].as_array().into_iter().flatten().chain([schema]);
    let listed = alternatives.flat_map(|of| of["enum"].as_array().into_iter().flatten().chain(of.get("const")));
    listed.filter_map(Value::as_str).collect()
}

/// The schema of what is at `segment` of a value with this schema.
fn step<'a>(root: &'a Value, schema: &'a Value, segment: &Segment) -> Option<&'a Value> {
    let inner = match segment {
        Segment::Map { key } => schema["properties"].get(key),
        Segment::Seq { .. } => schema.get("items"),
        Segment::Enum { .. } | Segment::Unknown => None,
    };
    inner.map(|inner| resolved(root, inner))
}

/// A schema behind its reference, and that of the value of an optional field.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"].as_str().and_then(|reference| root.pointer(reference.strip_prefix('#')?));
    let present = || {
        let mut others = schema["anyOf"].as_array()?.iter().filter(|any| any["type"] != "null");
        others.next().filter(|_| others.next().is_none())
    };
    match reference.or_else(present) {
        Some(behind) => resolved(root, behind),
        None => schema,
    }
}
