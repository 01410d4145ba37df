//! Gangs that are stopped because a pod was lost or their queue preempted them: the status says so first.

use crate::api::Id;
use crate::cluster;
use crate::crash::Trouble;
use crate::service::{reconcile, under_way};
use serde_json::{Value, json};

fn job() -> Id {
    ("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned())
}

/// What the operator writes of the job and its gang in the first reconcile after this befell a gang that runs, and the
/// attempt as the status names it then.
async fn writes_after(trouble: Trouble) -> (Vec<String>, Value) {
    let (api, mut operator) = under_way().await;
    reconcile(&mut operator, &api).await;
    assert!(trouble.befall(&mut api.store(), "toy-1"));
    let before = api.store().writes.len();
    reconcile(&mut operator, &api).await;
    let all = api.store().writes[before..].to_vec();
    let told = api.store().objects[&job()]["status"]["attempt"].clone();
    for _ in 0..60 {
        cluster::step(&mut api.store());
        reconcile(&mut operator, &api).await;
    }
    assert_eq!(api.store().objects[&job()]["status"]["stage"], "Complete", "it was made again");
    assert_eq!(api.store().unannounced, Vec::<String>::new());
    (all.into_iter().filter(|write| !write.contains("/events")).collect(), told)
}

const STATUS: &str = "PATCH /apis/pawl.dev/v1alpha1/namespaces/default/trainingjobs/toy/status";
const PODS: &str = "DELETE /api/v1/namespaces/default/pods";

#[tokio::test]
async fn of_a_broken_gang_the_rest_is_stopped_and_what_ended_stays() {
    let (writes, told) = writes_after(Trouble::Killed).await;
    assert_eq!(told["stop"], json!("GangBroken"));
    assert_eq!(writes.first().map(String::as_str), Some(STATUS), "{writes:?}");
    assert!(writes.len() > 1 && writes[1..].iter().all(|write| write == PODS), "{writes:?}");
}

#[tokio::test]
async fn a_preempted_gang_is_removed_so_that_it_does_not_run_again() {
    let (writes, told) = writes_after(Trouble::Preempted).await;
    assert_eq!(told["stop"], json!("Preempted"));
    let job = "DELETE /apis/batch/v1/namespaces/default/jobs/toy-1";
    assert_eq!(writes[..3], [STATUS, job, PODS], "{writes:?}");
}
