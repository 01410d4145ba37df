//! Containers before the trainer's, and beside it, with a real kubelet.

use k8s_openapi::api::core::v1::Pod;
use pawl_api::TrainingJob;
use pawl_e2e::job::{status, training};
use pawl_e2e::scene;
use serde_json::{Value, json};
use std::time::Duration;

/// A container with a program that is in the cluster anyway.
fn container(name: &str, command: Value) -> Value {
    json!({"name": name, "image": "localhost/pawl:test", "imagePullPolicy": "Never", "command": command})
}

#[test]
fn a_sidecar_runs_beside_the_trainer_and_does_not_keep_its_pod() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let mut sidecar = container("beside", json!(["/bin/pawl", "agent", "wait"]));
        sidecar["restartPolicy"] = "Always".into();
        scene.apply(&training("sidecar", 10, |job| {
            job["spec"]["trainer"]["podTemplate"] =
                json!({"initContainers": [container("before", json!(["/bin/pawl", "--version"])), sidecar]});
        }));
        let beside = async || {
            let pods = scene.pods("sidecar").await;
            pods.iter().any(|pod| runs(pod, "beside") && runs(pod, "trainer")).then_some(())
        };
        scene.until("a trainer with its sidecar", Duration::from_secs(60), beside).await;
        scene.complete("sidecar", Duration::from_secs(120)).await;
        // The operator deletes the attempts of a complete job.
        let gone = async || scene.pods("sidecar").await.is_empty().then_some(());
        scene.until("the pods to be gone", Duration::from_secs(30), gone).await;
    });
}

#[test]
fn an_init_container_that_fails_is_named_with_its_exit_code() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&training("before", 10, |job| {
            job["spec"]["trainer"]["podTemplate"] =
                json!({"initContainers": [container("fetch", json!(["/bin/pawl", "nonsense"]))]});
        }));
        let is_named = |job: &TrainingJob| {
            let mut messages = status(job).conditions.iter().map(|condition| condition.message.as_str());
            messages.any(|message| message.contains("init container fetch exited with 2"))
        };
        let seen = |job: &TrainingJob| job.status.is_some() && is_named(job);
        scene.job_until("before", "to name its init container", Duration::from_secs(90), seen).await;
    });
}

/// Whether a container of this name runs.
fn runs(pod: &Pod, name: &str) -> bool {
    let Some(status) = &pod.status else { return false };
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let mut running = all.filter(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()));
    running.any(|container| container.name == name)
}
