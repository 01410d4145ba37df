//! Objects that an older CustomResourceDefinition let in, next to this operator.

use crate::api::{Api, Id};
use crate::cluster;
use crate::operator::Operator;
use crate::service::{reconcile, under_way};
use pawl_controller::reading::Guarded;
use serde_json::{Value, json};

fn toy() -> Id {
    ("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned())
}

fn status(api: &Api) -> Value {
    api.store().objects[&toy()]["status"].clone()
}

fn condition(status: &Value, kind: &str) -> Value {
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

/// Removes every field of an object that is not needed to say what it is, as if it had been stored before there were
/// such fields.
fn forget(value: &mut Value, kept: &[&str]) {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| kept.contains(&name.as_str()));
    }
}

/// The status of an operator of long ago: what is younger has its default, and the gang that runs continues.
#[tokio::test]
async fn fields_that_were_not_there_yet_have_their_defaults() {
    let (api, mut operator) = under_way().await;
    let mut object = api.store().objects[&toy()].clone();
    forget(&mut object["status"], &["stage", "attempt", "attempts", "phases", "observedGeneration"]);
    forget(&mut object["status"]["attempt"], &["name", "purpose", "planHash", "started", "seen", "trial", "launches"]);
    let phases = object["status"]["phases"].as_array_mut().into_iter().flatten();
    phases.for_each(|phase| forget(phase, &["name", "state"]));
    api.store().put(toy(), object);
    let now = api.store().version;
    drop(std::mem::replace(&mut operator, Operator::start(&api, now)));
    let running = cluster::gangs_alive(&api.store());
    reconcile(&mut operator, &api).await;
    assert_eq!(cluster::gangs_alive(&api.store()), running, "the gang was touched");
    for _ in 0..160 {
        reconcile(&mut operator, &api).await;
        cluster::step(&mut api.store());
    }
    assert_eq!(status(&api)["stage"], "Complete", "{:#}", status(&api));
}

/// Values and types that this version has no more.
#[tokio::test]
async fn what_was_removed_stops_decisions_and_no_gang() {
    for (pointer, value) in [
        ("/spec/phases/0/settings/compile", json!("Jit")),
        ("/spec/trainer/replicas", json!("2")),
        ("/spec/workload", json!("ups")),
        ("/status/phases/0/state", json!("Tried")),
        ("/status/attempt/launches", json!("all")),
    ] {
        let (api, mut operator) = under_way().await;
        let mut object = api.store().objects[&toy()].clone();
        *object.pointer_mut(pointer).unwrap() = value.clone();
        object["metadata"]["generation"] = json!(2);
        api.store().put(toy(), object);
        let running = cluster::gangs_alive(&api.store());
        for _ in 0..3 {
            reconcile(&mut operator, &api).await;
        }
        let stalled = condition(&status(&api), "Stalled");
        assert_eq!((&stalled["status"], &stalled["reason"]), (&json!("True"), &json!("Unreadable")), "{pointer}");
        assert_eq!(api.store().objects[&toy()].pointer(pointer), Some(&value), "{pointer}: it is kept");
        assert_eq!(cluster::gangs_alive(&api.store()), running, "{pointer}: a gang was touched");
    }
}

/// A list of jobs, one of which cannot be read, is read.
#[test]
fn one_that_cannot_be_read_hides_no_other() {
    let good = crate::crash::job();
    let mut items = vec![good.clone(); 8];
    items[1]["spec"] = json!({"workload": 1});
    items[2]["spec"] = json!([]);
    items[3].as_object_mut().unwrap().remove("spec");
    items[4]["status"] = json!("Complete");
    items[5]["status"] = json!({"conditions": "none", "phases": 3});
    items[6]["status"] = json!({"conditions": [{"type": "Stalled"}], "stage": "Gone"});
    let read: Vec<Guarded> = serde_json::from_value(json!(items)).unwrap();
    let can_be_decided: Vec<bool> = read.iter().map(|job| job.0.is_ok()).collect();
    assert_eq!(can_be_decided, [true, false, false, false, false, false, false, true]);
    for job in read.iter().filter_map(|job| job.0.as_ref().err()) {
        assert_eq!(job.metadata.name.as_deref(), Some("toy"));
        assert!(job.problem.contains("correct the") || job.problem.contains("cannot be read"), "{}", job.problem);
    }
}
