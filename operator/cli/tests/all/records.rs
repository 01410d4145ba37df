//! What outlives the state directory of a job: the records in its storage.

use crate::scene::{Scene, stderr, stdout};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Runs a job with one phase, and removes everything but its storage. Returns the storage, and the status at the end.
fn stored(scene: &Scene) -> (String, Value) {
    let models = format!("file://{}", scene.path().join("models").display());
    scene.write_job(|job| {
        job["spec"]["phases"] = json!([{"name": "graph", "settings": {"compile": "Graph"}}]);
        job["spec"]["trainer"]["podTemplate"] = json!({"env": [{"name": "TOKEN", "value": "secret-17"}]});
        job["spec"]["train"]["checkpoint"]["storage"] = json!(models);
    });
    let output = scene.output(&["run", "job.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}\n{}", stdout(&output), stderr(&output));
    let status = scene.status();
    let storage = status["training"]["storage"].as_str().unwrap().strip_prefix("file://").unwrap().to_owned();
    fs::remove_dir_all(scene.path().join(".pawl")).unwrap();
    fs::remove_file(scene.path().join("job.yaml")).unwrap();
    (storage, status)
}

#[test]
fn a_job_is_read_from_its_storage_alone() {
    let scene = Scene::new();
    let (storage, ended) = stored(&scene);
    let read = scene.output(&["status", "--state", &storage, "--output", "json"]);
    let read: Value = serde_json::from_slice(&read.stdout).unwrap();
    assert_eq!(read["status"], ended);
    let paths = read["paths"].as_object().unwrap();
    assert!(!paths.contains_key("events") && !paths.contains_key("report"), "{paths:?}");
    for path in paths.values() {
        assert!(Path::new(path.as_str().unwrap()).exists(), "{path}");
    }
    assert!(paths.contains_key("checkpoint"), "{paths:?}");
    let above = Path::new(&storage).parent().unwrap().display().to_string();
    let listed = scene.output(&["list", &above, "--output", "json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!((&listed[0]["job"], &listed[0]["stage"]), (&json!("toy"), &json!("Complete")));

    let reported = scene.output(&["report", "--state", &storage]);
    assert_eq!(stdout(&reported), "toy.html\n", "{}", stderr(&reported));
    let page = fs::read_to_string(scene.path().join("toy.html")).unwrap();
    for part in [
        "Training loss",
        "Validation loss",
        "graph: pair 1",
        "Measured with",
        "What happened",
        env!("CARGO_PKG_VERSION"),
    ] {
        assert!(page.contains(part), "{part} is not in the report");
    }
    let replayed = scene.output(&["replay", "--state", &storage]);
    assert!(stdout(&replayed).ends_with("\nEach verdict is the recorded one.\n"), "{}", stdout(&replayed));
    let compared = scene.output(&["compare", &storage, &storage]);
    assert!(compared.status.success() && stdout(&compared).contains("phase graph"), "{}", stderr(&compared));

    let document = fs::read_to_string(format!("{storage}/.pawl/_records/status.json")).unwrap();
    assert!(document.contains("TOKEN") && !document.contains("secret-17"), "whoever may read the storage reads it");
}

#[test]
fn a_job_is_repeated_from_its_storage_or_a_record() {
    let scene = Scene::new();
    let (storage, ended) = stored(&scene);
    let output = scene.output(&["reproduce", &storage, "--out", "again.yaml"]);
    assert_eq!(stdout(&output), "again.yaml\n", "{}", stderr(&output));
    let text = fs::read_to_string(scene.path().join("again.yaml")).unwrap();
    for part in ["# Repeats toy, as recorded in ", " ran with:\n", "#   Pawl ", "#   CPU ", "Add those of TOKEN.\n"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("secret-17") && !text.contains("uid:"), "{text}");
    let valid = scene.output(&["validate", "again.yaml"]);
    assert!(valid.status.success(), "{}", stderr(&valid));
    let refused = scene.output(&["reproduce", &storage, "--out", "again.yaml"]);
    assert_eq!(refused.status.code(), Some(2), "the file is there already");
    let page = scene.output(&["report", "--state", &storage, "--out", "again.yaml"]);
    assert_eq!(page.status.code(), Some(2), "{}", stderr(&page));
    assert_eq!(fs::read_to_string(scene.path().join("again.yaml")).unwrap(), text);

    let number = ended["attempts"].as_u64().unwrap();
    let record = format!("{storage}/.pawl/_records/attempts/toy-{number}.jsonl");
    let output = scene.output(&["reproduce", &record]);
    let text = stdout(&output);
    assert!(text.contains(&format!("# Attempt toy-{number} ran with:\n")), "{text}{}", stderr(&output));
    assert!(text.contains("graph") && text.contains("apiVersion: pawl.dev/v1alpha1"), "{text}");
    let folder = format!("{storage}/.pawl/_records/attempts");
    let within = scene.pawl(&["reproduce", &format!("toy-{number}.jsonl")]).current_dir(folder).output().unwrap();
    assert!(stdout(&within).contains(&format!("# Attempt toy-{number} ran with:\n")), "{}", stderr(&within));
}

#[test]
fn a_storage_without_records_is_named() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path().join("models/.pawl/_records/attempts")).unwrap();
    let output = scene.output(&["report", "--state", "models"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("models/.pawl/_records/status.json"), "{}", stderr(&output));
}
