//! Searches that run several trials at the same time, each in a gang of its own.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use pawl_api::TrainingJob;
use pawl_api::status::{Stage, TrainingJobStatus};
use pawl_e2e::job::{status, training};
use pawl_e2e::kueue::{Queue, queued};
use pawl_e2e::machines::Node;
use pawl_e2e::scene::stage;
use pawl_e2e::{Operator, Scene, scene};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The node that loses its power.
const NUMBER: u32 = 8;
/// Gangs at the same time.
const GANGS: usize = 4;
/// Trials of the search.
const TRIALS: usize = 12;
/// Attempts if nothing disturbs it: the check of the baseline, each trial, and two that compare the best one with the
/// accepted settings by fresh seeds: two pairs, then the third.
const UNDISTURBED: usize = 1 + TRIALS + 2;

/// A search of 12 trials of about six seconds and one GPU each, four at a time, whose points depend on the results
/// before.
fn searching(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    training(name, 1, |job| {
        let spec = &mut job["spec"];
        spec["workload"]["config"]["quality"] =
            json!({"optima": [{"setting": "learningRate", "best": 1e-3, "weight": 0.2}]});
        spec["trainer"]["gpusPerReplica"] = 1.into();
        spec["settings"]["learningRate"] = "1e-4".into();
        spec["search"] = json!([{
            "name": "rates", "trials": TRIALS, "items": 60 * 64, "sampler": "TPE", "parallelism": GANGS, "finalists": 1,
            "objectives": [{"metric": "loss", "goal": "Minimize"}],
            "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"}],
        }]);
        spec.as_object_mut().unwrap().remove("train");
        change(job);
    })
}

fn is_alive(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return true };
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let mut containers = status.container_statuses.iter().flatten();
    !over && containers.all(|container| container.state.as_ref().is_none_or(|state| state.terminated.is_none()))
}

/// The attempts of a job whose pods are alive, and the node of each.
async fn gangs(scene: &Scene, job: &str) -> BTreeMap<String, Option<String>> {
    let pods = scene.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
    let of = |pod: &Pod, label: &str| pod.labels().get(label).cloned().unwrap_or_default();
    let own = pods.iter().filter(|pod| of(pod, "pawl.dev/job") == job && is_alive(pod));
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    own.map(|pod| (of(pod, "pawl.dev/attempt"), node(pod))).collect()
}

/// Sees to it that no trial has two gangs, and that there are at most four, until the job is Complete. Returns the
/// most. Gangs on the node `lost` do not count.
async fn watch(scene: &Scene, job: &str, lost: Option<&str>, deadline: Duration) -> usize {
    let (began, mut most) = (Instant::now(), 0);
    let mut trials: BTreeMap<String, String> = BTreeMap::new();
    loop {
        // The status names an attempt before its pods exist.
        let mut alive = gangs(scene, job).await;
        // The API server shows pods of a node without power until they are deleted.
        alive.retain(|_, node| lost.is_none() || node.as_deref() != lost);
        let there = scene.job(job).await;
        if let Some(status) = &there.status {
            trials.extend(status.under_way().map(|attempt| (attempt.name.clone(), attempt.task.clone())));
        }
        let of: Vec<&String> = alive.keys().filter_map(|attempt| trials.get(attempt)).collect();
        let distinct: BTreeSet<&&String> = of.iter().collect();
        assert_eq!(distinct.len(), of.len(), "two gangs for one trial: {alive:?} {trials:?}");
        assert!(alive.len() <= GANGS, "{alive:?}");
        most = most.max(alive.len());
        match stage(&there) {
            Stage::Complete => return most,
            Stage::Failed => panic!("{:#?}", there.status),
            _ => {}
        }
        assert!(began.elapsed() < deadline, "not Complete after {deadline:?}: {:#?}", there.status);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn four_gangs(scene: &Scene, job: &str) -> BTreeMap<String, Option<String>> {
    let look = async || {
        let alive = gangs(scene, job).await;
        (alive.len() == GANGS && alive.values().all(Option::is_some)).then_some(alive)
    };
    scene.until("four gangs", Duration::from_secs(60), look).await
}

/// What a search found.
fn found(status: &TrainingJobStatus) -> Value {
    let search = &status.search[0];
    json!({"trials": search.trials, "winner": search.winner, "settings": status.effective_settings})
}

async fn undisturbed(scene: &Scene) -> Value {
    scene.apply(&searching("calm", |_| {}));
    assert_eq!(watch(scene, "calm", None, Duration::from_secs(180)).await, GANGS, "they did not run at the same time");
    let job = scene.job("calm").await;
    assert_eq!(status(&job).attempts as usize, UNDISTURBED);
    found(status(&job))
}

/// Trains another job of a higher priority in the queue, for which Kueue preempts a gang of the search.
async fn preempt(scene: &Scene, queue: &Queue) {
    scene.apply(&training("urgent", 1, |job| {
        job["metadata"]["labels"] = queue.urgent();
        job["spec"]["trainer"]["gpusPerReplica"] = 1.into();
    }));
    scene.complete("urgent", Duration::from_secs(90)).await;
    let listed = scene.kubectl(&["get", "events", "-o", "json"]).output().unwrap();
    let events: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let preempted = |event: &Value| event["reason"] == "Preempted" && event["involvedObject"]["kind"] == "Workload";
    assert!(events["items"].as_array().unwrap().iter().any(preempted), "Kueue preempted nothing");
}

#[test]
fn four_trials_at_a_time_under_a_quota_end_alike_when_one_is_preempted_and_the_operator_restarts() {
    scene(async |scene| {
        let queue = Queue::of(scene, GANGS as u32).await;
        let operator = scene.operator().await;
        let calm = undisturbed(scene).await;

        // Its quota is for fewer gangs than it may run: the others wait.
        scene.apply(&searching("rough", |job| job["metadata"]["labels"] = queued()));
        let disturb = async {
            four_gangs(scene, "rough").await;
            preempt(scene, &queue).await;
            operator.kill();
            scene.operator().await
        };
        let (most, _operator) = tokio::join!(watch(scene, "rough", None, Duration::from_secs(240)), disturb);
        assert_eq!(most, GANGS);
        let job = scene.job("rough").await;
        assert_eq!(found(status(&job)), calm);
        let failures = status(&job).retry.iter().chain(&status(&job).retries).map(|retry| retry.count).sum::<u32>();
        assert_eq!(failures, 0, "a queue is no failure");
        // One more for each gang of the urgent job, which checks and then trains. A restart repeats nothing.
        let again = status(&job).attempts as usize - UNDISTURBED;
        assert!((1..=2).contains(&again), "{again} attempts again");
    });
}

#[test]
fn a_lost_node_changes_no_trial() {
    scene(async |scene| {
        // One for the check of the baseline, whose pod may still be ending.
        let node = Node::own(NUMBER, 2);
        let name = node.name();
        scene.node_is_ready(&name).await;
        let _operator: Operator = scene.operator().await;
        let calm = undisturbed(scene).await;
        scene.apply(&searching("rough", |job| {
            job["spec"]["trainer"]["podTemplate"] = node.pod_template();
        }));
        let disturb = async {
            let alive = four_gangs(scene, "rough").await;
            assert!(alive.values().any(|node| node.as_deref() == Some(&name)), "{alive:?}");
            node.cut();
        };
        tokio::join!(watch(scene, "rough", Some(&name), Duration::from_secs(300)), disturb);
        let job: TrainingJob = scene.job("rough").await;
        let mut rough = found(status(&job));
        // The pod template is no input of a trial.
        assert_eq!(rough["trials"].as_array().map(Vec::len), Some(TRIALS));
        for field in ["trials", "winner", "settings"] {
            assert_eq!(rough[field].take(), calm[field], "{field}");
        }
        // One or two more, unless the trials on the lost node had ended before.
        let attempts = status(&job).attempts as usize;
        assert!((UNDISTURBED..=UNDISTURBED + 2).contains(&attempts), "{attempts} attempts");
    });
}
