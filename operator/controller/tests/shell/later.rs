//! Jobs of a later version, next to this operator: what it does not know is kept, and no gang is touched because of it.

use crate::api::{Api, Id};
use crate::cluster;
use crate::service::{reconcile, under_way};
use serde_json::{Value, json};

fn job() -> Id {
    ("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned())
}

/// Changes the stored job, as a later operator or its CustomResourceDefinition would.
fn change(api: &Api, change: impl FnOnce(&mut Value)) {
    let mut store = api.store();
    let mut object = store.objects[&job()].clone();
    change(&mut object);
    object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
    store.put(job(), object);
}

fn status(api: &Api) -> Value {
    api.store().objects[&job()]["status"].clone()
}

fn condition(status: &Value, kind: &str) -> Value {
    let all = status["conditions"].as_array().unwrap();
    all.iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

/// The pods that run, by uid.
fn pods(api: &Api) -> Vec<Value> {
    let store = api.store();
    let pods = store.objects.iter().filter(|(id, _)| id.0 == "pods").map(|(_, pod)| pod);
    pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .map(|pod| pod["metadata"]["uid"].clone())
        .collect()
}

#[tokio::test]
async fn fields_of_a_later_version_are_kept_and_reported() {
    let (api, mut operator) = under_way().await;
    let running = pods(&api);
    assert!(!running.is_empty());
    change(&api, |job| {
        job["spec"]["train"]["fancy"] = json!({"nested": [1]});
        job["status"]["later"] = json!({"a": 1});
        job["status"]["phases"][0]["later"] = json!(7);
    });
    reconcile(&mut operator, &api).await;
    let unknown = condition(&status(&api), "UnknownFields");
    assert_eq!((&unknown["status"], &unknown["reason"]), (&json!("True"), &json!("UnknownFields")));
    let message = unknown["message"].as_str().unwrap();
    for path in ["spec.train.fancy", "status.later", "status.phases[compile].later"] {
        assert!(message.contains(path), "{path}: {message}");
    }
    assert_eq!(pods(&api), running, "a gang was touched");
    for _ in 0..120 {
        cluster::step(&mut api.store());
        reconcile(&mut operator, &api).await;
    }
    let done = status(&api);
    assert_eq!(done["stage"], "Complete");
    assert_eq!((&done["later"], &done["phases"][0]["later"]), (&json!({"a": 1}), &json!(7)));
    change(&api, |job| {
        job["spec"]["train"].as_object_mut().unwrap().remove("fancy");
        job["status"].as_object_mut().unwrap().remove("later");
        job["status"]["phases"][0].as_object_mut().unwrap().remove("later");
    });
    reconcile(&mut operator, &api).await;
    assert_eq!(condition(&status(&api), "UnknownFields"), Value::Null);
}

#[tokio::test]
async fn a_value_of_a_later_version_stops_decisions_and_no_gang() {
    for (path, value) in [
        (&["spec", "phases", "0", "settings", "compile"][..], "Turbo"),
        (&["status", "phases", "0", "state"], "Probation"),
        (&["status", "attempt", "purpose"], "Distill"),
    ] {
        let (api, mut operator) = under_way().await;
        let (running, before) = (pods(&api), status(&api));
        let pointer = format!("/{}", path.join("/"));
        let known = api.store().objects[&job()].pointer(&pointer).cloned().unwrap();
        change(&api, |job| *job.pointer_mut(&pointer).unwrap() = json!(value));
        let writes = api.store().writes.len();
        for _ in 0..3 {
            reconcile(&mut operator, &api).await;
        }
        let stalled = condition(&status(&api), "Stalled");
        assert_eq!((&stalled["status"], &stalled["reason"]), (&json!("True"), &json!("Unreadable")), "{pointer}");
        let message = stalled["message"].as_str().unwrap();
        assert!(message.contains(value) && message.contains("upgrade it"), "{message}");
        assert_eq!(pods(&api), running, "{pointer}: a gang was touched");
        let written: Vec<_> =
            api.store().writes[writes..].iter().filter(|write| !write.contains("/events")).cloned().collect();
        assert_eq!(written.len(), 1, "only the condition, once: {written:?}");
        let kept = |status: &Value| {
            let mut kept = status.clone();
            kept.as_object_mut().unwrap().remove("conditions");
            kept
        };
        let mut expected = json!({"status": before, "spec": {}});
        if let Some(field) = expected.pointer_mut(&pointer) {
            *field = json!(value);
        }
        assert_eq!(kept(&status(&api)), kept(&expected["status"]), "the rest of the status is as it was");

        // The later version is back, or the spec is corrected.
        change(&api, |job| *job.pointer_mut(&pointer).unwrap() = known);
        for _ in 0..120 {
            reconcile(&mut operator, &api).await;
            cluster::step(&mut api.store());
        }
        let done = status(&api);
        assert_eq!((&done["stage"], &condition(&done, "Stalled")["status"]), (&json!("Complete"), &json!("False")));
    }
}
