//! What is refused: by another owner, by the API server, by a webhook, at admission. It is reported by a condition for
//! as long as it lasts, and tried again without a request more than that takes.

use crate::api::{Api, Id};
use crate::cluster;
use crate::crash::job;
use crate::operator::Operator;
use serde_json::{Value, json};
use std::time::Duration;

/// Longer than an object that is being deleted is waited for in silence, and than another failure.
const LASTING: Duration = Duration::from_secs(121);

fn toy() -> Id {
    ("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned())
}

fn claim() -> Id {
    ("persistentvolumeclaims".to_owned(), "default".to_owned(), "toy-storage".to_owned())
}

/// An operator that begins with the job, and whatever else is there.
fn begin(api: &Api) -> Operator {
    if !api.store().objects.contains_key(&toy()) {
        api.store().create(toy(), job());
    }
    let now = api.store().version;
    Operator::start(api, now)
}

/// Reconciles once with fresh caches. Returns the error.
async fn reconcile(api: &Api, operator: &mut Operator) -> Option<String> {
    let now = api.store().version;
    operator.catch_up(now);
    operator.reconcile().await.err().map(|error| error.to_string())
}

/// Lets the cluster go on until the reconcile fails.
async fn failed(api: &Api, operator: &mut Operator) -> String {
    for _ in 0..20 {
        if let Some(error) = reconcile(api, operator).await {
            return error;
        }
        cluster::step(&mut api.store());
    }
    panic!("nothing is refused");
}

/// A condition's status, reason and message.
fn condition(api: &Api, kind: &str) -> (String, String, String) {
    let store = api.store();
    let all = store.objects[&toy()]["status"]["conditions"].as_array().unwrap().clone();
    let condition = all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

/// Whether the condition `Stalled` says that somebody has to act, in these words.
fn stalled(api: &Api, words: &str) -> bool {
    let (status, reason, message) = condition(api, "Stalled");
    status == "True" && reason == "ActionRequired" && message.contains(words)
}

fn status_writes(api: &Api) -> usize {
    api.store().writes.iter().filter(|write| write.ends_with("/trainingjobs/toy/status")).count()
}

/// 136 refused requests a second, and neither an event nor a condition: `Stale` was tried again after 20 ms, for ever.
#[tokio::test(start_paused = true)]
async fn a_claim_that_a_notebook_keeps_is_reported_until_it_is_gone() {
    let api = Api::default();
    let labels = json!({"app.kubernetes.io/managed-by": "pawl", "pawl.dev/job": "toy"});
    let deleted = json!({"name": "toy-storage", "labels": labels, "deletionTimestamp": "2026-01-01T00:00:00Z"});
    api.store().create(claim(), json!({"metadata": deleted}));
    let mut operator = begin(&api);
    let error = failed(&api, &mut operator).await;
    assert!(error.contains("PersistentVolumeClaim toy-storage is being deleted"), "{error}");
    assert_eq!(condition(&api, "Stalled").0, "False", "most are gone within seconds");

    tokio::time::advance(LASTING).await;
    let before = api.store().refused.len();
    failed(&api, &mut operator).await;
    assert!(stalled(&api, "kubectl describe pvc toy-storage"), "{:?}", condition(&api, "Stalled"));
    assert!(api.store().refused.len() <= before + 2, "one try, and one after the condition was written");
    let events = api.store().writes.iter().filter(|write| write.contains("/events")).count();

    // While nothing changes, nothing is written, also by a process that has just begun.
    let count = |api: &Api| {
        let store = api.store();
        (store.writes.len(), store.refused.len())
    };
    let (writes, refused) = count(&api);
    failed(&api, &mut operator).await;
    assert_eq!(count(&api), (writes, refused + 1));
    let statuses = status_writes(&api);
    let mut operator = begin(&api);
    failed(&api, &mut operator).await;
    assert_eq!(status_writes(&api), statuses, "the condition holds");
    assert_eq!(api.store().writes.iter().filter(|write| write.contains("/events")).count(), events);

    api.store().remove(&claim());
    assert_eq!(reconcile(&api, &mut operator).await, None);
    assert_eq!(condition(&api, "Stalled").0, "False");
    assert!(api.store().objects.contains_key(&claim()));
}

/// A webhook that does not answer, an overloaded API server, a token that is not accepted.
#[rstest::rstest]
#[tokio::test(start_paused = true)]
async fn what_may_pass_is_reported_once_it_lasts(#[values(500, 503, 429, 401)] code: u16) {
    let api = Api::default();
    api.store().refuses = vec![("POST /apis/batch/v1/namespaces/default/jobs", code)];
    let mut operator = begin(&api);
    let error = failed(&api, &mut operator).await;
    assert!(error.contains("cannot create batch Job toy-1"), "{error}");
    assert_eq!(condition(&api, "Stalled").0, "False", "it may pass");
    tokio::time::advance(LASTING).await;
    failed(&api, &mut operator).await;
    assert!(stalled(&api, "cannot create batch Job toy-1"));
    api.store().refuses.clear();
    assert_eq!(reconcile(&api, &mut operator).await, None);
    assert_eq!(condition(&api, "Stalled").0, "False");
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_denies_is_reported_at_once() {
    let api = Api::default();
    api.store().refuses = vec![("POST /apis/batch/v1/namespaces/default/jobs", 422)];
    let mut operator = begin(&api);
    failed(&api, &mut operator).await;
    assert!(stalled(&api, "cannot create batch Job toy-1"));
}

/// The event of a batch Job whose pods the API server refuses.
fn refuse_pods(api: &Api, message: &str) {
    let mut store = api.store();
    let gang = ("jobs".to_owned(), "default".to_owned(), "toy-1".to_owned());
    let uid = store.objects[&gang]["metadata"]["uid"].clone();
    let event = json!({"metadata": {"name": "toy-1.x"}, "reason": "FailedCreate", "message": message,
        "involvedObject": {"kind": "Job", "name": "toy-1", "uid": uid}});
    store.create(("events".to_owned(), "default".to_owned(), "toy-1.x".to_owned()), event);
}

/// The condition `Reconciling` of a gang whose pods are refused with a message, a minute after its start.
async fn why_it_waits(message: &str, events: Option<u16>) -> (String, String) {
    let api = Api::default();
    let mut operator = begin(&api);
    assert_eq!(reconcile(&api, &mut operator).await, None);
    refuse_pods(&api, message);
    api.store().refuses = events.map(|code| ("GET /api/v1/namespaces/default/events", code)).into_iter().collect();
    let now = api.store().version;
    let mut operator = Operator::start_at(&api, now, later());
    assert_eq!(reconcile(&api, &mut operator).await, None);
    let (_, reason, message) = condition(&api, "Reconciling");
    (reason, message)
}

/// A clock that is a minute ahead.
fn later() -> pawl_controller::clock::Clock {
    pawl_controller::clock::Clock::of(|| jiff::Timestamp::now() + jiff::SignedDuration::from_secs(61))
}

/// All of them were "waiting in its queue, for free devices or for quota".
#[tokio::test]
async fn why_pods_are_not_created_is_reported_in_the_words_of_the_api_server() {
    let (reason, message) = why_it_waits("Error creating: serviceaccount \"x\" not found", None).await;
    assert_eq!(reason, "PodsRefused");
    assert!(message.contains("serviceaccount \"x\" not found"), "{message}");
    let quota = "Error creating: pods \"toy-1-0-\" is forbidden: exceeded quota: limits, requested: pods=1";
    let (reason, message) = why_it_waits(quota, None).await;
    assert_eq!(reason, "Queued");
    assert!(message.contains("waits for quota") && message.contains("limits, requested: pods=1"), "{message}");
    // An older Role lets the operator read no events: the batch Job controller may merely be late, for a minute.
    let (reason, message) = why_it_waits(quota, Some(403)).await;
    assert_eq!(reason, "Queued");
    assert!(message.contains("kubectl describe job toy-1"), "{message}");
}

/// Nothing but a lost node can be learnt from it: a request that fails must not stop the decisions on the job.
#[tokio::test]
async fn what_cannot_be_read_stops_no_decision() {
    let api = Api::default();
    let mut operator = begin(&api);
    assert_eq!(reconcile(&api, &mut operator).await, None);
    refuse_pods(&api, "no");
    api.store().refuses = vec![("GET /api/v1/namespaces/default/events", 500)];
    let mut suspended = api.store().objects[&toy()].clone();
    suspended["spec"]["suspend"] = Value::Bool(true);
    suspended["metadata"]["generation"] = json!(2);
    api.store().put(toy(), suspended);
    let now = api.store().version;
    let mut operator = Operator::start_at(&api, now, later());
    let error = reconcile(&api, &mut operator).await.expect("it is tried again");
    assert!(error.contains("events"), "{error}");
    let gang = api.store().objects[&("jobs".to_owned(), "default".to_owned(), "toy-1".to_owned())].clone();
    assert!(!gang["metadata"]["deletionTimestamp"].is_null(), "it was stopped all the same");
}
