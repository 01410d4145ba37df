//! Two shells, one brain: a foreign image is measured, kept, rolled back and trained alike by the operator and by
//! `pawl run`.

use pawl_api::TrainingJobStatus;
use pawl_api::status::PhaseState;
use pawl_e2e::job::{status, toy, verdicts};
use pawl_e2e::programs::built;
use pawl_e2e::{Scene, scene};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Runs a manifest with `pawl run` and gives its status.
pub fn pawl_run(scene: &Scene, manifest: &Path, arguments: &[&str]) -> Value {
    let programs = built("pawl").parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let output = Command::new(built("pawl"))
        .args(["run", "--output", "json", "--quiet", "--state"])
        .arg(scene.directory.path().join("state"))
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
/// last asked a running gang.
fn timeless(status: &Value) -> BTreeMap<String, Value> {
    const TIMES: [&str; 8] =
        ["startTime", "completionTime", "lastTransitionTime", "started", "eta", "goodput", "placement", "cost"];
    const LAST_SEEN: [&str; 3] = ["epoch", "window", "lastCheckpoint"];
    fn flatten(at: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields
                    .iter()
                    .filter(|(name, _)| !TIMES.contains(&name.as_str()) && !LAST_SEEN.contains(&name.as_str()))
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
    all
}

#[test]
fn a_foreign_image_ends_with_the_same_status_in_both_shells() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let manifest = toy(|_| {});
        scene.apply(&manifest);
        let done = scene.complete("toy", Duration::from_secs(240)).await;

        let by_state: Vec<_> = status(&done).phases.iter().map(|phase| (phase.state, phase.rung)).collect();
        let expected = [(PhaseState::Accepted, 0), (PhaseState::RolledBack, 0), (PhaseState::Accepted, 1)];
        assert_eq!(by_state, expected, "{:?}", verdicts(status(&done)));

        let file = scene.directory.path().join("toy.json");
        std::fs::write(&file, manifest.to_string()).unwrap();
        let there = timeless(&scene.status("toy").await);
        let here = timeless(&pawl_run(scene, &file, &[]));
        let names = there.keys().chain(here.keys()).collect::<std::collections::BTreeSet<_>>();
        let differences: Vec<_> = names
            .into_iter()
            .filter(|name| there.get(*name) != here.get(*name))
            .map(|name| format!("{name}: operator {:?}, pawl run {:?}", there.get(name), here.get(name)))
            .collect();
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        // Fields were compared, not two empty documents.
        serde_json::from_value::<TrainingJobStatus>(scene.status("toy").await).unwrap();
        assert!(there.len() > 200, "only {} fields were compared", there.len());
    });
}

#[test]
fn each_verdict_is_told_in_an_event_with_its_evidence() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&toy(|job| job["spec"]["train"]["items"] = json!(640)));
        let done = scene.complete("toy", Duration::from_secs(240)).await;
        let events = scene.events("toy").await;
        for phase in &status(&done).phases {
            let told = events.iter().any(|(_, note)| note.contains(&phase.name) && note.contains(&phase.message));
            assert!(told, "no event tells {}: {}\n{events:#?}", phase.name, phase.message);
        }
    });
}
