//! People who delete and edit what the operator made.

use crate::gang::{Training, attempt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use pawl_api::TrainingJob;
use pawl_e2e::scene;
use serde_json::json;
use std::time::Duration;

#[test]
fn a_deleted_job_is_a_lost_gang_and_training_resumes() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let training = Training::under_way(scene, "train", 20, |_| {}).await;
        let gang = training.running().await;
        let items = training.checkpointed();
        scene.api::<Job>().delete(&attempt(&gang[0]), &DeleteParams::background()).await.unwrap();
        training.again(&gang, 1, Duration::from_secs(30)).await;
        training.completes_from(items, Duration::from_secs(90)).await;
    });
}

#[test]
fn the_loss_of_its_token_and_its_plan_does_not_hurt_a_running_gang() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let training =
            Training::under_way(scene, "train", 15, |job| job["spec"]["trainer"]["replicas"] = 2.into()).await;
        let gang = training.running().await;
        let name = attempt(&gang[0]);
        // A plan that runs cannot be edited: the API server sees to that.
        let edit = Patch::Merge(json!({"data": {"plan.json": "{}"}}));
        let refused = scene.api::<ConfigMap>().patch(&name, &PatchParams::default(), &edit).await.unwrap_err();
        assert!(refused.to_string().contains("immutable"), "{refused}");
        let edit = Patch::Merge(json!({"stringData": {"token": "x"}}));
        let refused = scene.api::<Secret>().patch(&name, &PatchParams::default(), &edit).await.unwrap_err();
        assert!(refused.to_string().contains("immutable"), "{refused}");
        scene.api::<Secret>().delete(&name, &DeleteParams::default()).await.unwrap();
        scene.api::<ConfigMap>().delete(&name, &DeleteParams::default()).await.unwrap();
        let done = training.completes_from(training.checkpointed(), Duration::from_secs(90)).await;
        assert_eq!(pawl_e2e::job::status(&done).training.as_ref().unwrap().restarts, 0);
    });
}

#[test]
fn labels_owner_and_annotations_come_back() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let training = Training::under_way(scene, "train", 20, |_| {}).await;
        let name = attempt(&training.running().await[0]);
        let jobs = scene.api::<Job>();
        let before = jobs.get(&name).await.unwrap();
        for broken in [
            json!({"metadata": {"labels": {"pawl.dev/job": null}}}),
            json!({"metadata": {"labels": {"pawl.dev/attempt": "other"}}}),
            json!({"metadata": {"ownerReferences": null}}),
            json!({"metadata": {"annotations": {"pawl.dev/plan-hash": "0"}}}),
        ] {
            jobs.patch(&name, &PatchParams::default(), &Patch::Merge(&broken)).await.unwrap();
            let whole = async || {
                let now = jobs.get(&name).await.unwrap();
                let same = now.labels() == before.labels()
                    && now.owner_references() == before.owner_references()
                    && now.annotations().get("pawl.dev/plan-hash") == before.annotations().get("pawl.dev/plan-hash");
                same.then_some(())
            };
            scene.until(&format!("{broken} to be put right"), Duration::from_secs(10), whole).await;
        }
        training.completes_from(training.checkpointed(), Duration::from_secs(90)).await;
    });
}

#[test]
fn deleting_a_job_leaves_nothing() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let training =
            Training::under_way(scene, "train", 60, |job| job["spec"]["trainer"]["replicas"] = 2.into()).await;
        assert_eq!(training.running().await.len(), 2);
        scene.api::<TrainingJob>().delete("train", &DeleteParams::default()).await.unwrap();
        let nothing = async || (scene.count_owned("train").await == 0).then_some(());
        scene.until("all to be gone", Duration::from_secs(120), nothing).await;
        assert!(scene.api::<TrainingJob>().get_opt("train").await.unwrap().is_none());
        // And nothing comes back.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(scene.count_owned("train").await, 0);
    });
}
