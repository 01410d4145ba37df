//! Gangs that cannot run: no image, no room.

use crate::gang::is_running;
use k8s_openapi::api::core::v1::Pod;
use pawl_api::TrainingJob;
use pawl_api::status::{PhaseState, Stage};
use pawl_e2e::job::{status, toy};
use pawl_e2e::scene::stage;
use pawl_e2e::{Scene, scene};
use serde_json::json;
use std::time::Duration;

/// The job, as soon as it says that it will be tried again: its pods are gone a moment before.
async fn tried_again(scene: &Scene) -> TrainingJob {
    let retries = |job: &TrainingJob| job.status.as_ref().is_some_and(|status| status.retry.is_some());
    scene.job_until("toy", "to be tried again", Duration::from_secs(5), retries).await
}

#[test]
fn an_image_that_cannot_be_pulled_is_told_and_is_no_verdict() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&toy(|job| {
            job["spec"]["trainer"]["image"] = "localhost/absent:test".into();
            // The kubelet says what is wrong when it tries again, 10 s later.
            job["spec"]["lifecycle"]["schedulingTimeout"] = "20s".into();
        }));
        let told = scene
            .until("the operator to say so", Duration::from_secs(60), async || {
                let events = scene.events("toy").await;
                events.into_iter().find(|(_, note)| note.contains("localhost/absent:test"))
            })
            .await;
        assert_eq!(told.0, "GangPending");
        let gone = async || scene.pods("toy").await.is_empty().then_some(());
        scene.until("the gang to be given back", Duration::from_secs(60), gone).await;
        let job = tried_again(scene).await;
        let retry = status(&job).retry.as_ref().unwrap();
        assert!(retry.message.contains("localhost/absent:test"), "{}", retry.message);
        assert!(
            status(&job).phases.iter().all(|phase| phase.state == PhaseState::Pending),
            "{:?}",
            status(&job).phases
        );
        // A person puts it right.
        scene
            .patch_spec(
                "toy",
                json!({"trainer": {"image": "localhost/foreign-trainer:test"}, "phases": [],
                                       "train": {"items": 640}}),
            )
            .await;
        scene.complete("toy", Duration::from_secs(120)).await;
    });
}

#[test]
fn a_gang_of_which_only_half_fits_gives_all_back_and_runs_when_there_is_room() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        // One node's devices are taken by somebody else.
        scene.apply(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
                "name": "other", "image": "localhost/busybox:test", "resources": {"limits": {"nvidia.com/gpu": "4"}},
            }]},
        }));
        let taken = async || scene.api::<Pod>().get("other").await.ok().filter(is_running);
        scene.until("the other pod to run", Duration::from_secs(60), taken).await;
        scene.apply(&toy(|job| {
            job["spec"]["trainer"]["replicas"] = 2.into();
            job["spec"]["trainer"]["gpusPerReplica"] = 4.into();
            job["spec"]["settings"]["accumulationSteps"] = 1.into();
            job["spec"]["phases"] = json!([]);
            job["spec"]["train"]["items"] = 640.into();
            job["spec"]["lifecycle"]["schedulingTimeout"] = "5s".into();
        }));
        let half = async || (scene.pods("toy").await.iter().filter(|pod| is_running(pod)).count() == 1).then_some(());
        scene.until("half of the gang to run", Duration::from_secs(60), half).await;
        let none = async || scene.pods("toy").await.is_empty().then_some(());
        scene.until("all to be given back", Duration::from_secs(60), none).await;
        let waiting = tried_again(scene).await;
        assert!(!matches!(stage(&waiting), Stage::Failed | Stage::Complete));
        assert!(status(&waiting).retry.as_ref().unwrap().message.contains("schedulingTimeout"));
        let told = scene.events("toy").await;
        assert!(told.iter().any(|(_, note)| note.contains("nvidia.com/gpu")), "nobody said what was missing: {told:?}");

        scene.api::<Pod>().delete("other", &Default::default()).await.unwrap();
        scene.complete("toy", Duration::from_secs(180)).await;
    });
}
