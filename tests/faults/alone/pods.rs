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
fn a_deleted_or_evicted_pod_costs_seconds_and_no_step_before_the_checkpoint() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let pods = scene.api::<Pod>();
        let lost_pod = async |name, replicas: usize, evict: bool| {
            let training =
                Training::under_way(scene, name, 20, |job| job["spec"]["trainer"]["replicas"] = replicas.into()).await;
            let gang = training.running().await;
            assert_eq!(gang.len(), replicas);
            let items = training.checkpointed();
            let pod = gang.last().unwrap().name_any();
            if evict {
                pods.evict(&pod, &EvictParams::default()).await.unwrap();
            } else {
                pods.delete(&pod, &Default::default()).await.unwrap();
            }
            training.again(&gang, replicas, AGAIN).await;
            let done = training.completes_from(items, Duration::from_secs(90)).await;
            assert_eq!(status(&done).training.as_ref().unwrap().restarts, 1, "a lost gang and no verdict");
        };
        tokio::join!(lost_pod("deleted", 2, false), lost_pod("evicted", 1, true));
    });
}
