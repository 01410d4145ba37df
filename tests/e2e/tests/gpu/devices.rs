//! Pods and their devices.

use k8s_openapi::api::core::v1::Pod;
use pawl_e2e::gpus::{Gpus, TRAINER, uuids};
use pawl_e2e::programs::succeed;
use pawl_e2e::{Scene, scene};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// The output of a pod that holds `count` GPUs.
async fn said(scene: &Scene, name: &str, image: &str, command: &[&str], count: u32) -> String {
    scene.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "one", "image": image, "command": command, "resources": {"limits": {"nvidia.com/gpu": count}},
            // As the operator's pods.
            "securityContext": {"runAsUser": 65532, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
                                "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}},
        }]},
    }));
    let phase = async || scene.api::<Pod>().get(name).await.unwrap().status?.phase;
    let ended = async || phase().await.filter(|phase| phase == "Succeeded" || phase == "Failed");
    let phase = scene.until("the pod to end", Duration::from_secs(60), ended).await;
    let said = succeed(&mut scene.kubectl(&["logs", name]));
    assert_eq!(phase, "Succeeded", "{said}");
    said
}

#[test]
fn a_pod_has_the_gpus_that_it_asks_for_and_no_other() {
    scene(async |scene| {
        let gpus = Gpus::here();
        let busybox = "localhost/busybox:test";
        let environment = said(scene, "environment", busybox, &["/bin/env"], 1).await;
        let variable = |name: &str| {
            let prefix = format!("{name}=");
            environment.lines().find_map(|line| line.strip_prefix(&prefix)).map(str::to_owned)
        };
        let device = variable("NVIDIA_VISIBLE_DEVICES").unwrap();
        if !gpus.real {
            // The container runtime has done what the specification of the device says.
            assert_eq!(variable("PAWL_TEST_CDI_DEVICE").as_ref(), Some(&device), "{environment}");
            return;
        }
        assert!(uuids().contains(&device), "{device} is none of {:?}", uuids());
        let nodes = said(scene, "nodes", busybox, &["/bin/sh", "-c", "ls /dev/nvidia[0-9]*"], 1).await;
        assert_eq!(nodes.lines().count(), 1, "{nodes}");
        let listed = said(scene, "listed", TRAINER, &["/usr/local/nvidia/bin/nvidia-smi", "-L"], gpus.count).await;
        let seen: BTreeSet<&str> = listed.split(['(', ')']).filter_map(|part| part.strip_prefix("UUID: ")).collect();
        let all = uuids();
        assert_eq!(seen, all.iter().map(String::as_str).collect(), "{listed}");
    });
}

#[test]
fn a_pod_that_asks_for_more_gpus_than_there_are_waits() {
    scene(async |scene| {
        let gpus = Gpus::here();
        scene.apply(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "greedy"},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
                "name": "one", "image": "localhost/busybox:test", "resources": {"limits": {"nvidia.com/gpu": gpus.count + 1}},
            }]},
        }));
        let told = async || {
            let pod: Value = serde_json::to_value(scene.api::<Pod>().get("greedy").await.unwrap()).unwrap();
            let message = pod["status"]["conditions"][0]["message"].as_str()?.to_owned();
            message.contains("nvidia.com/gpu").then_some(message)
        };
        scene.until("the scheduler to say that GPUs are missing", Duration::from_secs(20), told).await;
    });
}
