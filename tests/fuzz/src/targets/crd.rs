//! What the API server accepts, the operator can read and decide on.

mod generate;
mod rules;

use crate::story::Story;
use crate::targets::results::unfold_story;
use arbitrary::Unstructured;
use pawl_api::{TrainingJob, TrainingJobStatus};
use serde_json::{Value, json};
use std::sync::LazyLock;

static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| pawl_api::definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone());

thread_local! {
    static RULES: rules::Rules = rules::Rules::compile(&SCHEMA);
}

/// A job that conforms to the schema of the CRD, after defaulting. If the CEL rules accept it, the operator reads it
/// and decides on it; if the command line accepts it, so do the rules.
pub fn run(input: &[u8]) {
    let mut choices = Unstructured::new(input);
    let Ok(written) = job(&mut choices) else { return };
    let results = choices.take_rest();
    let stored = generate::defaulted(&SCHEMA, written.clone());
    let refused = RULES.with(|rules| rules.refuse(&stored));
    let by_command_line = pawl_manifest::parse(&written.to_string(), "job.yaml");
    if let (Ok(_), Some(rule)) = (&by_command_line, &refused) {
        panic!("the command line accepts what the API server refuses by {rule}: {written}");
    }
    if refused.is_some() {
        return;
    }
    let job: TrainingJob = serde_json::from_value(stored.clone())
        .unwrap_or_else(|error| panic!("the operator cannot read what the API server accepts: {error}: {stored}"));
    let _ = pawl_api::validate(&job);
    unfold_story(Story::new(&job, TrainingJobStatus::default()), results);
}

/// A job as a user writes it.
fn job(choices: &mut Unstructured<'_>) -> arbitrary::Result<Value> {
    let mut spec = generate::value(&SCHEMA["properties"]["spec"], choices, "spec")?;
    // Few values that are independent of each other satisfy the rules between fields: most of them are put in order.
    if choices.ratio(15, 16)? {
        spec["workload"] = if choices.ratio(1, 8)? {
            json!({"command": ["python"], "args": ["train.py"]})
        } else {
            json!({"name": "ups"})
        };
    }
    if choices.ratio(15, 16)? {
        spec.as_object_mut().into_iter().for_each(|spec| drop(spec.remove("search")));
    }
    Ok(json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "toy", "namespace": "team", "uid": "0badcafe", "generation": 1},
        "spec": spec,
    }))
}
