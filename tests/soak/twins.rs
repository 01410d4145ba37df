//! The twin of a job: `pawl run` of the same manifest, which nothing disturbs.

use crate::jobs::Blueprint;
use pawl_e2e::local::{differences, pawl_run_in, timeless};
use pawl_e2e::soak::segments::gap;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// How a job ends without faults.
pub struct Twin {
    fields: BTreeMap<String, Value>,
    blueprint: Blueprint,
}

impl Twin {
    /// Runs the twin in a directory of its own. This blocks.
    pub fn run(blueprint: &Blueprint, directory: &Path) -> Self {
        let manifest = directory.join(format!("{}.json", blueprint.name));
        std::fs::write(&manifest, blueprint.local().to_string()).unwrap();
        let status = pawl_run_in(&directory.join(blueprint.name), &manifest, &[]);
        Self { fields: compared(&status, blueprint), blueprint: blueprint.clone() }
    }

    /// The fields in which the status of a job that ended differs, and what no status may have.
    pub fn differences(&self, status: &Value) -> Vec<String> {
        let mut found = differences(&compared(status, &self.blueprint), &self.fields);
        found.extend(gap(status));
        found
    }

    /// The number of fields that are compared.
    pub fn len(&self) -> usize {
        self.fields.len()
    }
}

/// What faults may change in a status: how often something was tried, what only the newest launch of a training
/// measured, what repeated measurements promise, and what was known when somebody last asked a gang that runs no more.
const TRIES: [&str; 13] = [
    "status.attempts",
    "status.training.restarts",
    "status.training.loss",
    "status.training.itemsPerSecond",
    "status.training.promisedItemsPerSecond",
    "status.training.stepSeconds.p10",
    "status.training.stepSeconds.median",
    "status.training.stepSeconds.p90",
    "status.training.stopSeconds",
    "status.training.slowWindows",
    "status.training.resumeNotAfterItems",
    "status.training.peakMemoryBytes",
    "status.observedGeneration",
];

/// Of a job whose measurements are real: verdicts, settings, and the model by its validation.
fn is_determined(field: &str) -> bool {
    let phase = |name: &str| field.starts_with("status.phases[") && field.ends_with(name);
    let training = ["items", "steps", "completed", "revision"].map(|name| format!("status.training.{name}"));
    phase("].name")
        || phase("].state")
        || phase("].reason")
        || phase("].rung")
        || field == "status.stage"
        || field == "status.revision"
        || field.starts_with("status.effectiveSettings")
        || field.starts_with("status.training.validation.")
        || field.starts_with("status.failure")
        || training.contains(&field.to_owned())
}

/// The evidence of a comparison, and its digits: the launches of a pair are repeated when a fault divides them between
/// two placements. Its verdict is the same.
fn is_evidence(field: &str) -> bool {
    let of_comparison = field.starts_with("status.phases[") || field.starts_with("status.bundle");
    field.contains(".launches[")
        // That of all accepted phases together.
        || field == "status.speedup"
        || of_comparison
            && (field.ends_with(".itemsPerSecond") || field.contains(".stepSeconds.") || field.contains("peedup."))
}

/// The message of a verdict quotes its evidence: the words are the same.
fn without_digits(message: &Value) -> Value {
    message.as_str().map_or_else(|| message.clone(), |text| text.replace(|c: char| c.is_ascii_digit(), "#").into())
}

fn compared(status: &Value, blueprint: &Blueprint) -> BTreeMap<String, Value> {
    let mut fields = timeless(status);
    // Which windows an operator sees, and what was trained before, depends on the faults.
    let windows = ["cusum", "goodWindows", "gateWindows", "quietWindows", "earlier"]
        .map(|name| format!("status.training.{name}"));
    let of_windows = |field: &str| windows.iter().any(|name| field.starts_with(name.as_str()));
    let tried = |field: &str| TRIES.contains(&field) || field.starts_with("status.retry") || of_windows(field);
    // An evaluation that no operator saw is lost with its gang.
    let seen = |field: &str| field.starts_with("status.training.firstValidation");
    // Which attempt wrote the first checkpoint; how far a training was that was replaced, and whether an operator saw
    // its speed.
    let gangs = |field: &str| {
        field.starts_with("status.training.segments[") && field.ends_with("].attempt")
            || field.starts_with("status.training.replaced.")
    };
    // Where a segment ends depends on when its last checkpoint was written; the next one begins there.
    let inner = |field: &str| {
        let segments = status["training"]["segments"].as_array().map_or(0, Vec::len);
        (1..segments).any(|index| {
            field == format!("status.training.segments[{index}].fromItems")
                || field == format!("status.training.segments[{}].toItems", index - 1)
        })
    };
    let same = |field: &str| !tried(field) && !seen(field) && !gangs(field) && !inner(field) && !is_evidence(field);
    fields.retain(|field, _| same(field) && (blueprint.scripted || is_determined(field)));
    if !blueprint.has_same_command() {
        fields.remove("status.training.completed");
    }
    let quotes = |field: &str| {
        field == "status.bundle.message" || field.starts_with("status.phases[") && field.ends_with("].message")
    };
    fields.iter_mut().filter(|(field, _)| quotes(field)).for_each(|(_, message)| *message = without_digits(message));
    fields
}
