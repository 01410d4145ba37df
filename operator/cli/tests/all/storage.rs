//! Jobs that share a checkpoint storage: no job gets, or deletes, the model of another one.

use crate::scene::{Scene, stderr};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A job that only trains, called `name`, with its checkpoints under `models` of the directory.
fn write(scene: &Scene, name: &str, change: impl FnOnce(&mut Value)) {
    let storage = format!("file://{}", scene.path().join("models").display());
    scene.write_job(|job| {
        job["metadata"]["name"] = json!(name);
        job["spec"]["phases"] = json!([]);
        job["spec"]["train"] = json!({"items": 6400, "checkpoint": {"every": "1s", "keep": 2, "storage": storage}});
        change(job);
    });
}

/// Runs the job to its end. Returns its status.
fn run(scene: &Scene, name: &str) -> Value {
    let output = scene.output(&["run", "job.yaml", "--quiet"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document = scene.path().join(".pawl").join(name).join("status.json");
    let document: Value = serde_json::from_slice(&fs::read(document).unwrap()).unwrap();
    document["status"].clone()
}

/// The directory of a job's checkpoints, by its status.
fn storage(status: &Value) -> PathBuf {
    let storage = status["training"]["storage"].as_str().unwrap();
    Path::new(storage.strip_prefix("file://").unwrap()).to_owned()
}

/// Every file under `directory` and its bytes.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}

#[test]
fn jobs_on_one_storage_train_their_own_models_and_leave_the_others_unchanged() {
    let scene = Scene::new();
    write(&scene, "a", |_| {});
    let first = run(&scene, "a");
    let model = contents(&storage(&first));
    assert!(!model.is_empty() && storage(&first).starts_with(scene.path().join("models/a")));

    // Another job trains its own model from the beginning.
    write(&scene, "b", |_| {});
    let other = run(&scene, "b");
    assert_eq!(other["training"]["items"], 6400);
    assert!(other["attempts"].as_u64() > Some(0) && other["training"]["started"].is_string());
    assert_ne!(storage(&other), storage(&first));

    // So does one that is created again under the same name, and the old model stays.
    fs::remove_dir_all(scene.path().join(".pawl/a")).unwrap();
    write(&scene, "a", |_| {});
    let again = run(&scene, "a");
    assert_ne!(storage(&again), storage(&first));
    assert_eq!(contents(&storage(&first)), model);
    assert_eq!(scene.ledger("started").iter().filter(|launch| launch.starts_with("train-")).count(), 3);
    // The same job, with more to train, resumes from its own.
    write(&scene, "a", |job| job["spec"]["train"]["items"] = json!(12_800));
    let more = run(&scene, "a");
    assert_eq!(storage(&more), storage(&again));
    assert_eq!(more["training"]["lastCheckpoint"]["items"], 12_800);
}

#[test]
fn a_job_whose_checkpoints_are_gone_stops_and_says_so() {
    let scene = Scene::new();
    write(&scene, "a", |_| {});
    let first = run(&scene, "a");
    let (there, away) = (storage(&first), scene.path().join("away"));
    fs::rename(&there, &away).unwrap();
    let more = |job: &mut Value| job["spec"]["train"]["items"] = json!(12_800);
    write(&scene, "a", more);
    let output = scene.output(&["run", "job.yaml", "--quiet"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let document = fs::read(scene.path().join(".pawl/a/status.json")).unwrap();
    let status: Value = serde_json::from_slice::<Value>(&document).unwrap()["status"].clone();
    assert_eq!(status["failure"]["reason"], "CheckpointUnreadable", "{status:#}");
    assert_eq!(scene.ledger("started").iter().filter(|launch| launch.starts_with("train-")).count(), 2, "no retries");
    // Restored, it goes on after the spec was touched, as the message says.
    fs::remove_dir_all(&there).unwrap();
    fs::rename(&away, &there).unwrap();
    write(&scene, "a", |job| {
        more(job);
        job["spec"]["suspend"] = json!(true);
    });
    scene.output(&["run", "job.yaml", "--quiet"]);
    write(&scene, "a", more);
    assert_eq!(run(&scene, "a")["training"]["lastCheckpoint"]["items"], 12_800);
}
