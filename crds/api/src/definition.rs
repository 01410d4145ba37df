//! The CustomResourceDefinition of `TrainingJob`, generated from the types and the rules.

use crate::bounds;
use crate::rules;
use crate::schema;
use crate::spec::TrainingJobSpec;
use crate::status::TrainingJobStatus;
use pawl_contract::disturbance::{DisturbanceKind, IDLE_CPU};
use pawl_contract::settings::{Numerics, Settings};
use serde_json::{Map, Value, json};

/// The CustomResourceDefinition as JSON: `apiextensions.k8s.io/v1`, with the schema, the validation rules and the
/// printer columns. Items of lists have no defaults: `kubectl apply` and what compares manifests with objects, such as
/// Argo CD, replace lists as a whole, and would find a difference for ever. Readers take the defaults from the types.
///
/// ```
/// let definition = pawl_api::definition();
/// assert_eq!(definition["metadata"]["name"], "trainingjobs.pawl.dev");
/// ```
pub fn definition() -> Value {
    let mut schema = schema_of_types();
    shorten(&mut schema);
    schema::strip_in_items(&mut schema, "default");
    defined(schema)
}

/// [`definition`] with the description of every field, which is too large for `kubectl apply`, and all defaults: what
/// the book shows.
pub fn documented_definition() -> Value {
    let mut schema = schema_of_types();
    document_rules(&mut schema["properties"]["spec"]["properties"]["settings"]["properties"]);
    defined(schema)
}

/// Adds to the descriptions of settings what only validation rules contain: ranges of decimal numbers, and whether a
/// setting changes the numerics.
fn document_rules(settings: &mut Value) {
    for row in Settings::table() {
        let mut text =
            bounds::of_setting(&row.name).map_or_else(String::new, |bound| format!(" Range: {}.", bound.words()));
        if row.numerics == Numerics::Changes {
            text += " Changes the numerics.";
        }
        if let Value::String(description) = &mut settings[&row.name]["description"] {
            // The values of a choice follow, each in its line.
            let end = description.find('\n').unwrap_or(description.len());
            description.insert_str(end, &text);
        }
    }
}

/// The schema that the types have.
fn schema_of_types() -> Value {
    let mut schema = json!({
        "type": "object",
        "description": "A training job whose optimizations are measured, one by one, and accepted or rolled back.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "pawl.dev/v1alpha1"},
            "kind": {"type": "string", "description": "TrainingJob"},
            "metadata": {"type": "object"},
            "spec": schema::of::<TrainingJobSpec>(),
            "status": schema::of::<TrainingJobStatus>(),
        },
    });
    // Only Pawl writes the status, and always completely: a default there would hide fields that were not written.
    schema::strip(&mut schema["properties"]["status"], "default");
    schema
}

/// The definition with this schema and the rules.
fn defined(mut schema: Value) -> Value {
    rules::attach(&mut schema);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "trainingjobs.pawl.dev"},
        "spec": {
            "group": "pawl.dev",
            "names": {
                "kind": "TrainingJob",
                "listKind": "TrainingJobList",
                "plural": "trainingjobs",
                "singular": "trainingjob",
                "shortNames": ["tj"],
                "categories": ["pawl"],
            },
            "scope": "Namespaced",
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns(),
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

fn columns() -> Value {
    let column = |name: &str, path: &str, about: &str| json!({"name": name, "type": "string", "jsonPath": path, "description": about});
    json!([
        column("Stage", ".status.stage", "Current stage of the job."),
        column("Phase", ".status.attempt.phase", "Phase being evaluated."),
        column("Speedup", ".status.speedup", "Speedup over the baseline so far."),
        column("Progress", ".status.progress", "Progress of the job."),
        column("ETA", ".status.training.eta", "Estimated completion time."),
        column("Cost", ".status.cost.spent", "Cost so far."),
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ])
}

/// Removes repeated documentation: the fields of pods are documented by Kubernetes, those of settings where they occur
/// first, those of launches by the contract. `kubectl apply` carries the whole definition in an annotation of at most
/// 256 KiB. The forms of numbers are left out of the status, too: only Pawl writes it, from types that have no other.
fn shorten(schema: &mut Value) {
    let pod = &mut schema["properties"]["spec"]["properties"]["trainer"]["properties"]["podTemplate"]["properties"];
    pod.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(keep_first_description);
    let phase = &mut schema["properties"]["spec"]["properties"]["phases"]["items"]["properties"];
    keep_first_description(&mut phase["fallbacks"]["items"]["properties"]["settings"]);
    schema::strip(&mut schema["properties"]["status"], "pattern");
    let status = &mut schema["properties"]["status"]["properties"];
    keep_first_description(&mut status["effectiveSettings"]);
    // Only Pawl writes the fields of all but the first; the book documents them. Kubernetes documents conditions.
    for part in ["conditions", "search", "attempt", "parallel", "retry", "retries", "trainer", "cost"] {
        keep_first_description(&mut status[part]);
    }
    keep_first_description(&mut status["phases"]["items"]["properties"]["launches"]);
    keep_first_description(&mut status["baseline"]["properties"]["launches"]);
    keep_first_description(&mut status["bundle"]["properties"]["launches"]);
    let training = &mut status["training"]["properties"];
    for part in ["slowdown", "cusum", "earlier", "replaced", "segments", "slowMachine", "unseen", "bestCheckpoint"] {
        keep_first_description(&mut training[part]);
    }
    let counted = ["lastCheckpoint", "violatedAtItems", "worse", "slowWindows", "quietWindows", "stopSeconds"];
    for known in counted.into_iter().chain(["directory", "wanted"]) {
        schema::strip(&mut training[known], "description");
    }
    for part in ["speedup", "quality"] {
        keep_first_description(&mut status["bundle"]["properties"][part]);
    }
    // Each of them contains the fields of `Measured`, which the contract documents, as it does those of launches.
    let phase = status["phases"]["items"]["properties"].clone();
    let of_launches = &phase["launches"]["items"]["properties"];
    for part in ["baseline", "bundle", "training"] {
        undocument_repeated(&mut status[part], &phase);
        undocument_measured(&mut status[part], of_launches);
    }
    undocument_measured(&mut status["phases"]["items"], of_launches);
    omit_disturbances(status);
}

/// Removes what disturbs launches from the measurements of several launches and of the training, which never have it.
fn omit_disturbances(status: &mut Value) {
    let phases = &mut status["phases"]["items"]["properties"];
    phases.as_object_mut().into_iter().for_each(forget_disturbances);
    for part in ["baseline", "bundle", "training"] {
        status[part]["properties"].as_object_mut().into_iter().for_each(forget_disturbances);
    }
}

fn forget_disturbances(fields: &mut Map<String, Value>) {
    let of_launches = || DisturbanceKind::ALL.into_iter().map(DisturbanceKind::field).chain([IDLE_CPU]);
    fields.retain(|name, _| of_launches().all(|field| field != name));
}

/// Removes descriptions from the properties that have the same description in `first`.
fn undocument_repeated(schema: &mut Value, first: &Value) {
    for (name, property) in schema["properties"].as_object_mut().into_iter().flatten() {
        if property["description"].is_string() && property["description"] == first[name]["description"] {
            schema::strip(property, "description");
        }
    }
}

/// Removes descriptions from what is measured of launches, too.
fn undocument_measured(schema: &mut Value, of_launches: &Value) {
    for (name, property) in schema["properties"].as_object_mut().into_iter().flatten() {
        if !["name", "message"].contains(&name.as_str()) && of_launches.get(name).is_some() {
            schema::strip(property, "description");
        }
    }
}

fn keep_first_description(schema: &mut Value) {
    let own = schema.get("description").cloned();
    schema::strip(schema, "description");
    schema.as_object_mut().into_iter().for_each(|s| s.extend(own.clone().map(|text| ("description".to_owned(), text))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_launches_are_disturbed() {
        let schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
        let status = &schema["properties"]["status"]["properties"];
        for kind in DisturbanceKind::ALL {
            for whole in [&status["phases"]["items"], &status["baseline"], &status["bundle"], &status["training"]] {
                assert!(whole["properties"][kind.field()].is_null(), "{kind:?}");
            }
            for of in [&status["phases"]["items"], &status["baseline"], &status["bundle"]] {
                let launch = &of["properties"]["launches"]["items"]["properties"];
                assert!(launch[kind.field()].is_object(), "{kind:?}");
            }
        }
    }

    #[test]
    fn the_reference_contains_what_the_table_says() {
        let schema = documented_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
        let settings = &schema["properties"]["spec"]["properties"]["settings"]["properties"];
        for (name, expected) in [
            ("learningRate", "Default: the workload's. Range: at least 1e-30 and at most 1e30. Changes the numerics."),
            ("loaderPrefetch", "Batches that each worker prepares ahead. Default 2."),
            ("precision", "Default `fp32`. Changes the numerics.\n- fp32: 32-bit floats."),
        ] {
            let text = settings[name]["description"].as_str().unwrap_or_default();
            assert!(text.contains(expected), "{name}: {text}");
        }
        assert_eq!(
            (&settings["loaderPrefetch"]["minimum"], &settings["loaderPrefetch"]["maximum"]),
            (&json!(1), &json!(256))
        );
    }
}
