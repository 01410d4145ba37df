//! Pods that are killed for their memory.

use pawl_api::status::PhaseState;
use pawl_e2e::job::{status, toy};
use pawl_e2e::scene;
use serde_json::json;
use std::time::Duration;

#[test]
fn a_rank_killed_for_its_memory_rolls_its_phase_back() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&toy(|job| {
            job["spec"]["workload"]["config"]["faults"] = json!([
                {"fault": "ExhaustMemory", "bytes": 1_000_000_000, "settings": [{"setting": "compile", "value": "Graph"}]},
            ]);
            job["spec"]["trainer"]["podTemplate"] = json!({"resources": {"limits": {"memory": "128Mi"}}});
            job["spec"]["phases"].as_array_mut().unwrap().truncate(1);
            job["spec"]["train"]["items"] = 640.into();
        }));
        let done = scene.complete("toy", Duration::from_secs(180)).await;
        let phase = &status(&done).phases[0];
        assert_eq!((phase.state, phase.reason.as_str()), (PhaseState::RolledBack, "HostOutOfMemory"), "{phase:?}");
        assert!(scene.events("toy").await.iter().any(|(_, note)| note.contains("HostOutOfMemory")));
    });
}
