//! The other shell: what `pawl run` makes of a manifest, to compare with what the operator made of it.

use crate::Scene;
use crate::programs::built;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Runs a manifest with `pawl run` and gives its status.
///
/// # Panics
/// When it fails.
pub fn pawl_run(scene: &Scene, manifest: &Path, arguments: &[&str]) -> Value {
    pawl_run_in(&scene.directory.path().join("state"), manifest, arguments)
}

/// The same with a state directory of its own, for several at a time.
///
/// # Panics
/// When it fails.
pub fn pawl_run_in(state: &Path, manifest: &Path, arguments: &[&str]) -> Value {
    let programs = built("pawl").parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let output = Command::new(built("pawl"))
        .args(["run", "--output", "json", "--quiet", "--state"])
        .arg(state)
        .args(arguments)
        .arg(manifest)
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["status"].clone()
}

/// What a status says apart from when and where it happened, what that took, and how far the training was when somebody
/// last asked a running gang: every field by its path.
pub fn timeless(status: &Value) -> BTreeMap<String, Value> {
    const WHEN_AND_WHERE: [&str; 17] = [
        "startTime",
        "completionTime",
        "lastTransitionTime",
        "started",
        "eta",
        "goodput",
        "placement",
        "cpuPressure",
        "memoryPressure",
        "ioPressure",
        "otherCpuShare",
        "idleCpuShare",
        "cpuThrottledShare",
        // A cluster has a default storage, a state directory is one.
        "storage",
        "cost",
        "wallSeconds",
        // A gang may have to wait until devices are free.
        "suspendedSeconds",
    ];
    const LAST_SEEN: [&str; 6] = ["epoch", "window", "lastGoodItems", "cusum", "gateWindows", "goodWindows"];
    fn flatten(at: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields
                    .iter()
                    .filter(|(name, _)| !WHEN_AND_WHERE.contains(&name.as_str()) && !LAST_SEEN.contains(&name.as_str()))
                {
                    flatten(&format!("{at}.{name}"), field, into);
                }
            }
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(i, item)| flatten(&format!("{at}[{i}]"), item, into));
            }
            leaf => {
                into.insert(at.to_owned(), leaf.clone());
            }
        }
    }
    let mut all = BTreeMap::new();
    flatten("status", status, &mut all);
    // The median of the launches that had ended when somebody first looked.
    all.remove("status.baseline.itemsPerSecond");
    // An image there, a program here.
    all.retain(|name, _| !name.starts_with("status.trainer.") && !name.ends_with(".trainer"));
    all
}

/// The fields in which two statuses differ, with what each of them says.
pub fn differences(operator: &BTreeMap<String, Value>, local: &BTreeMap<String, Value>) -> Vec<String> {
    let names: BTreeSet<_> = operator.keys().chain(local.keys()).collect();
    let differing = names.into_iter().filter(|name| operator.get(*name) != local.get(*name));
    let told = |name: &String| format!("{name}: operator {:?}, pawl run {:?}", operator.get(name), local.get(name));
    differing.map(told).collect()
}
