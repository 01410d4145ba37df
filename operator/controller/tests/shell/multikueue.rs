//! A batch Job whose pods another controller makes, as MultiKueue does in another cluster.

use crate::api::{Api, Id};
use crate::cluster;
use crate::crash::job;
use crate::operator::Operator;
use crate::service::{reconcile, under_way};
use pawl_controller::names;
use serde_json::{Value, json};

fn of(kind: &str, name: &str) -> Id {
    (kind.to_owned(), "default".to_owned(), name.to_owned())
}

/// The condition `Stalled` of the job.
fn stalled(api: &Api) -> Value {
    let conditions = api.store().objects[&of("trainingjobs", "toy")]["status"]["conditions"].clone();
    let mut all = conditions.as_array().unwrap().iter();
    all.find(|condition| condition["type"] == "Stalled").cloned().unwrap_or_default()
}

/// The batch Jobs and who makes their pods.
fn gangs(api: &Api) -> Vec<(String, Value)> {
    let store = api.store();
    let jobs = store.objects.iter().filter(|((kind, ..), _)| kind == "jobs");
    jobs.map(|((.., name), job)| (name.clone(), job["spec"]["managedBy"].clone())).collect()
}

/// Changes the queue of the stored job, as a person does: labels have no generation.
fn name_queue(api: &Api, queue: &str) {
    let mut store = api.store();
    let mut object = store.objects[&of("trainingjobs", "toy")].clone();
    object["metadata"]["labels"][names::QUEUE] = json!(queue);
    store.put(of("trainingjobs", "toy"), object);
}

/// Its pods would hold devices there for results that nobody reads.
#[tokio::test]
async fn a_queue_of_other_clusters_gets_no_gang_until_the_job_names_another_queue() {
    let api = Api::default();
    api.store().elsewhere = "all-clusters";
    let mut job = job();
    job["metadata"]["labels"] = json!({(names::QUEUE): "all-clusters"});
    api.store().create(of("trainingjobs", "toy"), job);
    let created = api.store().version;
    let mut operator = Operator::start(&api, created);
    for _ in 0..3 {
        let now = api.store().version;
        operator.catch_up(now);
        let error = operator.reconcile().await.unwrap_err();
        assert_eq!(error.kind(), "elsewhere", "{error}");
    }
    assert!(gangs(&api).is_empty(), "nothing is handed on");
    let reported = stalled(&api);
    assert_eq!((&reported["status"], &reported["reason"]), (&json!("True"), &json!("ActionRequired")));
    let message = reported["message"].as_str().unwrap();
    for part in ["the queue all-clusters", "MultiKueue", names::QUEUE, "create it in that cluster"] {
        assert!(message.contains(part), "{part} in {message}");
    }

    name_queue(&api, "here");
    reconcile(&mut operator, &api).await;
    assert_eq!(gangs(&api), [("toy-1".to_owned(), Value::Null)], "the attempt that waited");
    reconcile(&mut operator, &api).await;
    assert_eq!(stalled(&api)["status"], "False");
    assert_eq!(api.store().objects[&of("trainingjobs", "toy")]["status"]["retry"], Value::Null, "that is no failure");
}

/// Kueue puts a Job that names no queue into it. Without Kueue nothing is asked, so that one Job is made to find out.
#[tokio::test]
async fn a_default_queue_of_other_clusters_gets_one_gang_that_is_deleted_at_once() {
    let api = Api::default();
    api.store().elsewhere = "default";
    api.store().create(of("trainingjobs", "toy"), job());
    let created = api.store().version;
    let mut operator = Operator::start(&api, created);
    let mut kinds = Vec::new();
    for _ in 0..5 {
        let now = api.store().version;
        operator.catch_up(now);
        kinds.push(operator.reconcile().await.err().map(|error| error.kind()));
        assert!(gangs(&api).is_empty(), "nothing is left to another cluster");
    }
    assert_eq!((kinds[0], kinds[4]), (Some("elsewhere"), Some("elsewhere")), "{kinds:?}");
    let writes = api.store().writes.clone();
    let made = |write: &&String| write.starts_with("POST") && write.ends_with("/jobs");
    assert_eq!(writes.iter().filter(made).count(), 1, "{writes:?}");
    let reported = stalled(&api);
    assert!(reported["message"].as_str().unwrap().contains("the queue default"), "{reported}");

    api.store().elsewhere = "";
    reconcile(&mut operator, &api).await;
    assert_eq!(gangs(&api).len(), 1, "the namespace has no default queue any more");
}

/// What the dry run is refused for is refused of the Job as well, or may be over before it is created.
#[tokio::test]
async fn no_gang_is_created_while_its_queue_cannot_be_asked() {
    let api = Api::default();
    let mut job = job();
    job["metadata"]["labels"] = json!({(names::QUEUE): "here"});
    api.store().create(of("trainingjobs", "toy"), job);
    api.store().refuses = vec![("POST /apis/batch/v1/namespaces/default/jobs?dryRun=All", 500)];
    let created = api.store().version;
    let mut operator = Operator::start(&api, created);
    let error = operator.reconcile().await.unwrap_err();
    assert!(error.kind() == "api" && gangs(&api).is_empty(), "{error}");
    api.store().refuses.clear();
    reconcile(&mut operator, &api).await;
    assert_eq!(gangs(&api).len(), 1);
}

/// An earlier version made the Job.
#[tokio::test]
async fn what_exists_is_reported_and_left_to_its_manager() {
    for (manager, is_reported) in [(names::MULTIKUEUE, true), ("kubernetes.io/job-controller", false)] {
        let (api, mut operator) = under_way().await;
        let mut gang = api.store().objects[&of("jobs", "toy-1")].clone();
        gang["spec"]["managedBy"] = json!(manager);
        // Its manager has labels of its own, and the operator restores those of a Job that it manages.
        gang["metadata"]["labels"].as_object_mut().unwrap().remove("pawl.dev/job");
        api.store().put(of("jobs", "toy-1"), gang);
        let before = api.store().writes.len();
        for _ in 0..3 {
            reconcile(&mut operator, &api).await;
        }
        let repaired = api.store().writes[before..].iter().any(|write| write.ends_with("/jobs/toy-1"));
        assert_eq!(repaired, !is_reported, "{manager}: {:?}", &api.store().writes[before..]);
        let reported = stalled(&api);
        assert_eq!(reported["status"], if is_reported { "True" } else { "False" }, "{reported}");
        let message = reported["message"].as_str().unwrap_or_default();
        assert_eq!(message.contains("is managed by kueue.x-k8s.io/multikueue"), is_reported, "{message}");
        assert_eq!(cluster::gangs_alive(&api.store()).len(), 1, "nothing is stopped");
    }
}
