//! One gang at a time on an idle cluster.

use crate::census::{Census, Seen};
use crate::gangs::{self, REPLICAS};
use crate::nodes::{self, Kwok};
use crate::operator::Metered;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use pawl_api::TrainingJob;
use pawl_e2e::Scene;
use pawl_e2e::scene::JOB_LABEL;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Gangs of each kind that are timed, one after the other.
const ROUNDS: usize = 11;
/// Gangs of each kind that come first: connections and caches are made, and the namespace's Service.
const WARM_UP: usize = 2;
/// Gangs that are hurt in each way.
const HURT: usize = 3;
/// Longest time that is waited for anything.
const DEADLINE: Duration = Duration::from_secs(30);

/// One gang at a time.
#[derive(Serialize, Deserialize)]
pub struct Idle {
    /// From the post of a plain batch Job to its last pod, milliseconds.
    pub raw_milliseconds: Vec<f64>,
    /// From the post of a `TrainingJob` to its last pod, milliseconds.
    pub pawl_milliseconds: Vec<f64>,
    /// A pod of the gang was deleted.
    pub deleted: Vec<Recovery>,
    /// A pod of the gang was killed.
    pub killed: Vec<Recovery>,
    /// Of the reconciles of this run, 99 % took no longer, seconds.
    pub p99_seconds: f64,
}

/// How a gang came back, in milliseconds since one of its pods was hurt.
#[derive(Serialize, Deserialize)]
pub struct Recovery {
    /// The rest of it received SIGTERM.
    pub told: f64,
    /// All of it had ended.
    pub ended: f64,
    /// All of its objects were gone.
    pub gone: f64,
    /// All pods of the new gang were there.
    pub whole: f64,
    /// Longest time from being told to stop to the end, of any pod: its own stopping time.
    pub stopping: f64,
}

impl Recovery {
    /// What is left without the pods' own stopping time: until the old gang had ended and the new one was there.
    pub fn own(&self) -> f64 {
        self.ended.max(self.whole) - self.stopping
    }
}

/// Times one gang at a time.
pub async fn idle(scene: &Scene) -> Idle {
    nodes::make(&scene.client).await;
    let _kwok = Kwok::start(scene.directory.path(), &["nodes.yaml", "pods.yaml"]);
    let census = Census::of_pods(&scene.client, &scene.namespace);
    let operator = Metered::start(scene).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (mut raw_milliseconds, mut pawl_milliseconds) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + ROUNDS {
        let raw = raw(scene, &census, &format!("raw-{round}")).await;
        let pawl = pawl(scene, &census, &format!("pawl-{round}")).await;
        if round >= WARM_UP {
            raw_milliseconds.push(raw);
            pawl_milliseconds.push(pawl);
        }
    }
    let (mut deleted, mut killed) = (Vec::new(), Vec::new());
    for round in 0..HURT {
        deleted.push(hurt(scene, &census, &format!("deleted-{round}"), delete).await);
        killed.push(hurt(scene, &census, &format!("killed-{round}"), kill).await);
    }
    let p99_seconds = operator.reconciles().await.quantile(0.99);
    Idle { raw_milliseconds, pawl_milliseconds, deleted, killed, p99_seconds }
}

async fn raw(scene: &Scene, census: &Census, name: &str) -> f64 {
    let gang = gangs::batch_job(name);
    let began = Instant::now();
    scene.api::<Job>().create(&PostParams::default(), &gang).await.expect("the API server takes the gang");
    let made = whole(census, began).await;
    scene.api::<Job>().delete(name, &DeleteParams::background()).await.unwrap();
    empty(census).await;
    milliseconds(began, made)
}

async fn pawl(scene: &Scene, census: &Census, name: &str) -> f64 {
    let (began, made) = start(scene, census, name).await;
    remove(scene, census, name).await;
    milliseconds(began, made)
}

/// Posts a `TrainingJob`. Gives when, and when its pods were there.
async fn start(scene: &Scene, census: &Census, name: &str) -> (Instant, Instant) {
    let job: TrainingJob = serde_json::from_value(gangs::training_job(name)).unwrap();
    let began = Instant::now();
    scene.api::<TrainingJob>().create(&PostParams::default(), &job).await.expect("the API server takes the job");
    (began, whole(census, began).await)
}

async fn remove(scene: &Scene, census: &Census, name: &str) {
    scene.api::<TrainingJob>().delete(name, &DeleteParams::background()).await.unwrap();
    // In its first half minute the garbage collector does not know TrainingJobs.
    let gangs = ListParams::default().labels(&format!("{JOB_LABEL}={name}"));
    scene.api::<Job>().delete_collection(&DeleteParams::background(), &gangs).await.unwrap();
    empty(census).await;
}

/// When all pods of a gang were there that were made since then.
async fn whole(census: &Census, since: Instant) -> Instant {
    let last = |seen: &HashMap<String, Seen>| {
        let new: Vec<Instant> = seen.values().map(|pod| pod.made).filter(|made| *made >= since).collect();
        new.iter().max().copied().filter(|_| new.len() >= REPLICAS)
    };
    census.until("a whole gang", DEADLINE, last).await
}

/// Waits until no pod is left, and what that caused is over.
async fn empty(census: &Census) {
    census.until("no pod", DEADLINE, |seen| seen.values().all(|pod| pod.gone.is_some()).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
}

/// Deletes a pod, as an administrator does.
async fn delete(scene: &Scene, pod: &str) {
    scene.api::<Pod>().delete(pod, &DeleteParams::default()).await.unwrap();
}

/// Kills a pod's container, as the kernel does; its kubelet says so.
async fn kill(scene: &Scene, pod: &str) {
    let terminated = json!({"exitCode": 137, "reason": "Error"});
    let container = json!({"name": "trainer", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                           "state": {"terminated": terminated, "running": null}});
    let patch = Patch::Strategic(json!({"status": {"phase": "Failed", "containerStatuses": [container]}}));
    scene.api::<Pod>().patch_status(pod, &PatchParams::default(), &patch).await.unwrap();
}

/// Hurts the third pod of a running gang and follows what becomes of it.
async fn hurt(scene: &Scene, census: &Census, name: &str, hurt: impl AsyncFn(&Scene, &str)) -> Recovery {
    let (posted, _) = start(scene, census, name).await;
    let mut old: Vec<Seen> = census
        .until("a gang that runs", DEADLINE, |seen| {
            let running = seen.values().filter(|pod| pod.made >= posted && pod.runs.is_some()).cloned();
            Some(running.collect::<Vec<_>>()).filter(|pods| pods.len() == REPLICAS)
        })
        .await;
    // Names of pods begin with their index.
    old.sort_by(|a, b| a.name.cmp(&b.name));
    // Nothing of its start is under way any more.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = Instant::now();
    hurt(scene, &old[2].name).await;
    let whole = whole(census, began).await;
    let is_old = |pod: &&Seen| old.iter().any(|old| old.name == pod.name);
    let old = census
        .until("the old gang to be gone", DEADLINE, |seen| {
            let old: Vec<Seen> = seen.values().filter(is_old).cloned().collect();
            old.iter().all(|pod| pod.gone.is_some()).then_some(old)
        })
        .await;
    let end = |pod: &Seen| pod.ended.or(pod.gone).unwrap();
    let latest = |when: &dyn Fn(&Seen) -> Option<Instant>| old.iter().filter_map(when).max().unwrap_or(began);
    let stopping = old.iter().filter_map(|pod| Some(end(pod).duration_since(pod.told?))).max().unwrap_or_default();
    let recovery = Recovery {
        told: milliseconds(began, latest(&|pod| pod.told.filter(|told| *told <= end(pod)))),
        ended: milliseconds(began, latest(&|pod| Some(end(pod)))),
        gone: milliseconds(began, latest(&|pod| pod.gone)),
        whole: milliseconds(began, whole),
        stopping: stopping.as_secs_f64() * 1000.0,
    };
    remove(scene, census, name).await;
    recovery
}

fn milliseconds(from: Instant, to: Instant) -> f64 {
    to.duration_since(from).as_secs_f64() * 1000.0
}
