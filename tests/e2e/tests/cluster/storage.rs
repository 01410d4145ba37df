//! A trained model outlives its pods, and its user can copy it.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use pawl_e2e::job::status;
use pawl_e2e::operator::Operator;
use pawl_e2e::programs::{built, succeed};
use pawl_e2e::scene;
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

/// A job that trains a small model on the CPU with the built-in trainer, and names no storage.
fn small(change: impl FnOnce(&mut Value)) -> Value {
    let mut job = json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "small"},
        "spec": {
            "workload": {"name": "ups", "config": {"preset": "small", "tasks": ["advection1d"]}},
            "trainer": {"gpusPerReplica": 0},
            "settings": {"batchPerGpu": 2, "learningRate": "1.4e-3", "compile": "Graph"},
            "seeds": [42],
            "train": {"items": 80, "evalEvery": 40},
        },
    });
    change(&mut job);
    job
}

#[test]
fn the_model_of_a_job_that_names_no_storage_is_kept_and_fetched() {
    scene(async |scene| {
        let _operator = Operator::with_claims(scene).await;
        scene.apply(&small(|_| {}));
        let done = scene.complete("small", Duration::from_secs(300)).await;
        let training = status(&done).training.clone().unwrap();
        let uid = done.metadata.uid.as_deref().unwrap();
        let own = format!("pvc://small-storage/checkpoints/{}/small/{uid}", scene.namespace);
        assert_eq!(training.storage, Some(own));
        let running = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        let ended = async || (!scene.pods("small").await.iter().any(running)).then_some(());
        scene.until("its pods to end", Duration::from_secs(30), ended).await;

        // The claim is neither the attempt's nor the job's: it is still there when both are deleted.
        let claims = scene.api::<PersistentVolumeClaim>();
        let claim = claims.get("small-storage").await.unwrap();
        assert_eq!(claim.owner_references(), []);

        let out = scene.directory.path().join("model");
        let fetch =
            ["kubectl", "fetch", "small", "--image", "localhost/pawl:test", "--namespace", &scene.namespace, "-o"];
        let printed = succeed(Command::new(built("pawl")).args(fetch).arg(&out));
        let best = training.best_checkpoint.unwrap();
        let copy = out.join(&best.checkpoint.name);
        assert_eq!(printed.trim(), copy.to_string_lossy());
        assert!(copy.join("manifest.json").exists(), "{}", copy.display());
        let pods = scene.api::<Pod>().list(&Default::default()).await.unwrap().items;
        let readers =
            pods.iter().filter(|pod| pod.name_any().contains("-fetch-") && pod.metadata.deletion_timestamp.is_none());
        assert_eq!(readers.count(), 0, "the pod that read it is deleted");

        // Somewhere else, training goes on from the copy, and ends as it did on the cluster.
        let manifest = scene.directory.path().join("elsewhere.json");
        let from = format!("file://{}", out.display());
        let elsewhere = small(|job| job["spec"]["train"]["resumeFrom"] = json!({"storage": from}));
        std::fs::write(&manifest, elsewhere.to_string()).unwrap();
        let state = scene.directory.path().join("state");
        let run = ["run", "--quiet", "--output", "json", "--state"];
        let result = succeed(Command::new(built("pawl")).args(run).arg(&state).arg(&manifest));
        let result: Value = serde_json::from_str(&result).unwrap();
        let local = &result["status"]["training"];
        assert_eq!((&local["steps"], &local["items"]), (&json!(40), &json!(80)), "{local}");
        let loss = |text: &str| text.parse::<f64>().unwrap();
        let here = loss(local["validation"]["metrics"]["loss"].as_str().unwrap());
        let there = loss(training.measured.validation.unwrap().metrics["loss"].as_str());
        assert!((here / there - 1.0).abs() < 1e-3, "{here} and {there}");
    });
}

#[test]
fn a_job_that_was_deleted_is_reported_and_replayed_from_its_storage() {
    scene(async |scene| {
        let _operator = Operator::with_claims(scene).await;
        scene.apply(&small(|job| {
            job["spec"]["phases"] = json!([{"name": "fused", "settings": {"optimizerKernel": "Fused"}}]);
            job["spec"]["analysis"] = json!({"minPairs": 1, "maxPairs": 1, "warmupSteps": 2, "windowSteps": 20,
                "budgetPercent": "Unlimited"});
        }));
        let done = scene.complete("small", Duration::from_secs(300)).await;
        let training = status(&done).training.clone().unwrap();
        let storage = training.storage.unwrap();
        succeed(&mut scene.kubectl(&["delete", "trainingjob", "small", "--timeout=60s"]));
        let gone = async || scene.pods("small").await.is_empty().then_some(());
        scene.until("its pods to be deleted", Duration::from_secs(60), gone).await;

        let out = scene.directory.path().join("small");
        let fetch = ["kubectl", "fetch", "small", "--storage", &storage, "--image", "localhost/pawl:test"];
        let to = ["--namespace", &scene.namespace, "-o"];
        succeed(Command::new(built("pawl")).args(fetch).args(to).arg(&out));
        let read = |command: &[&str]| succeed(Command::new(built("pawl")).args(command).arg("--state").arg(&out));
        let found: Value = serde_json::from_str(&read(&["status", "--output", "json"])).unwrap();
        assert_eq!((&found["job"], &found["status"]["stage"]), (&json!("small"), &json!("Complete")), "{found:#}");
        assert_eq!(found["status"]["training"]["items"], json!(80), "the last attempt has recorded its end");
        assert_eq!(found["status"]["phases"][0]["speedup"]["pairs"], json!(1), "the phase was measured: {found:#}");
        let phases = |status: &Value| status["phases"][0]["state"].clone();
        assert_eq!(phases(&found["status"]), phases(&serde_json::to_value(&done.status).unwrap()));
        let page = read(&["report", "-o", "-"]);
        assert!(page.contains("Training loss") && page.contains("Validation loss"), "no curves in {page}");
        let replayed = read(&["replay"]);
        assert!(replayed.ends_with("\nEach verdict is the recorded one.\n"), "{replayed}");
    });
}

#[test]
fn a_fetch_that_is_not_possible_says_why() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&small(|job| job["spec"]["suspend"] = true.into()));
        let fetch = ["kubectl", "fetch", "small", "--namespace", &scene.namespace];
        let refused = Command::new(built("pawl")).args(fetch).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("has no checkpoint yet"), "{said}");
    });
}
