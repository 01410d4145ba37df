//! What a stored object contains that this version of the types does not: fields and enum values of a later version.
//!
//! The operator reads leniently, so that an older operator next to a newer CustomResourceDefinition leaves jobs intact:
//! [`Unknown::take`] removes unknown fields, so that the rest can be deserialized, and [`Unknown::restore`] puts those
//! of the status back into a status that is written. Manifests are read strictly instead (crate `pawl-manifest`).

use crate::definition;
use serde_json::{Map, Value};
use std::fmt::Write;
use std::sync::LazyLock;

/// Maximum number of paths that [`Unknown::ignored`] and [`Unknown::blocking`] list.
const LISTED: usize = 5;

/// A step from an object to a value in it.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// The element of a list, or the object itself, with this `name`.
    Named(String),
    /// An element without a name.
    Index(usize),
}

/// An unknown field and its value.
#[derive(Clone, Debug, PartialEq)]
struct Field {
    path: Vec<Step>,
    value: Value,
}

/// What an object contains that this version does not know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unknown {
    fields: Vec<Field>,
    /// Unknown enum values, with their paths.
    values: Vec<String>,
}

impl Unknown {
    /// Removes the unknown fields from the spec and the status of a `TrainingJob`, and finds unknown enum values, which
    /// stay.
    ///
    /// ```
    /// use pawl_api::Unknown;
    ///
    /// let mut job = serde_json::json!({
    ///     "spec": {"workload": {"name": "ups"}, "settings": {"compile": "Turbo"}},
    ///     "status": {"later": 1},
    /// });
    /// let unknown = Unknown::take(&mut job);
    /// assert_eq!(unknown.blocking(), "spec.settings.compile: \"Turbo\"");
    /// assert_eq!(unknown.ignored(), "status.later");
    /// assert_eq!(job["status"], serde_json::json!({}));
    /// ```
    pub fn take(job: &mut Value) -> Self {
        static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
            let mut definition = definition();
            definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].take()
        });
        let mut unknown = Self::default();
        for part in ["spec", "status"] {
            if let Some(value) = job.get_mut(part) {
                unknown.walk(&SCHEMA[part], value, &mut vec![Step::Field(part.to_owned())]);
            }
        }
        unknown
    }

    fn walk(&mut self, schema: &Value, value: &mut Value, path: &mut Vec<Step>) {
        match value {
            Value::Object(fields) => self.walk_object(schema, fields, path),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    path.push(name(item).map_or(Step::Index(index), Step::Named));
                    self.walk(&schema["items"], item, path);
                    path.pop();
                }
            }
            Value::String(text) => {
                if let Some(known) = schema["enum"].as_array()
                    && !known.iter().any(|known| known == text.as_str())
                {
                    self.values.push(format!("{}: {text:?}", shown(path)));
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn walk_object(&mut self, schema: &Value, fields: &mut Map<String, Value>, path: &mut Vec<Step>) {
        let (properties, others) = (&schema["properties"], &schema["additionalProperties"]);
        if schema["x-kubernetes-preserve-unknown-fields"] == true || !properties.is_object() && !others.is_object() {
            return;
        }
        for key in fields.keys().cloned().collect::<Vec<_>>() {
            path.push(Step::Field(key.clone()));
            let schema = properties.get(&key).or_else(|| others.is_object().then_some(others));
            match (schema, fields.get_mut(&key)) {
                (Some(schema), Some(value)) => {
                    // The fields of another object of this name are not those of this one.
                    let in_status = matches!(path.first(), Some(Step::Field(part)) if part == "status");
                    let own = name(value).filter(|_| in_status).map(Step::Named);
                    let named = own.is_some();
                    path.extend(own);
                    self.walk(schema, value, path);
                    path.truncate(path.len() - usize::from(named));
                }
                _ => {
                    let value = fields.remove(&key).unwrap_or_default();
                    self.fields.push(Field { path: path.clone(), value });
                }
            }
            path.pop();
        }
    }

    /// Paths of the fields that this version ignores; empty when there are none. Fields of the status are kept.
    pub fn ignored(&self) -> String {
        listed(self.fields.iter().filter(|field| !is_setting(&field.path)).map(|field| shown(&field.path)))
    }

    /// What this version cannot decide without: enum values that it does not know, with their paths, and settings,
    /// which change what runs. Empty when there is nothing of the kind.
    pub fn blocking(&self) -> String {
        let settings = self.fields.iter().filter(|field| is_setting(&field.path)).map(|field| shown(&field.path));
        listed(self.values.iter().cloned().chain(settings))
    }

    /// Adds the unknown fields of the status that was read to `status`, which is about to be written in its place.
    /// Fields of an object or list element that is no longer there are dropped.
    pub fn restore(&self, status: &mut Value) {
        for Field { path, value } in &self.fields {
            if let [Step::Field(part), inside @ .., Step::Field(field)] = &path[..]
                && part == "status"
                && let Some(Value::Object(parent)) = inside.iter().try_fold(&mut *status, find)
            {
                parent.entry(field.clone()).or_insert_with(|| value.clone());
            }
        }
    }
}

/// Whether the field is a setting of the spec: what runs depends on it.
fn is_setting(path: &[Step]) -> bool {
    let is = |step: &Step, name: &str| matches!(step, Step::Field(field) if field == name);
    path.first().is_some_and(|step| is(step, "spec")) && path.iter().any(|step| is(step, "settings"))
}

fn name(value: &Value) -> Option<String> {
    value.get("name")?.as_str().map(str::to_owned)
}

fn find<'a>(value: &'a mut Value, step: &Step) -> Option<&'a mut Value> {
    match step {
        Step::Field(field) => value.get_mut(field),
        Step::Named(wanted) => match value {
            Value::Array(items) => items.iter_mut().find(|item| name(item).as_ref() == Some(wanted)),
            object => (name(object).as_ref() == Some(wanted)).then_some(object),
        },
        // Whether it is the same element is not known.
        Step::Index(_) => None,
    }
}

/// A path as a person writes it: `spec.phases[fuse].settings`.
fn shown(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        let _ = match step {
            Step::Field(field) if text.is_empty() => write!(text, "{field}"),
            Step::Field(field) => write!(text, ".{field}"),
            Step::Named(name) => write!(text, "[{name}]"),
            Step::Index(index) => write!(text, "[{index}]"),
        };
    }
    text
}

fn listed(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let more = if all.len() > LISTED { format!(" and {} more", all.len() - LISTED) } else { String::new() };
    format!("{}{more}", all[..all.len().min(LISTED)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainingJob;
    use serde_json::json;

    fn job() -> Value {
        json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy", "labels": {"any": "x"}},
            "spec": {
                "workload": {"name": "ups", "config": {"any": {"thing": 1}}},
                "phases": [{"name": "fuse", "settings": {"compile": "Fuse", "workload": {"any": 1}}}],
                "trainer": {"podTemplate": {"labels": {"any": "x"}}},
            },
            "status": {
                "stage": "Optimizing", "attempts": 3, "attempt": {"name": "toy-3", "purpose": "Speed"},
                "phases": [{"name": "fuse", "state": "Measuring"}, {"name": "flash", "state": "Pending"}],
                "cost": {"purposes": {"Speed": 7}},
            },
        })
    }

    #[test]
    fn a_job_of_this_version_has_nothing_unknown() {
        let mut known = job();
        assert_eq!(Unknown::take(&mut known), Unknown::default());
        assert_eq!(known, job());
    }

    #[test]
    fn fields_of_a_later_version_are_ignored_and_those_of_the_status_kept() {
        let mut later = job();
        later["spec"]["train"] = json!({"fancy": {"nested": [1]}, "items": 7});
        later["status"]["later"] = json!({"a": 1});
        later["status"]["attempt"]["later"] = json!("of attempt 3");
        later["status"]["phases"][1]["later"] = json!(5);
        let unknown = Unknown::take(&mut later);
        let paths = ["spec.train.fancy", "status.attempt[toy-3].later", "status.later", "status.phases[flash].later"];
        let mut found: Vec<_> = unknown.fields.iter().map(|field| shown(&field.path)).collect();
        found.sort();
        assert_eq!((found, unknown.blocking()), (paths.map(str::to_owned).to_vec(), String::new()));
        let read: TrainingJob = serde_json::from_value(later).unwrap();
        assert_eq!(read.spec.train.items, Some(7));

        // The next status has another attempt, and one phase less.
        let mut status = json!({"attempt": {"name": "toy-4"}, "phases": [{"name": "flash"}], "later": {"a": 1}});
        unknown.restore(&mut status);
        let expected =
            json!({"attempt": {"name": "toy-4"}, "phases": [{"name": "flash", "later": 5}], "later": {"a": 1}});
        assert_eq!(status, expected);
        let mut same = json!({"attempt": {"name": "toy-3"}});
        unknown.restore(&mut same);
        assert_eq!(same, json!({"attempt": {"name": "toy-3", "later": "of attempt 3"}, "later": {"a": 1}}));
    }

    #[test]
    fn enum_values_and_settings_of_a_later_version_are_found() {
        let blocking = |change: fn(&mut Value)| {
            let mut later = job();
            change(&mut later);
            Unknown::take(&mut later).blocking()
        };
        let found = blocking(|job| job["spec"]["phases"][0]["settings"]["compile"] = json!("Turbo"));
        assert_eq!(found, "spec.phases[fuse].settings.compile: \"Turbo\"");
        let found = blocking(|job| job["status"]["phases"][0]["state"] = json!("Probation"));
        assert_eq!(found, "status.phases[fuse].state: \"Probation\"");
        let found = blocking(|job| job["spec"]["settings"] = json!({"speculation": 3}));
        assert_eq!(found, "spec.settings.speculation");
        // What is under `workload` is checked by the workload.
        assert_eq!(blocking(|job| job["spec"]["settings"] = json!({"workload": {"speculation": 3}})), "");
    }

    #[test]
    fn a_long_list_is_shortened() {
        let mut later = job();
        for i in 0..8 {
            later["status"][format!("later{i}")] = json!(i);
        }
        assert!(Unknown::take(&mut later).ignored().ends_with("status.later4 and 3 more"));
    }
}
