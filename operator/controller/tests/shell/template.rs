//! A pod template that is corrected: a gang that waits is replaced, one that runs is not.

use crate::api::{Api, Id};
use crate::cluster;
use crate::crash::job;
use crate::operator::Operator;
use crate::service::{reconcile, under_way};
use serde_json::{Value, json};

fn toy() -> Id {
    ("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned())
}

/// Changes the stored job, as a person does.
fn edit(api: &Api, change: impl FnOnce(&mut Value)) {
    let mut store = api.store();
    let mut object = store.objects[&toy()].clone();
    change(&mut object);
    object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
    store.put(toy(), object);
}

fn condition(api: &Api, kind: &str) -> Value {
    let status = api.store().objects[&toy()]["status"].clone();
    let mut all = status["conditions"].as_array().unwrap().iter();
    all.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

/// The batch Jobs that are not being deleted, and the node that each demands.
fn nodes(api: &Api) -> Vec<(String, Value)> {
    let store = api.store();
    let jobs = store
        .objects
        .iter()
        .filter(|((kind, ..), job)| kind == "jobs" && job["metadata"]["deletionTimestamp"].is_null());
    jobs.map(|((.., name), job)| {
        (name.clone(), job["spec"]["template"]["spec"]["nodeSelector"]["kubernetes.io/hostname"].clone())
    })
    .collect()
}

/// It stayed `Queued` for ever: the batch Job kept the template with which it was made.
#[tokio::test]
async fn a_gang_that_waits_takes_the_corrected_template_at_once() {
    let api = Api::default();
    let mut job = job();
    job["spec"]["trainer"]["podTemplate"]["nodeSelector"]["kubernetes.io/hostname"] = json!("node-one");
    api.store().create(toy(), job);
    let before = api.store().version;
    let mut operator = Operator::start(&api, before);
    reconcile(&mut operator, &api).await;
    assert_eq!(nodes(&api), [("toy-1".to_owned(), json!("node-one"))]);

    let selector = json!({"kubernetes.io/hostname": "node-1"});
    edit(&api, |job| job["spec"]["trainer"]["podTemplate"]["nodeSelector"] = selector);
    for _ in 0..3 {
        reconcile(&mut operator, &api).await;
        cluster::collect_garbage(&mut api.store());
    }
    reconcile(&mut operator, &api).await;
    assert_eq!(nodes(&api), [("toy-2".to_owned(), json!("node-1"))]);
    assert!(api.store().objects[&toy()]["status"]["retry"].is_null(), "that is no failure");
    let told = api.store().objects.iter().any(|(_, event)| event["reason"] == "TemplateChanged");
    assert!(told, "an event says why");
}

#[tokio::test]
async fn a_gang_that_runs_goes_on_until_its_user_starts_it_again() {
    let (api, mut operator) = under_way().await;
    reconcile(&mut operator, &api).await;
    let running = cluster::gangs_alive(&api.store());
    edit(&api, |job| job["spec"]["trainer"]["podTemplate"]["env"] = json!([{"name": "A", "value": "1"}]));
    reconcile(&mut operator, &api).await;
    assert_eq!(cluster::gangs_alive(&api.store()), running);
    let needed = condition(&api, "RestartNeeded");
    assert_eq!((&needed["status"], &needed["reason"]), (&json!("True"), &json!("TemplateChanged")));
    assert!(needed["message"].as_str().unwrap().contains("kubectl pawl restart toy"), "{needed}");
    let writes = api.store().writes.len();
    reconcile(&mut operator, &api).await;
    assert_eq!(api.store().writes.len(), writes, "it is said once");

    edit(&api, |job| job["metadata"]["annotations"] = json!({"pawl.dev/restart": "toy-1"}));
    for _ in 0..3 {
        reconcile(&mut operator, &api).await;
        cluster::step(&mut api.store());
    }
    reconcile(&mut operator, &api).await;
    let alive = cluster::gangs_alive(&api.store());
    assert!(alive.iter().all(|(attempt, _)| attempt == "toy-2") && !alive.is_empty(), "{alive:?}");
    assert_eq!(condition(&api, "RestartNeeded"), Value::Null);
    assert_eq!(api.store().unannounced, Vec::<String>::new());
}
