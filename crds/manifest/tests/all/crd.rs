//! The CustomResourceDefinition: the file is what the types say, and its rules, run by a CEL interpreter, refuse what
//! `validate` refuses and admit what it admits.

use crate::cel::to_cel;
use crate::examples;
use cel::{Context, Program, Value as Cel};
use pawl_api::TrainingJob;
use serde_json::Value;
use std::path::Path;

fn schema() -> Value {
    let definition: Value = serde_saphyr::from_str(&pawl_manifest::crd()).expect("the CRD is YAML");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn the_generated_file_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainingjobs.yaml");
    let same = std::fs::read_to_string(&file).is_ok_and(|text| text == pawl_manifest::crd());
    assert!(same, "{} is out of date: cargo run -- crd > crds/trainingjobs.yaml", file.display());
}

#[test]
fn it_fits_into_the_annotation_of_kubectl_apply() {
    let definition: Value = serde_saphyr::from_str(&pawl_manifest::crd()).unwrap();
    let bytes = serde_json::to_string(&definition).unwrap().len();
    // A limit of our own, well below what fits: what only Pawl reads needs no documentation here.
    let limit = 144 << 10;
    assert!(
        bytes < limit,
        "{bytes} bytes, {limit} at most: let `shorten` of crds/api/src/definition.rs leave out more of the status, or \
         shorten descriptions of the spec"
    );
}

/// Items of lists have none: whoever applies a manifest again would find a difference.
#[test]
fn defaults_are_filled_outside_of_lists_only() {
    fn defaults(schema: &Value, inside: bool) -> usize {
        assert!(!inside || schema.get("default").is_none(), "{schema:#}");
        let properties = schema["properties"].as_object().into_iter().flat_map(serde_json::Map::values);
        let own = usize::from(schema.get("default").is_some());
        let lists = schema.get("items").map_or(0, |items| defaults(items, true));
        own + lists + properties.map(|property| defaults(property, inside)).sum::<usize>()
    }
    assert!(defaults(&schema(), false) > 20);
}

/// Structural, and bounded wherever a rule may look.
#[test]
fn the_schema_is_structural_and_bounded() {
    fn walk(schema: &Value, path: &str, bounded: bool) {
        for word in ["$ref", "oneOf", "anyOf", "allOf", "const", "nullable"] {
            assert!(schema.get(word).is_none(), "{path}: {word}");
        }
        assert!(!schema["additionalProperties"].is_boolean(), "{path}");
        let formats = [None, Some("int32"), Some("int64"), Some("date-time")];
        assert!(formats.contains(&schema["format"].as_str()), "{path}: {}", schema["format"]);
        let bound = match schema["type"].as_str() {
            Some("array") => Some("maxItems"),
            Some("string") if schema["enum"].is_null() => Some("maxLength"),
            Some("object") if schema["properties"].is_null() && path != "metadata" => Some("maxProperties"),
            _ => None,
        };
        if let (true, Some(bound)) = (bounded, bound) {
            assert!(schema[bound].is_u64(), "{path}: no {bound}");
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            // Kubernetes' own types in the pod template carry no rules; Pawl alone writes the status.
            let inside = !path.contains("podTemplate.") && !matches!(name.as_str(), "status" | "apiVersion" | "kind");
            walk(property, format!("{path}.{name}").trim_start_matches('.'), bounded && inside);
            // The settings of a fallback are documented where they stand first.
            let again = path.ends_with("fallbacks[].settings") || path.contains("fallbacks[].settings.");
            let documented = again || property["description"].is_string() || !bounded || !inside || name == "metadata";
            assert!(documented, "{path}.{name}: no description");
        }
        let inner = bounded && !path.contains("podTemplate.");
        for key in ["items", "additionalProperties"] {
            schema.get(key).into_iter().for_each(|s| walk(s, &format!("{path}[]"), inner));
        }
    }
    walk(&schema(), "", true);
}

/// JSON Schema cannot compare numbers and times that are written as strings: each has a range in `bounds.rs` of
/// `pawl-api`, or another rule.
#[test]
fn every_number_written_as_a_string_has_a_rule() {
    fn walk(schema: &Value, path: &str, patterns: &[&Value], found: &mut usize) {
        let rules: Vec<_> = schema["x-kubernetes-validations"].as_array().into_iter().flatten().collect();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if patterns.contains(&&property["pattern"]) {
                *found += 1;
                let read = format!("(self.{name})");
                let ruled = rules.iter().any(|rule| rule["rule"].as_str().is_some_and(|rule| rule.contains(&read)));
                assert!(ruled, "{path}.{name}: add its range to crds/api/src/bounds.rs");
            }
            // The pod template is Kubernetes' own.
            if name != "podTemplate" {
                walk(property, &format!("{path}.{name}"), patterns, found);
            }
        }
        schema.get("items").into_iter().for_each(|items| walk(items, &format!("{path}[]"), patterns, found));
    }
    let schema = schema();
    let spec = &schema["properties"]["spec"];
    let of = |pointer: &str| spec.pointer(pointer).expect("the field exists");
    let number = of("/properties/gates/properties/overallSpeedup/pattern");
    let time = of("/properties/lifecycle/properties/hangTimeout/pattern");
    let mut found = 0;
    walk(spec, "spec", &[number, time], &mut found);
    assert!(found >= 30, "{found} numbers written as strings");
}

/// Runs every rule of `schema` on `value`; the messages of those that refuse it.
fn refusals(schema: &Value, value: &Value, old: &Value, found: &mut Vec<String>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let text = rule["rule"].as_str().expect("a rule has text");
        let run = |text: &str| {
            let mut context = Context::default();
            context.add_variable_from_value("self", to_cel(value));
            context.add_variable_from_value("oldSelf", to_cel(old));
            Program::compile(text).unwrap_or_else(|e| panic!("{text}: {e}")).execute(&context)
        };
        match run(text) {
            Ok(Cel::Bool(true)) => {}
            Ok(Cel::Bool(false)) => {
                let message = match (rule["message"].as_str(), rule["messageExpression"].as_str()) {
                    (Some(text), _) => text.to_owned(),
                    (None, text) => match run(text.expect("a rule has a message")) {
                        Ok(Cel::String(text)) => text.to_string(),
                        other => panic!("messageExpression of {}: {other:?}", rule["rule"]),
                    },
                };
                assert!(message.contains(": "), "names no field or no remedy: {message}");
                found.push(message);
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(inner) = value.get(name) {
            refusals(property, inner, old.get(name).unwrap_or(inner), found);
        }
    }
    for item in value.as_array().into_iter().flatten() {
        refusals(&schema["items"], item, item, found);
    }
}

fn refused(job: &Value) -> Vec<String> {
    let mut found = Vec::new();
    refusals(&schema(), job, job, &mut found);
    found
}

/// A manifest after defaulting, read without any check; `None` when it does not even keep the types.
fn typed(text: &str) -> Option<TrainingJob> {
    let value: Value = serde_saphyr::from_str(text).ok()?;
    serde_json::from_value(value).ok()
}

#[test]
fn rules_reject_only_manifests_that_validation_rejects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut by_rule, mut seen) = (0, 0);
    for file in std::fs::read_dir(folder.join("tests/broken")).unwrap().map(|f| f.unwrap().path()) {
        let text = std::fs::read_to_string(&file).unwrap();
        let Some(job) = typed(&text).filter(|job| job.metadata.name.is_some()) else { continue };
        let found = refused(&serde_json::to_value(&job).unwrap());
        let problems = pawl_api::validate(&job);
        // A rule never refuses what validation admits: what `pawl validate` passes, the API server takes.
        assert!(found.is_empty() || !problems.is_empty(), "{}: {found:?}", file.display());
        seen += 1;
        by_rule += usize::from(!found.is_empty());
        let says = text.lines().nth(1).unwrap_or_default();
        if says == "# cluster: accepts" || says.starts_with("# cluster: reads ") {
            assert!(found.is_empty(), "{} says that the cluster accepts it: {found:?}", file.display());
        }
    }
    assert!(seen >= 40 && by_rule >= 20, "{by_rule} of {seen} refused by a rule");
}

#[test]
fn rules_admit_the_examples() {
    for file in examples::manifests() {
        let job = pawl_manifest::load(&file).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(refused(&serde_json::to_value(&job).unwrap()), Vec::<String>::new(), "{}", file.display());
    }
}

/// Of the default and of `Unlimited`, no job is wrong; a percentage is one, of a training.
#[test]
fn a_budget_is_a_percentage_of_a_training_or_unlimited() {
    let job = |budget: &str, train: &str| {
        let text = format!(
            "
apiVersion: pawl.dev/v1alpha1
kind: TrainingJob
metadata: {{name: job}}
spec: {{workload: {{name: ups}}, analysis: {{{budget}}}, train: {{{train}}}}}
"
        );
        typed(&text).expect("it keeps the types")
    };
    for (budget, train, valid) in [
        ("", "", true),
        ("budgetPercent: Unlimited", "", true),
        ("budgetPercent: Unlimited", "items: 1000", true),
        ("budgetPercent: 1", "items: 1000", true),
        ("budgetPercent: 1000", "epochs: 3", true),
        ("budgetPercent: 10", "", false),
        ("budgetPercent: 0", "items: 1000", false),
        ("budgetPercent: 1001", "items: 1000", false),
    ] {
        let job = job(budget, train);
        let by_rules = refused(&serde_json::to_value(&job).unwrap());
        assert_eq!(pawl_api::validate(&job).is_empty(), valid, "{budget}, train: {train}");
        assert_eq!(by_rules.is_empty(), valid, "{budget}, train: {train}: {by_rules:?}");
    }
    // The schema admits any text.
    let mut stored = serde_json::to_value(job("budgetPercent: 10", "items: 1000")).unwrap();
    for text in ["10", "unlimited", "10%"] {
        stored["spec"]["analysis"]["budgetPercent"] = Value::from(text);
        let found = refused(&stored);
        assert!(found.len() == 1 && found[0].ends_with("write an integer such as 10, or Unlimited"), "{found:?}");
    }
}

#[test]
fn workload_and_gpu_resource_are_immutable() {
    let text = "
apiVersion: pawl.dev/v1alpha1
kind: TrainingJob
metadata: {name: job}
spec: {workload: {name: ups}}
";
    let old = serde_json::to_value(typed(text).unwrap()).unwrap();
    for (pointer, value) in [("/spec/workload/name", "gpt"), ("/spec/trainer/gpuResource", "amd.com/gpu")] {
        let mut new = old.clone();
        *new.pointer_mut(pointer).unwrap() = Value::from(value);
        let mut found = Vec::new();
        refusals(&schema(), &new, &old, &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(value) && found[0].contains("create a new TrainingJob"), "{}", found[0]);
    }
}
