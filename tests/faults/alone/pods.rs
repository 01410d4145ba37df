//! Pods that go away: how soon the gang is back.

use crate::gang::Training;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::EvictParams;
use pawl_e2e::job::status;
use pawl_e2e::scene;
use std::time::Duration;

/// From the loss of a pod to a whole new gang, the scheduler's and the kubelet's own time included.
const AGAIN: Duration = Duration::from_secs(10);

#[test]
fn a_deleted_pod_costs_seconds_and_no_step_before_the_checkpoint() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let training =
            Training::under_way(scene, "train", 20, |job| job["spec"]["trainer"]["replicas"] = 2.into()).await;
        let gang = training.running().await;
        assert_eq!(gang.len(), 2);
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
