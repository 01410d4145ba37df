//! How soon a job trains.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use pawl_api::TrainingJob;
use pawl_e2e::gpus::{Gpus, seconds, step};
use pawl_e2e::{Scene, scene};
use serde_json::json;
use std::time::{Duration, Instant};

/// How soon a job must train on a node that has trained before.
const SOON: Duration = Duration::from_secs(5);

/// A job that has not trained after this time never will.
const NEVER: Duration = Duration::from_secs(60);

/// Seconds from a pod's creation until it had a node.
fn scheduling(pod: &Pod) -> f64 {
    let created = pod.creation_timestamp().map(|time| time.0);
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let scheduled = conditions.filter(|condition| condition.type_ == "PodScheduled" && condition.status == "True");
    let scheduled = scheduled.filter_map(|condition| condition.last_transition_time.as_ref()).map(|time| time.0).next();
    match (created, scheduled) {
        (Some(created), Some(scheduled)) => scheduled.duration_since(created).as_secs_f64().max(0.0),
        _ => 0.0,
    }
}

/// Seconds from `kubectl apply` of a job to its first training step, without those in which its pods waited for the
/// scheduler.
async fn first_step(scene: &Scene, gpus: Gpus, name: &str) -> f64 {
    let job = gpus.job(name, (1, 1), |job| {
        job["spec"]["workload"] = json!({"name": "slm", "config": {"size": "tiny", "data": {"tokens": 100_000},
                                         "evaluation": {"windows": 8}}});
        job["spec"]["settings"] = json!({"batchPerGpu": 4, "compile": "Graph", "learningRate": "1e-3"});
        job["spec"]["train"] = json!({"items": 4_000_000, "evalEvery": 1_000_000_000});
    });
    let start = Instant::now();
    scene.apply(&job);
    let applied = seconds(start);
    let (mut created, mut running) = (None, None);
    let waited = loop {
        // The first attempt is the preflight.
        let trains = |pod: &Pod| pod.labels().get("pawl.dev/attempt").is_some_and(|attempt| attempt.ends_with("-2"));
        if let Some(pod) = scene.pods(name).await.into_iter().find(trains) {
            created.get_or_insert_with(|| seconds(start));
            if pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running") {
                running.get_or_insert_with(|| seconds(start));
            }
            if step(&pod).await.is_some_and(|step| step > 0) {
                break scheduling(&pod);
            }
        }
        assert!(start.elapsed() < NEVER, "no step");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let first = seconds(start);
    eprintln!(
        "{name}: applied after {applied:.1} s, training pod created after {:.1} s, running after {:.1} s, first step after {first:.1} s, \
         of which {waited:.1} s in the scheduler",
        created.unwrap_or_default(),
        running.unwrap_or_default(),
    );
    first - waited
}

#[test]
fn a_job_trains_within_seconds_of_being_applied() {
    scene(async |scene| {
        let gpus = Gpus::here();
        // The first pod of a node reads the libraries of CUDA, a gigabyte, from the disk.
        first_step(scene, gpus, "first").await;
        scene.api::<TrainingJob>().delete("first", &DeleteParams::default()).await.unwrap();
        scene.until("its pods to be gone", NEVER, async || scene.pods("first").await.is_empty().then_some(())).await;
        let soon = first_step(scene, gpus, "soon").await;
        // A CPU shared with the whole cluster proves nothing about the operator.
        if gpus.real {
            assert!(soon < SOON.as_secs_f64(), "{soon:.1} s");
        }
    });
}
