//! A training script in PyTorch in a foreign image, on a real Kubernetes: `tests/run pytorch`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_api::TrainingJobStatus;
use pawl_api::status::PhaseState;
use pawl_e2e::job::status;
use pawl_e2e::programs::{built, repository};
use pawl_e2e::scene;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Differences that a phase without gain has by the noise of a busy machine.
const NO_GAIN: [&str; 2] = ["SpeedBelowThreshold", "SpeedUndecided"];

/// The manifest of the example, with `image` and shorter launches. `SCRIPTS` and `PYTHONPATH` are those of the image.
fn manifest() -> Value {
    let text = std::fs::read_to_string(repository().join("examples/pytorch/cpu.yaml")).unwrap();
    let mut job: Value = serde_saphyr::from_str(&text).unwrap();
    let spec = &mut job["spec"];
    spec["trainer"]["image"] = "localhost/pytorch-trainer:test".into();
    spec["trainer"]["podTemplate"]["env"] = json!([
        {"name": "OMP_NUM_THREADS", "value": "1"},
        {"name": "PYTHONPATH", "value": "/app"},
    ]);
    spec["phases"].as_array_mut().unwrap().push(json!({"name": "attention", "settings": {"attention": "Flash"}}));
    spec["analysis"] = json!({"warmupSteps": 3, "windowSteps": 20, "qualityItems": 512, "budgetPercent": "Unlimited"});
    spec["train"]["items"] = 2048.into();
    job
}

/// The same with 'pawl run' and the Python of the image.
fn pawl_run(state: &Path, mut job: Value) -> TrainingJobStatus {
    let python = std::env::var("PAWL_PYTHON").expect("PAWL_PYTHON: run this through tests/e2e/run pytorch");
    let package = repository().join("trainer-image/python/src");
    job["spec"]["trainer"]["podTemplate"]["env"] = json!([
        {"name": "OMP_NUM_THREADS", "value": "1"},
        {"name": "PYTHONPATH", "value": package},
    ]);
    // The command says python, as the image does.
    job["spec"]["workload"]["command"] = json!([python, repository().join("examples/pytorch/train.py")]);
    let file = state.join("job.json");
    std::fs::write(&file, job.to_string()).unwrap();
    let arguments = ["run", "--output", "json", "--quiet", "--state"];
    let output = Command::new(built("pawl")).args(arguments).arg(state.join("state")).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    serde_json::from_value(document["status"].clone()).unwrap()
}

#[test]
fn a_script_in_pytorch_has_the_verdicts_of_pawl_run() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let mut job = manifest();
        job["spec"]["workload"]["command"] = json!(["/bin/python3", "/app/train.py"]);
        scene.apply(&job);
        let there = scene.complete("pytorch-cpu", Duration::from_secs(1500)).await;
        let there = status(&there);
        let here = pawl_run(scene.directory.path(), job);

        let expected = [
            ("larger-batch", PhaseState::Accepted, "SpeedAboveThreshold"),
            ("recompute", PhaseState::RolledBack, "SpeedBelowThreshold"),
            ("high-rate", PhaseState::RolledBack, "NonFinite"),
            ("attention", PhaseState::Unsupported, "Unsupported"),
        ];
        for shell in [there, &here] {
            assert_eq!(shell.phases.len(), expected.len());
            for (phase, (name, state, reason)) in shell.phases.iter().zip(expected) {
                let text = format!("{}: {:?} {}: {}", phase.name, phase.state, phase.reason, phase.message);
                eprintln!("{text}");
                assert_eq!(phase.name, name, "{text}");
                if NO_GAIN.contains(&reason) {
                    assert!(NO_GAIN.contains(&phase.reason.as_str()), "{text}");
                    continue;
                }
                assert_eq!((phase.state, phase.reason.as_str()), (state, reason), "{text}");
            }
        }
        let training = there.training.as_ref().unwrap();
        assert_eq!(training.measured.items, 2048);
        assert!(training.last_checkpoint.is_some());
        let loss = |metric: Option<&pawl_contract::decimal::Decimal>| metric.unwrap().value();
        assert!(
            loss(training.measured.metric("loss")) < loss(training.measured.first_metric("loss")),
            "it has learned"
        );
    });
}
