//! Which checkpoint is resumed, which are set aside, and when it is an error: the vectors that the built-in trainer and
//! the Python package read too, as far as they concern scripts, whose checkpoints have no hashes and do not name what
//! trained them.

use super::tests::training;
use super::*;
use pawl_contract::plan::CheckpointPolicy;
use serde_json::Value;

/// A checkpoint of a script: a directory of two files, of which the second may be missing.
fn write(storage: &Path, step: u64, is_complete: bool) {
    let folder = storage.join(format!("ckpt-{step}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("model"), "").unwrap();
    if is_complete {
        std::fs::write(folder.join("state"), "").unwrap();
    }
}

/// Steps of the checkpoints in a directory that are complete, in order.
fn complete(storage: &Path) -> Vec<u64> {
    let names = fence::entries(storage).into_iter().filter_map(|name| name.into_string().ok());
    let complete = names.filter(|name| storage.join(name).join("state").exists());
    let mut steps: Vec<u64> = complete.filter_map(|name| name.strip_prefix("ckpt-")?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

fn steps(list: &Value) -> Vec<u64> {
    list.as_array().into_iter().flatten().map(|step| step.as_u64().unwrap()).collect()
}

#[test]
fn the_checkpoint_that_is_resumed_is_that_of_the_vectors() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../../../../crds/contract/tests/checkpoints.json")).unwrap();
    for case in cases {
        let name = case["name"].as_str().unwrap();
        if case["by"].as_array().is_some_and(|by| by.iter().all(|by| by != "script")) {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let storage = dir.path().join("storage");
        std::fs::create_dir_all(&storage).unwrap();
        let saved = case["checkpoints"].as_array().unwrap();
        for checkpoint in saved {
            write(&storage, checkpoint["step"].as_u64().unwrap(), checkpoint["is"] != "incomplete");
        }
        for checkpoint in saved.iter().filter(|checkpoint| checkpoint["is"] == "gone") {
            std::fs::remove_dir_all(storage.join(format!("ckpt-{}", checkpoint["step"]))).unwrap();
        }
        let before = complete(&storage);
        let (script, mut launch) = training(&storage, 3);
        // A step has 10 items.
        launch.settings.batch_per_gpu = Some(10);
        if let Some(items) = case["diverged"].as_u64() {
            script.diverged(&launch, items);
        }
        if let Some(attempt) = case["claimed"].as_u64() {
            fence::supersede(&storage, &format!("j-{attempt}")).unwrap();
        }
        let limit = case["limit"].as_u64();
        let known = |step| CheckpointRef { name: format!("ckpt-{step}"), step, items: 10 * step };
        let expected = case["expected"].as_u64().map(known);
        launch.checkpoint = launch
            .checkpoint
            .map(|policy| CheckpointPolicy { resume_not_after_items: limit, ..policy }.expecting(expected));
        let found = script.resume(&launch).map(|resume| resume.checkpoint);
        let resumes = match found {
            Ok(found) => found.map_or(Value::Null, |path| checkpoints::trailing_number(Path::new(&path)).into()),
            Err(report) if report.outcome == Outcome::Stopped => "Superseded".into(),
            Err(report) => format!("{:?}", report.outcome).into(),
        };
        assert_eq!(resumes, case["resumes"], "{name}");
        let left = complete(&storage);
        assert_eq!(left, steps(&case["left"]), "{name}");
        let aside: Vec<u64> = before.into_iter().filter(|step| !left.contains(step)).collect();
        assert_eq!(complete(&storage.join(".pawl/quarantine")), aside, "{name}: nothing is deleted");
    }
}
