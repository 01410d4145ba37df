//! How soon a job trains.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pawl_e2e::gpus::{Gpus, LONGEST, seconds, step};
use pawl_e2e::scene;
use serde_json::json;
use std::time::{Duration, Instant};

/// From `kubectl apply` to the first training step, without the time in which pods wait for the scheduler.
const SOON: Duration = Duration::from_secs(5);

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

#[test]
fn a_job_trains_within_seconds_of_being_applied() {
    scene(async |scene| {
        let gpus = Gpus::here();
        let job = gpus.job("soon", (1, 1), |job| {
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
            let trains =
                |pod: &Pod| pod.labels().get("pawl.dev/attempt").is_some_and(|attempt| attempt.ends_with("-2"));
            if let Some(pod) = scene.pods("soon").await.into_iter().find(trains) {
                created.get_or_insert_with(|| seconds(start));
                if pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running") {
                    running.get_or_insert_with(|| seconds(start));
                }
                if step(&pod).await.is_some_and(|step| step > 0) {
                    break scheduling(&pod);
                }
            }
            assert!(start.elapsed() < LONGEST, "no step");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let first = seconds(start);
        eprintln!(
            "applied after {applied:.1} s, training pod created after {:.1} s, running after {:.1} s, first step after {first:.1} s, \
             of which {waited:.1} s in the scheduler",
            created.unwrap_or_default(),
            running.unwrap_or_default(),
        );
        // A CPU shared with the whole cluster proves nothing about the operator.
        if gpus.real {
            assert!(first - waited < SOON.as_secs_f64(), "{first:.1} s");
        }
    });
}
