//! The fields of manifests, as they are compared.

use crate::plain::plain;
use pawl_api::TrainingJobSpec;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What a job that does not set a field has instead of a value.
const UNSET: &str = "not set";
/// Fields whose values may be secret, and are not displayed.
const SECRET: [&str; 2] = ["workload.config", "trainer.podTemplate"];
/// Fields that say together which program is trained, and are compared as one.
const PROGRAM: [&str; 3] = ["workload.name", "workload.command", "workload.args"];

/// The fields in which `specs` differ, by their path, such as `phases.compile.minSpeedup`, with the value that each of
/// them has. The program is not one of them. A phase that not all of them have is one row.
pub fn different(specs: &[&TrainingJobSpec]) -> Vec<(String, Vec<String>)> {
    let sides: Vec<BTreeMap<String, String>> = specs.iter().map(|spec| fields(spec)).collect();
    let mut paths: Vec<&String> = sides.iter().flat_map(BTreeMap::keys).collect();
    paths.sort();
    paths.dedup();
    let values = |path: &String| sides.iter().map(|side| side.get(path).cloned()).collect::<Vec<_>>();
    let missing = missing(specs);
    // The fields of such a phase are those in which the specs differ that have it.
    let of_row =
        |path: &String, values: Vec<Option<String>>| match missing.iter().find(|it| is_below(path, &[&it.path])) {
            Some(phase) => phase.has.iter().zip(values).filter(|(has, _)| **has).map(|(_, value)| value).collect(),
            None => values,
        };
    let is_different = |path: &&String| of_row(path, values(path)).windows(2).any(|pair| pair[0] != pair[1]);
    let rows = paths.into_iter().filter(is_different).map(|path| (path.clone(), shown(path, values(path))));
    let mut rows: Vec<(String, Vec<String>)> = rows.collect();
    rows.extend(missing.iter().map(|phase| (phase.path.clone(), phase.values(specs))));
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows
}

/// A phase that not all specs have.
struct Missing<'a> {
    name: &'a str,
    /// Its path, without its fields.
    path: String,
    /// Which of the specs have it.
    has: Vec<bool>,
}

impl Missing<'_> {
    /// Its settings, in short, where a spec has it.
    fn values(&self, specs: &[&TrainingJobSpec]) -> Vec<String> {
        let is_alone = self.has.iter().filter(|has| **has).count() == 1;
        let value = |spec: &&TrainingJobSpec| {
            let Some(phase) = spec.phases.iter().find(|phase| phase.name == self.name) else {
                return UNSET.to_owned();
            };
            let settings = plain(&phase.settings).flat();
            let settings =
                settings.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ");
            match (is_alone, settings.is_empty()) {
                (true, false) => format!("only here: {settings}"),
                (true, true) => "only here".to_owned(),
                (false, false) => settings,
                (false, true) => "without settings".to_owned(),
            }
        };
        specs.iter().map(value).collect()
    }
}

/// The phases that not all specs have, by name.
fn missing<'a>(specs: &[&'a TrainingJobSpec]) -> Vec<Missing<'a>> {
    let names: BTreeSet<&str> = specs.iter().flat_map(|spec| &spec.phases).map(|phase| phase.name.as_str()).collect();
    let has = |name: &str| specs.iter().map(|spec| spec.phases.iter().any(|phase| phase.name == name)).collect();
    let all = names.into_iter().map(|name| Missing {
        name,
        path: format!("phases.{}", plain(&name.to_owned())),
        has: has(name),
    });
    all.filter(|phase| phase.has.contains(&false)).collect()
}

/// The values of a field, in which the specs differ, as they are displayed.
fn shown(path: &str, values: Vec<Option<String>>) -> Vec<String> {
    let is_secret = is_below(path, &SECRET);
    let known: BTreeSet<&String> = values.iter().flatten().collect();
    // Of several secret values, it is said only that they are not the same.
    let hidden = if known.len() > 1 { "differs, hidden" } else { "***" };
    let value = |value: &Option<String>| match value {
        None => UNSET.to_owned(),
        Some(_) if is_secret => hidden.to_owned(),
        Some(value) => value.clone(),
    };
    values.iter().map(value).collect()
}

/// All fields of a manifest that have a value, by path.
fn fields(spec: &TrainingJobSpec) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    flatten(&mut found, "", &serde_json::to_value(plain(spec)).unwrap_or_default());
    found
}

fn flatten(found: &mut BTreeMap<String, String>, path: &str, value: &Value) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    if is_below(path, &PROGRAM) {
        return;
    }
    match value {
        Value::Null => {}
        Value::Object(fields) => fields.iter().for_each(|(name, value)| flatten(found, &below(name), value)),
        Value::Array(elements) => {
            let names: Vec<String> = elements.iter().enumerate().map(name).collect();
            if !names.is_empty() {
                found.insert(path.to_owned(), names.join(", "));
            }
            let with_fields = names.iter().zip(elements).filter(|(_, element)| element.is_object());
            with_fields.for_each(|(name, element)| flatten(found, &below(name), element));
        }
        Value::String(text) => drop(found.insert(path.to_owned(), text.clone())),
        Value::Bool(_) | Value::Number(_) => drop(found.insert(path.to_owned(), value.to_string())),
    }
}

/// What an element of a list is called: its name, itself, or else its place.
fn name((index, element): (usize, &Value)) -> String {
    match element {
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            fields.get("name").and_then(Value::as_str).map_or_else(|| index.to_string(), str::to_owned)
        }
        Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) => element.to_string(),
    }
}

/// Whether `path` is one of these fields, or below one.
fn is_below(path: &str, fields: &[&str]) -> bool {
    let mut rests = fields.iter().filter_map(|field| path.strip_prefix(*field));
    rests.any(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rows(a: Value, b: Value) -> Vec<String> {
        let [a, b] = [a, b].map(|spec| serde_json::from_value::<TrainingJobSpec>(spec).unwrap());
        different(&[&a, &b]).into_iter().map(|(path, values)| format!("{path}: {}", values.join(" | "))).collect()
    }

    #[test]
    fn each_field_that_differs_is_named_with_its_values() {
        let spec = |seeds: Value, speedup: &str, batch: u32| {
            let phase = json!({"name": "graph", "minSpeedup": speedup, "settings": {"compile": "Graph"}});
            json!({"workload": {"name": "ups"}, "seeds": seeds, "phases": [phase], "settings": {"batchPerGpu": batch},
                "analysis": {"maxPairs": 5 + batch}, "gates": {"overallSpeedup": "1.2"}})
        };
        let found = rows(spec(json!([42, 43]), "1.1", 1), spec(json!([52, 53]), "1.2", 2));
        let expected = [
            "analysis.maxPairs: 6 | 7",
            "phases.graph.minSpeedup: 1.1 | 1.2",
            "seeds: 42, 43 | 52, 53",
            "settings.batchPerGpu: 1 | 2",
        ];
        assert_eq!(found, expected);
        assert!(rows(spec(json!([42]), "1.1", 1), spec(json!([42]), "1.1", 1)).is_empty());
    }

    #[test]
    fn what_one_manifest_does_not_have_is_not_set() {
        let spec = |phases: Value| json!({"workload": {"name": "ups"}, "phases": phases});
        let graph = json!({"name": "graph", "settings": {"compile": "Graph"}});
        let found = rows(spec(json!([graph])), spec(json!([])));
        assert_eq!(found, ["phases: graph | not set", "phases.graph: only here: compile: Graph | not set"]);
    }

    #[test]
    fn a_phase_that_not_all_manifests_have_is_a_row_and_what_else_differs_in_it() {
        let spec =
            |phases: Value| serde_json::from_value(json!({"workload": {"name": "ups"}, "phases": phases})).unwrap();
        let graph = |speedup: &str| json!({"name": "graph", "minSpeedup": speedup, "settings": {"compile": "Graph"}});
        let three: [TrainingJobSpec; 3] = [json!([graph("1.1")]), json!([graph("1.2")]), json!([])].map(spec);
        let found = different(&three.each_ref());
        let rows: Vec<String> = found.iter().map(|(path, values)| format!("{path}: {}", values.join(" | "))).collect();
        let expected = [
            "phases: graph | graph | not set",
            "phases.graph: compile: Graph | compile: Graph | not set",
            "phases.graph.minSpeedup: 1.1 | 1.2 | not set",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn values_that_may_be_secret_are_not_displayed() {
        let spec = |secret: &str| {
            let template = json!({"env": [{"name": "TOKEN", "value": secret}]});
            json!({"workload": {"command": ["train", secret], "config": {"token": secret}},
                "trainer": {"image": "a", "podTemplate": template}})
        };
        let found = rows(spec("hf_1"), spec("hf_2"));
        let hidden = "differs, hidden | differs, hidden";
        let expected = ["trainer.podTemplate.env.TOKEN.value", "workload.config.token"];
        let expected = expected.map(|path| format!("{path}: {hidden}"));
        assert_eq!(found, expected);
    }
}
