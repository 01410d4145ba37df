//! Settings by path: their types, their values in a job, and settings with other values.

use crate::schema;
use crate::spec::Workload;
use pawl_contract::decimal::Decimal;
use pawl_contract::settings::Settings;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Beginning of the path of a setting that is specific to the workload.
const WORKLOAD: &str = "workload.";

static SCHEMA: LazyLock<Value> = LazyLock::new(schema::of::<Settings>);

/// Type of a setting.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// An integer between two bounds.
    Integer(i64, i64),
    /// A number that is written as a string.
    Decimal,
    /// True or false.
    Boolean,
    /// One of some names.
    Choice(Vec<String>),
    /// A setting of the workload, whose type the workload knows.
    Free,
    /// A list or a map.
    Composite,
}

/// Names of the settings that have a single value.
pub(super) fn names() -> impl Iterator<Item = &'static str> + Clone {
    let names = SCHEMA["properties"].as_object().into_iter().flat_map(|properties| properties.keys());
    names.map(String::as_str).filter(|name| kind(name).is_some_and(|kind| kind != Kind::Composite))
}

/// The type of a setting; `None` if there is none of this name.
pub(super) fn kind(name: &str) -> Option<Kind> {
    if let Some(path) = name.strip_prefix(WORKLOAD) {
        return (!path.split('.').any(str::is_empty)).then_some(Kind::Free);
    }
    let property = SCHEMA["properties"].get(name)?;
    Some(match property["type"].as_str() {
        Some("integer") => {
            let bound = |key: &str, default| property[key].as_i64().unwrap_or(default);
            Kind::Integer(bound("minimum", 0), bound("maximum", i64::from(u32::MAX)))
        }
        Some("boolean") => Kind::Boolean,
        Some("string") if property["enum"].is_array() => {
            let names = property["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
            Kind::Choice(names.map(str::to_owned).collect())
        }
        Some("string") => Kind::Decimal,
        _ => Kind::Composite,
    })
}

/// The text of a scalar.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The values of all settings of a job with a single value, by path. The settings of the workload are those in its
/// `config`, overridden by `settings.workload`.
pub(super) fn values(settings: &Settings, workload: &Workload) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for name in ["batchPerGpu", "accumulationSteps"] {
        let default = Settings::row(name).and_then(|row| row.default.as_ref());
        found.extend(default.and_then(text).map(|text| (name.to_owned(), text)));
    }
    let object = serde_json::to_value(settings).unwrap_or_default();
    flatten("workload", &Value::Object(workload.config.clone()), &mut found);
    for (name, value) in object.as_object().into_iter().flatten() {
        flatten(name, value, &mut found);
    }
    found
}

fn flatten(path: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| flatten(&format!("{path}.{name}"), value, found)),
        _ => found.extend(text(value).map(|text| (path.to_owned(), text))),
    }
}

/// The JSON of a value that is written as text, of a setting of this type.
fn typed(kind: &Kind, text: &str) -> Value {
    let plain = || Value::from(text);
    match kind {
        Kind::Integer(..) | Kind::Boolean => serde_json::from_str(text).unwrap_or_else(|_| plain()),
        Kind::Free => match serde_json::from_str(text) {
            Ok(scalar @ (Value::Number(_) | Value::Bool(_))) => scalar,
            _ => plain(),
        },
        Kind::Decimal | Kind::Choice(_) | Kind::Composite => plain(),
    }
}

/// Whether two texts are the same value: equal, or equal as numbers.
fn same(a: &str, b: &str) -> bool {
    let number = |text: &str| text.parse::<Decimal>().ok().map(|number| number.value());
    a == b || number(a).is_some_and(|value| number(b) == Some(value))
}

/// `settings` with these values, by path. A value that the settings already have keeps its text, so that equal settings
/// have equal hashes. A value that its setting cannot have is left out: validation refuses it.
///
/// ```
/// use pawl_api::{search, spec::Workload};
/// use pawl_contract::settings::Settings;
///
/// let settings: Settings = serde_json::from_value(serde_json::json!({"learningRate": "1e-3"}))?;
/// let workload = Workload { name: Some("ups".to_owned()), ..Workload::default() };
/// let values = [("learningRate", "0.002"), ("workload.encoder.hidden", "64")];
/// let values = values.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
/// let changed = serde_json::to_value(search::with(&settings, &workload, &values))?;
/// assert_eq!(changed, serde_json::json!({"learningRate": "0.002", "workload": {"encoder": {"hidden": 64}}}));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn with(settings: &Settings, workload: &Workload, changes: &BTreeMap<String, String>) -> Settings {
    let current = values(settings, workload);
    let mut changed = settings.clone();
    for (name, value) in changes {
        if current.get(name).is_some_and(|current| same(current, value)) {
            continue;
        }
        let Some(kind) = kind(name) else { continue };
        let mut object = serde_json::to_value(&changed).unwrap_or_default();
        set(&mut object, name, typed(&kind, value));
        if let Ok(next) = serde_json::from_value(object) {
            changed = next;
        }
    }
    changed
}

/// Sets a value by its path; what lies on the path becomes a map.
fn set(object: &mut Value, path: &str, value: Value) {
    let place = path.split('.').fold(object, |place, step| {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        &mut place[step]
    });
    *place = value;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_of_settings() {
        assert_eq!(kind("batchPerGpu"), Some(Kind::Integer(1, 1 << 20)));
        assert_eq!(kind("learningRate"), Some(Kind::Decimal));
        assert_eq!(kind("loaderPinned"), Some(Kind::Boolean));
        assert_eq!(kind("attention"), Some(Kind::Choice(vec!["Math".to_owned(), "Flash".to_owned()])));
        assert_eq!(kind("nccl"), Some(Kind::Composite));
        assert_eq!((kind("workload.a.b"), kind("workload."), kind("learning")), (Some(Kind::Free), None, None));
        assert!(names().any(|name| name == "weightDecay") && !names().any(|name| name == "compileScope"));
    }

    #[test]
    fn a_setting_of_the_workload_overrides_its_configuration() {
        let settings: Settings = serde_json::from_value(json!({"workload": {"loss": {"inverse": 2}}})).unwrap();
        let config = json!({"loss": {"inverse": 1, "start": 5}, "tasks": ["a"]});
        let workload = Workload { config: config.as_object().unwrap().clone(), ..Workload::default() };
        let found = values(&settings, &workload);
        assert_eq!((found["workload.loss.inverse"].as_str(), found["workload.loss.start"].as_str()), ("2", "5"));
        assert!(!found.contains_key("workload.tasks"));
        let changes = BTreeMap::from([
            ("workload.loss.start".to_owned(), "5.0".to_owned()),
            ("batchPerGpu".to_owned(), "4".to_owned()),
            ("attention".to_owned(), "None".to_owned()),
        ]);
        let changed = serde_json::to_value(with(&settings, &workload, &changes)).unwrap();
        assert_eq!(changed, json!({"batchPerGpu": 4, "workload": {"loss": {"inverse": 2}}}));
    }
}
