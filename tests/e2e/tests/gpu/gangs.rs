//! Two GPUs: in one pod, in two pods, and one beside the other.

use pawl_api::status::PhaseState;
use pawl_e2e::gpus::{Gpus, LONGEST};
use pawl_e2e::job::status;
use pawl_e2e::scene;
use serde_json::{Value, json};

/// A training of a language model in float32, whose sums over ranks differ by rounding only.
fn training(gpus: Gpus, name: &str, shape: (u32, u32)) -> Value {
    gpus.job(name, shape, |job| {
        job["spec"]["workload"] = json!({"name": "slm", "config": {"size": "tiny", "data": {"tokens": 100_000},
                                         "evaluation": {"windows": 8}}});
        job["spec"]["settings"] = json!({
            "batchPerGpu": 4, "globalBatch": 8, "compile": "Graph", "learningRate": "1e-3", "deterministic": true,
            "nccl": {"NCCL_DEBUG": "INFO"},
        });
        job["spec"]["train"] = json!({"items": 640, "evalEvery": 320});
    })
}

/// A metric of the last evaluation.
fn loss(status: &Value) -> f64 {
    status["training"]["validation"]["metrics"]["loss"].as_str().unwrap().parse().unwrap()
}

#[test]
fn two_gpus_in_one_pod_train_as_two_pods_over_the_pod_network_and_as_one_gpu() {
    let gpus = Gpus::here();
    // Two pretended GPUs in one pod are one process.
    if !gpus.suffice(2, true) {
        return;
    }
    scene(async |scene| {
        let mut losses = Vec::new();
        for (name, shape) in [("alone", (1, 1)), ("together", (1, 2)), ("apart", (2, 1))] {
            scene.apply(&training(gpus, name, shape));
            let done = scene.complete(name, LONGEST).await;
            let measured = status(&done).training.clone().unwrap().measured;
            assert_eq!((measured.steps, measured.items), (80, 640), "{name}");
            losses.push((name, loss(&scene.status(name).await)));
        }
        eprintln!("{losses:?}");
        for (name, loss) in &losses[1..] {
            assert!((loss / losses[0].1 - 1.0).abs() < 1e-4, "{name}: {losses:?}");
        }
    });
}

#[test]
fn two_pods_of_pretended_gpus_are_one_gang() {
    let gpus = Gpus::here();
    if gpus.real {
        eprintln!("SKIPPED: needs pretended GPUs");
        return;
    }
    if !gpus.suffice(2, false) {
        return;
    }
    scene(async |scene| {
        let mut job = training(gpus, "apart", (2, 1));
        job["spec"]["settings"].as_object_mut().unwrap().remove("nccl");
        job["spec"]["train"] = json!({"items": 160, "evalEvery": 80});
        scene.apply(&job);
        let done = scene.complete("apart", LONGEST).await;
        let measured = status(&done).training.clone().unwrap().measured;
        assert_eq!((measured.steps, measured.items), (20, 160));
    });
}

#[test]
fn a_phase_that_exhausts_a_gpu_does_not_hurt_the_neighbour() {
    let gpus = Gpus::here();
    if !gpus.suffice(2, true) {
        return;
    }
    scene(async |scene| {
        // On the other GPU, for as long as the phase is judged.
        let mut neighbour = training(gpus, "neighbour", (1, 1));
        neighbour["spec"]["train"] = json!({"items": 4_000_000, "evalEvery": 1_000_000_000});
        scene.apply(&neighbour);
        let trains = |job: &pawl_api::TrainingJob| {
            job.status
                .as_ref()
                .and_then(|status| status.training.as_ref())
                .is_some_and(|training| training.measured.steps > 0)
        };
        let before = scene.healthy_until("neighbour", "to train", LONGEST, trains).await;

        let large = gpus.job("large", (1, 1), |job| {
            job["spec"]["workload"] = json!({"name": "ups", "config": {
                "preset": "medium", "pairs": 100, "tasks": ["advection1d", "darcy2d"], "loss": {"auxiliary": "None"}}});
            job["spec"]["settings"] = json!({"precision": "bf16", "batchPerGpu": 8, "compile": "Graph"});
            job["spec"]["phases"] = json!([{
                "name": "too-large", "minSpeedup": "0.5", "numerics": "Changed", "settings": {"batchPerGpu": 4000},
                "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 16}}],
            }]);
            job["spec"]["gates"] = json!({"validationLossDelta": "10"});
            job["spec"]["analysis"] =
                json!({"warmupSteps": 1, "windowSteps": 4, "minPairs": 2, "maxPairs": 2, "qualityItems": 96,
                       "budgetPercent": "Unlimited"});
            job["spec"]["train"] = json!({"items": 96, "evalEvery": 48});
        });
        scene.apply(&large);
        let done = scene.complete("large", LONGEST).await;
        let phase = &status(&done).phases[0];
        assert_eq!((phase.state, phase.fallback), (PhaseState::Accepted, 1), "{phase:?}");

        let after = scene.job("neighbour").await;
        let training = |job: &pawl_api::TrainingJob| status(job).training.clone().unwrap();
        let (before, after) = (training(&before), training(&after));
        assert_eq!((before.restarts, after.restarts), (0, 0));
        assert!(after.measured.steps > before.measured.steps, "{after:?}");
    });
}
