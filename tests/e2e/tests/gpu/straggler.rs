//! A slow GPU is not a slow setting.

use pawl_api::TrainingJob;
use pawl_api::status::PhaseState;
use pawl_e2e::gpus::{Gpus, LONGEST, Load, uuids};
use pawl_e2e::job::status;
use pawl_e2e::scene;
use serde_json::json;
use std::time::Duration;

/// The condition `Degraded`: its reason, and its message.
fn degraded(job: &TrainingJob) -> Option<(String, String)> {
    let conditions = job.status.as_ref()?.conditions.iter();
    let found = conditions.clone().find(|condition| condition.type_ == "Degraded" && condition.status == "True")?;
    Some((found.reason.clone(), found.message.clone()))
}

#[test]
fn a_slow_gpu_is_named_and_reverts_nothing_and_a_slow_phase_is_rolled_back() {
    let gpus = Gpus::here();
    if !gpus.suffice(2, true) {
        return;
    }
    scene(async |scene| {
        let job = gpus.job("gang", (1, 2), |job| {
            job["spec"]["workload"] = json!({"name": "ups", "config": {
                "preset": "medium", "pairs": 100, "tasks": ["advection1d", "darcy2d"], "loss": {"auxiliary": "None"}}});
            job["spec"]["settings"] = json!({
                "precision": "bf16", "batchPerGpu": 24, "compile": "Fuse", "attention": "Flash", "optimizerKernel": "Fused",
                "loaderWorkers": 8, "loaderPrefetch": 2, "loaderPinned": true, "loaderAsyncCopy": true,
            });
            job["spec"]["phases"] = json!([
                {"name": "graph", "minSpeedup": "0.9", "settings": {"compile": "Graph"}},
                {"name": "recompute", "settings": {"activationCheckpointing": "Full"}},
            ]);
            job["spec"]["analysis"] = json!({"warmupSteps": 2, "windowSteps": 10, "minPairs": 2, "maxPairs": 3,
                "budgetPercent": "Unlimited"});
            job["spec"]["train"] = json!({"items": 100_000_000, "evalEvery": 1_000_000_000});
        });
        scene.apply(&job);
        let windows = |job: &TrainingJob| {
            job.status.as_ref().and_then(|status| status.training.as_ref()).is_some_and(|training| training.window >= 2)
        };
        let training = scene.healthy_until("gang", "to train at full speed", LONGEST, windows).await;
        let verdict =
            |job: &TrainingJob| -> Vec<PhaseState> { status(job).phases.iter().map(|phase| phase.state).collect() };
        let expected = [PhaseState::Accepted, PhaseState::RolledBack];
        assert_eq!(verdict(&training), expected, "{:?}", status(&training).phases);
        assert_eq!(degraded(&training), None);

        let slow = uuids().swap_remove(1);
        let load = Load::on(&slow);
        let named = |job: &TrainingJob| degraded(job).is_some_and(|(reason, _)| reason == "Straggler");
        let job = scene.healthy_until("gang", "to name the slow GPU", Duration::from_secs(90), named).await;
        let (_, message) = degraded(&job).unwrap();
        eprintln!("{message}");
        assert!(
            message.contains(&slow) && message.contains("SM clock") && message.contains("on node node-1"),
            "{message}"
        );
        // For longer than the guard tolerates slow training.
        tokio::time::sleep(Duration::from_secs(30)).await;
        let job = scene.job("gang").await;
        assert_eq!(verdict(&job), expected, "{:?}", status(&job).phases);
        drop(load);
        let recovered = |job: &TrainingJob| degraded(job).is_none();
        let job = scene.healthy_until("gang", "to be as fast as before", Duration::from_secs(60), recovered).await;
        assert_eq!((verdict(&job), status(&job).training.as_ref().unwrap().restarts), (expected.to_vec(), 0));
    });
}
