//! Phases are judged in pods as by `pawl run` on the same GPU, and as fast.

use pawl_api::status::PhaseState;
use pawl_e2e::gpus::{Gpus, LONGEST, outside};
use pawl_e2e::job::status;
use pawl_e2e::programs::repository;
use pawl_e2e::scene;
use serde_json::{Value, json};

/// Reasons of a phase that gains nothing, which only noise tells apart.
const NO_GAIN: [&str; 2] = ["SpeedBelowThreshold", "SpeedUndecided"];

/// A manifest of the repository, on one GPU.
fn manifest(gpus: Gpus, path: &str) -> Value {
    let text = std::fs::read_to_string(repository().join(path)).unwrap();
    let mut job: Value = serde_saphyr::from_str(&text).unwrap();
    let name = job["metadata"]["name"].as_str().unwrap().to_owned();
    let trainer = gpus.job(&name, (1, 1), |_| {})["spec"]["trainer"].clone();
    job["spec"]["trainer"] = trainer;
    job
}

/// Name, state, reason and fallback of each phase of a status; reasons that only noise tells apart are one.
fn verdicts(status: &Value) -> Vec<String> {
    let phases = status["phases"].as_array().unwrap().iter();
    let verdict = |phase: &Value| {
        eprintln!("{} {} {} {}: {}", phase["name"], phase["state"], phase["reason"], phase["rung"], phase["message"]);
        let reason = phase["reason"].as_str().unwrap_or_default();
        let (state, reason) = match NO_GAIN.contains(&reason) {
            true => ("no gain", ""),
            false => (phase["state"].as_str().unwrap_or_default(), reason),
        };
        format!("{} {state} {reason} fallback {}", phase["name"], phase["rung"])
    };
    phases.map(verdict).collect()
}

#[test]
fn a_ladder_has_the_verdicts_of_pawl_run_and_a_phase_too_large_for_the_gpu_walks_its_fallback() {
    let gpus = Gpus::here();
    if !gpus.suffice(1, true) {
        return;
    }
    scene(async |scene| {
        let job = manifest(gpus, "tests/device/ladder.yaml");
        scene.apply(&job);
        let done = scene.complete("ladder", 2 * LONGEST).await;
        let too_large = status(&done).phases.iter().find(|phase| phase.name == "too-large").unwrap();
        assert_eq!(too_large.fallback, 1, "{too_large:?}");
        let there = verdicts(&scene.status("ladder").await);
        let here = verdicts(&outside(scene.directory.path(), "outside", &job));
        assert_eq!(there, here);
    });
}

#[test]
fn a_language_model_is_measured_and_trained_as_by_pawl_run() {
    scene(async |scene| {
        let gpus = Gpus::here();
        let mut job = manifest(gpus, "examples/slm-tiny.yaml");
        if !gpus.real {
            job["spec"]["phases"].as_array_mut().unwrap().truncate(1);
            job["spec"]["analysis"] =
                json!({"warmupSteps": 1, "windowSteps": 5, "minPairs": 2, "maxPairs": 3, "budgetPercent": "Unlimited"});
            job["spec"]["train"] = json!({"items": 160, "evalEvery": 80});
        }
        scene.apply(&job);
        let done = scene.complete("slm-tiny", LONGEST).await;
        assert_eq!(status(&done).phases[0].state, PhaseState::Accepted, "{:?}", status(&done).phases[0]);
        let there = scene.status("slm-tiny").await;
        let here = outside(scene.directory.path(), "outside", &gpus.local(&job));
        assert_eq!(verdicts(&there)[0], verdicts(&here)[0]);
        let counts = |status: &Value| (status["training"]["steps"].clone(), status["training"]["items"].clone());
        assert_eq!(counts(&there), counts(&here));
    });
}

#[test]
fn throughput_in_a_pod_is_within_one_percent_of_that_outside() {
    let gpus = Gpus::here();
    if !gpus.suffice(1, true) {
        return;
    }
    scene(async |scene| {
        let job = |name: &str| {
            gpus.job(name, (1, 1), |job| {
                job["spec"]["workload"] = json!({"name": "ups", "config": {
                    "preset": "medium", "pairs": 100, "tasks": ["advection1d", "darcy2d"], "loss": {"auxiliary": "None"}}});
                job["spec"]["settings"] = json!({
                    "precision": "bf16", "batchPerGpu": 24, "accumulationSteps": 2, "compile": "Graph", "attention": "Flash",
                    "optimizerKernel": "Fused", "loaderWorkers": 8, "loaderPrefetch": 2, "loaderPinned": true, "loaderAsyncCopy": true,
                });
                job["spec"]["train"] = json!({"items": 24 * 2 * 80, "evalEvery": 1_000_000_000});
            })
        };
        let speed = |status: &Value| status["training"]["itemsPerSecond"].as_str().unwrap().parse::<f64>().unwrap();
        let (mut inside, mut beside) = (Vec::new(), Vec::new());
        for round in ["first", "second"] {
            scene.apply(&job(round));
            scene.complete(round, LONGEST).await;
            inside.push(speed(&scene.status(round).await));
            beside.push(speed(&outside(scene.directory.path(), round, &job(round))));
        }
        let ratio = inside.iter().sum::<f64>() / beside.iter().sum::<f64>();
        eprintln!("items/s in pods {inside:?}, outside {beside:?}: ratio {ratio:.4}");
        assert!(ratio > 0.99, "{ratio}");
    });
}
