//! A queue that holds gangs back and takes their devices away again: Kueue's.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use pawl_api::TrainingJob;
use pawl_api::status::Stage;
use pawl_e2e::audit::Audit;
use pawl_e2e::job::{files, status, training};
use pawl_e2e::kueue::{self, Queue};
use pawl_e2e::scene::stage;
use pawl_e2e::{Operator, Scene, scene};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// A gang that may run has so long to come up; in its queue it waits for longer.
const SCHEDULING_TIMEOUT: Duration = Duration::from_secs(30);

/// A training of two pods with a GPU each, in the queue.
fn queued(name: &str, seconds: u32) -> Value {
    training(name, seconds, |job| {
        job["metadata"]["labels"] = kueue::queued();
        job["spec"]["trainer"]["replicas"] = 2.into();
        job["spec"]["trainer"]["gpusPerReplica"] = 1.into();
        job["spec"]["settings"]["accumulationSteps"] = 4.into();
        job["spec"]["train"]["checkpoint"]["storage"] = format!("pvc://{name}/run").into();
        job["spec"]["lifecycle"]["schedulingTimeout"] = format!("{}s", SCHEDULING_TIMEOUT.as_secs()).into();
    })
}

fn queued_since(job: &TrainingJob) -> Option<&str> {
    job.status.as_ref()?.attempt.as_ref()?.queued_since.as_deref()
}

/// Whether its trainer runs or may come to run: a pod whose containers ended keeps its phase for a moment.
fn is_alive(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return true };
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let mut containers = status.container_statuses.iter().flatten();
    !over && containers.all(|container| container.state.as_ref().is_none_or(|state| state.terminated.is_none()))
}

fn label<'a>(pod: &'a Pod, name: &str) -> &'a str {
    pod.labels().get(name).map_or("", String::as_str)
}

/// Sees to it that there are never two gangs until both jobs are Complete.
async fn one_gang_at_a_time(scene: &Scene, deadline: Duration) {
    let began = Instant::now();
    loop {
        let pods = scene.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
        let alive: Vec<&Pod> = pods.iter().filter(|pod| is_alive(pod)).collect();
        let attempts = |job: &str| -> BTreeSet<&str> {
            let own = alive.iter().filter(|pod| label(pod, "pawl.dev/job") == job);
            own.map(|pod| label(pod, "pawl.dev/attempt")).collect()
        };
        for job in ["first", "second"] {
            assert!(attempts(job).len() <= 1, "two gangs of {job}: {:?}", attempts(job));
        }
        // Pods that leave make room already.
        let stay = alive.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let jobs: BTreeSet<&str> = stay.map(|pod| label(pod, "pawl.dev/job")).collect();
        assert!(jobs.len() <= 1, "the quota is for one gang: {jobs:?}");
        let jobs = scene.api::<TrainingJob>().list(&ListParams::default()).await.unwrap().items;
        if jobs.iter().filter(|job| stage(job) == Stage::Complete).count() == 2 {
            return;
        }
        assert!(began.elapsed() < deadline, "not both are Complete after {deadline:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The first trains, the second waits behind it, the queue takes the first's devices back: both wait, for longer than a
/// gang may take to come up, and when the queue lends devices again, both end.
async fn two_jobs_and_a_queue_that_changes_its_mind(scene: &Scene, queue: &Queue, checkpoints: &Path) {
    scene.apply(&queued("first", 20));
    let look = async || {
        let pods = scene.pods("first").await;
        let checkpointed = !files(checkpoints).is_empty();
        (checkpointed && pods.iter().filter(|pod| is_alive(pod)).count() == 2).then_some(pods)
    };
    let gang = scene.until("the first to train", Duration::from_secs(60), look).await;
    for pod in gang {
        let selector = pod.spec.unwrap().node_selector.unwrap_or_default();
        assert_eq!(selector.get("kubernetes.io/os").map(String::as_str), Some("linux"), "its flavor's nodes");
    }

    scene.apply(&queued("second", 2));
    let waits = |job: &TrainingJob| queued_since(job).is_some();
    scene.job_until("second", "to wait", Duration::from_secs(10), waits).await;
    // Not after the wait below: on a busy machine the first job was complete by then.
    queue.stop_policy("HoldAndDrain");
    scene.job_until("first", "to be in the queue again", Duration::from_secs(30), waits).await;
    let gone = async || scene.pods("first").await.is_empty().then_some(());
    scene.until("its pods to be gone", Duration::from_secs(30), gone).await;

    let waiting = [scene.job("first").await, scene.job("second").await];
    for job in &waiting {
        let told = status(job).conditions.iter().find(|condition| condition.type_ == "Reconciling").unwrap();
        assert!(told.reason == "Queued" && told.message.contains("queue"), "{told:?}");
        assert_eq!(status(job).progress, "queued");
    }
    let audit = Audit::now();
    tokio::time::sleep(SCHEDULING_TIMEOUT + Duration::from_secs(1)).await;
    let writes = audit.count(&scene.namespace, &Operator::user(scene));
    assert!(writes.is_empty(), "while they wait: {writes:?}");
    for (name, job) in ["first", "second"].into_iter().zip(waiting) {
        assert_eq!(scene.job(name).await.status, job.status);
    }
    queue.stop_policy("None");
}

#[test]
fn gangs_wait_in_their_queue_and_start_again_when_it_takes_their_devices_back() {
    scene(async |scene| {
        let queue = Queue::of(scene, 2).await;
        let _operator = scene.operator().await;
        let checkpoints = scene.claim("first").join("run");
        scene.claim("second");
        let watch = one_gang_at_a_time(scene, Duration::from_secs(240));
        tokio::join!(watch, two_jobs_and_a_queue_that_changes_its_mind(scene, &queue, &checkpoints));
        let jobs = [scene.job("first").await, scene.job("second").await];
        for job in &jobs {
            assert_eq!(status(job).retry, None, "a queue is no failure");
            assert_eq!(status(job).training.as_ref().unwrap().restarts, 0);
        }
        // A check and a training; and of the first a training again.
        assert_eq!(jobs.each_ref().map(|job| status(job).attempts), [3, 2]);
        let events = scene.events("first").await;
        assert!(events.iter().any(|(reason, _)| reason == "Preempted"), "{events:#?}");
    });
}

/// Whether the condition `Stalled` says that the queue is one of other clusters.
fn is_refused_its_queue(job: &TrainingJob) -> bool {
    let mut conditions = job.status.iter().flat_map(|status| &status.conditions);
    let named = |message: &str| message.contains("the queue team") && message.contains("MultiKueue");
    conditions.any(|each| each.type_ == "Stalled" && each.reason == "ActionRequired" && named(&each.message))
}

#[test]
fn a_queue_that_runs_jobs_in_other_clusters_is_reported_and_gets_no_gang() {
    scene(async |scene| {
        let queue = Queue::of(scene, 2).await;
        queue.run_elsewhere(scene).await;
        let _operator = scene.operator().await;
        scene.claim("first");
        scene.apply(&queued("first", 2));
        scene.job_until("first", "to be refused its queue", Duration::from_secs(30), is_refused_its_queue).await;
        assert!(scene.owned::<Job>("first").await.is_empty(), "Kueue has nothing to hand on");
        queue.run_here();
        // The operator asks again within a minute.
        let done = scene.complete("first", Duration::from_secs(180)).await;
        assert_eq!((status(&done).attempts, &status(&done).retry), (2, &None), "it was no failure");
    });
}
