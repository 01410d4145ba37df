//! What the API server cannot know is reported before anything is measured: in the condition, and in an event.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use pawl_api::TrainingJob;
use pawl_api::status::Stage;
use pawl_e2e::job::{status, toy};
use pawl_e2e::programs::repository;
use pawl_e2e::scene::stage;
use pawl_e2e::{Scene, scene};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

fn condition<'a>(job: &'a TrainingJob, kind: &str) -> &'a Condition {
    status(job).conditions.iter().find(|condition| condition.type_ == kind).unwrap()
}

/// Applies `job`, waits until it is Failed, and checks that condition and event say why. Gives the condition's message.
async fn fails(scene: &Scene, job: &Value, reason: &str) -> String {
    scene.apply(job);
    let name = job["metadata"]["name"].as_str().unwrap();
    let ended = |job: &TrainingJob| matches!(stage(job), Stage::Failed | Stage::Complete);
    let failed = scene.job_until(name, "to end", Duration::from_secs(90), ended).await;
    let told = condition(&failed, "Failed");
    assert_eq!((told.status.as_str(), told.reason.as_str()), ("True", reason), "{told:?}");
    assert_eq!(condition(&failed, "Stalled").status, "True");
    let look = async || scene.events(name).await.into_iter().find(|(_, note)| note.contains(&told.message));
    let event = scene.until("an event that says why", Duration::from_secs(10), look).await;
    assert_eq!(event.0, reason, "{event:?}");
    told.message.clone()
}

#[test]
fn a_batch_that_does_not_come_out_fails_before_any_pod_is_made() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let job = toy(|job| {
            job["spec"]["trainer"]["gpusPerReplica"] = 1.into();
            job["spec"]["settings"] = json!({"batchPerGpu": 8, "globalBatch": 96});
            job["spec"]["phases"] = json!([{"name": "odd", "settings": {"batchPerGpu": 20}}]);
        });
        let message = fails(scene, &job, "BatchMismatch").await;
        assert!(message.contains("globalBatch"), "{message}");
        assert_eq!(scene.count_owned("toy").await, 0);
        // A changed spec gets another chance.
        scene.patch_spec("toy", json!({"phases": [], "train": {"items": 960}, "trainer": {"gpusPerReplica": 0}})).await;
        let again = |job: &TrainingJob| stage(job) != Stage::Failed;
        scene.job_until("toy", "to get another chance", Duration::from_secs(20), again).await;
        scene.complete("toy", Duration::from_secs(90)).await;
    });
}

#[test]
fn what_rules_cannot_say_fails_before_any_pod_is_made() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let mut invalid = Vec::new();
        for file in std::fs::read_dir(repository().join("crds/manifest/tests/broken")).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            if !text.contains("\n# cluster: accepts\n") {
                continue;
            }
            // error: LINE:COLUMN: FIELD: ...
            let field = text.split(": ").nth(2).unwrap().to_owned();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let mut job: Value = serde_saphyr::from_str(&text).unwrap();
            job["metadata"]["name"] = name.as_str().into();
            scene.apply(&job);
            invalid.push((name, field));
        }
        assert!(invalid.len() >= 5, "{invalid:?}");
        for (name, field) in &invalid {
            let ended = |job: &TrainingJob| stage(job) == Stage::Failed;
            let failed = scene.job_until(name, "to fail", Duration::from_secs(20), ended).await;
            let told = condition(&failed, "Failed");
            // The batch arithmetic has a reason of its own.
            let says = match told.reason.as_str() {
                "BatchMismatch" => field.ends_with("batchPerGpu") && told.message.contains("batchPerGpu"),
                reason => reason == "InvalidSpec" && told.message.contains(field),
            };
            assert!(says, "{name}: {field}: {told:?}");
            let look = async || scene.events(name).await.into_iter().find(|(_, note)| note.contains(&told.message));
            scene.until("an event that says why", Duration::from_secs(10), look).await;
            assert_eq!(scene.count_owned(name).await, 0);
        }
    });
}

#[test]
fn what_the_trainer_refuses_fails_with_the_trainers_own_words() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let job = toy(|job| {
            job["spec"]["phases"] = json!([]);
            job["spec"]["workload"]["config"]["itemsPerSecnd"] = 1.into();
        });
        let message = fails(scene, &job, "InvalidPlan").await;
        assert!(message.contains("itemsPerSecnd"), "{message}");

        let unknown = json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "unknown"},
            "spec": {"workload": {"name": "nonesuch"}, "trainer": {"gpusPerReplica": 0}},
        });
        let message = fails(scene, &unknown, "InvalidPlan").await;
        assert!(message.contains("nonesuch"), "{message}");
    });
}

#[test]
fn what_only_a_trainer_knows_is_told_without_a_gpu() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        // The operator's own trainer is built for the CPU here: which it only says when it is asked for GPUs.
        scene.apply(&json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "large"},
            "spec": {"workload": {"name": "ups"}, "trainer": {"replicas": 2, "gpusPerReplica": 2}, "settings": {"batchPerGpu": 2}},
        }));
        let (mut seen, began) = (BTreeSet::new(), Instant::now());
        let failed = loop {
            for pod in scene.pods("large").await {
                let container = &pod.spec.as_ref().unwrap().containers[0];
                let limits = container.resources.as_ref().and_then(|resources| resources.limits.clone());
                assert!(!limits.unwrap_or_default().contains_key("nvidia.com/gpu"), "{} holds a GPU", pod.name_any());
                seen.insert(pod.name_any());
            }
            let job = scene.job("large").await;
            if stage(&job) == Stage::Failed {
                break job;
            }
            assert!(began.elapsed() < Duration::from_secs(90), "{:?}", job.status);
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let told = condition(&failed, "Failed");
        assert!(told.reason == "BaselineUnsupported" && told.message.contains("gpusPerReplica"), "{told:?}");
        assert_eq!(seen.len(), 1, "{seen:?}");
    });
}
