//! Pods that are deleted, evicted, or killed for their memory.

use crate::gang::Training;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::EvictParams;
use pawl_api::status::PhaseState;
use pawl_e2e::job::{status, toy};
use pawl_e2e::scene;
use serde_json::json;
use std::time::Duration;

/// From the loss of a pod to a whole new gang, the scheduler's and the kubelet's own time included.
const AGAIN: Duration = Duration::from_secs(10);

#[test]
fn a_deleted_pod_costs_seconds_and_no_step_before_the_checkpoint() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let training =
            Training::under_way(scene, "train", 20, |job| job["spec"]["trainer"]["replicas"] = 2.into()).await;
        let gang = training.again(&[], 2, AGAIN).await;
        let items = training.checkpointed();
        scene.api::<Pod>().delete(&gang[1].name_any(), &Default::default()).await.unwrap();
        training.again(&gang, 2, AGAIN).await;
        let done = training.completes_from(items, Duration::from_secs(90)).await;
        assert_eq!(status(&done).training.as_ref().unwrap().restarts, 1);
    });
}

#[test]
fn an_evicted_pod_is_a_lost_gang_and_no_verdict() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let training = Training::under_way(scene, "train", 20, |_| {}).await;
        let gang = training.running().await;
        let items = training.checkpointed();
        scene.api::<Pod>().evict(&gang[0].name_any(), &EvictParams::default()).await.unwrap();
        training.again(&gang, 1, AGAIN).await;
        let done = training.completes_from(items, Duration::from_secs(90)).await;
        assert_eq!(status(&done).training.as_ref().unwrap().restarts, 1);
    });
}

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
