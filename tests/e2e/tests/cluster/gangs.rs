//! Several pods are one gang: placed together, started together, counted as one world.

use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::ResourceExt;
use pawl_e2e::job::{status, toy, training};
use pawl_e2e::scene;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn two_replicas_of_two_gpus_are_one_gang_of_four_ranks() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&training("pair", 10, |job| {
            job["spec"]["trainer"]["replicas"] = 2.into();
            job["spec"]["trainer"]["gpusPerReplica"] = 2.into();
            job["spec"]["settings"] = json!({"batchPerGpu": 8, "accumulationSteps": 2});
        }));
        let both = scene
            .until("two running pods of the training", Duration::from_secs(60), async || {
                let pods = scene.pods("pair").await;
                let running: Vec<Pod> = pods.into_iter().filter(|pod| phase(pod) == "Running").collect();
                let attempt = running.first()?.labels().get("pawl.dev/attempt").cloned()?;
                (running.len() == 2 && attempt.ends_with("-2")).then_some(running)
            })
            .await;
        let hosts: BTreeSet<_> = both.iter().map(|pod| pod.spec.as_ref().unwrap().hostname.clone().unwrap()).collect();
        assert_eq!(hosts, BTreeSet::from(["pair-2-0".to_owned(), "pair-2-1".to_owned()]));
        for pod in &both {
            let limits = pod.spec.as_ref().unwrap().containers[0].resources.as_ref().unwrap().limits.as_ref().unwrap();
            assert_eq!(limits["nvidia.com/gpu"].0, "2");
        }
        // One Service for the namespace, a Secret with tokens for the gangs of the job.
        let services = scene.api::<Service>().list(&Default::default()).await.unwrap().items;
        assert_eq!(services.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["pawl-trainers"]);
        assert_eq!(scene.owned::<Secret>("pair").await.len(), 1);

        let done = scene.complete("pair", Duration::from_secs(120)).await;
        // 8 items x 2 steps x 4 ranks: the ranks of both pods count.
        let training = status(&done).training.clone().unwrap();
        assert_eq!(training.measured.items / training.measured.steps, 64, "{training:?}");
        let ended = async || scene.pods("pair").await.iter().all(|pod| phase(pod) != "Running").then_some(());
        scene.until("the pods to end", Duration::from_secs(30), ended).await;
    });
}

#[test]
fn the_real_trainer_averages_gradients_over_pod_addresses() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "real"},
            "spec": {
                "workload": {"name": "ups", "config": {"preset": "small", "tasks": ["advection1d"]}},
                // One process a pod, on the CPU.
                "trainer": {"replicas": 2, "gpusPerReplica": 0},
                "settings": {"batchPerGpu": 1, "globalBatch": 4, "learningRate": "1.4e-3", "compile": "Graph"},
                "seeds": [42],
                "train": {"items": 80, "evalEvery": 40, "checkpoint": {"every": "1h", "keep": 1,
                          "storage": "pvc://shared/real"}},
            },
        }));
        let volume = scene.claim("shared").join("real");
        let done = scene.complete("real", Duration::from_secs(300)).await;
        let training = status(&done).training.clone().unwrap();
        assert_eq!((training.measured.steps, training.measured.items), (20, 80), "{training:?}");
        let own = volume.join(format!("{}/real/{}", scene.namespace, done.metadata.uid.as_deref().unwrap()));
        assert_eq!(
            training.storage,
            Some(format!("pvc://shared/real/{}/real/{}", scene.namespace, done.metadata.uid.unwrap()))
        );
        let checkpoint = own.join(training.last_checkpoint.unwrap().name).join("manifest.json");
        assert!(checkpoint.exists(), "no checkpoint at {}", checkpoint.display());
    });
}

#[test]
fn a_foreign_image_is_measured_and_rolled_back_by_a_gang() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&toy(|job| {
            job["spec"]["trainer"]["replicas"] = 2.into();
            job["spec"]["phases"] = json!([{"name": "slow", "settings": {"activationCheckpointing": "Full"}}]);
            job["spec"]["train"]["items"] = 640.into();
        }));
        let done = scene.complete("toy", Duration::from_secs(240)).await;
        let slow = &status(&done).phases[0];
        assert_eq!(slow.reason, "SpeedBelowThreshold", "{slow:?}");
        assert!(slow.speedup.as_ref().unwrap().pairs >= 3);
    });
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}
