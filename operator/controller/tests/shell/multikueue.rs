//! A batch Job whose pods another controller makes, as MultiKueue does in another cluster.

use crate::api::Id;
use crate::cluster;
use crate::service::{reconcile, under_way};
use serde_json::{Value, json};

fn of(kind: &str, name: &str) -> Id {
    (kind.to_owned(), "default".to_owned(), name.to_owned())
}

/// It was "waiting in its turn", without limit and without a word.
#[tokio::test]
async fn it_is_reported_and_left_to_its_manager() {
    for (manager, is_reported) in [("kueue.x-k8s.io/multikueue", true), ("kubernetes.io/job-controller", false)] {
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
        let store = api.store();
        let repaired = store.writes[before..].iter().any(|write| write.ends_with("/jobs/toy-1"));
        assert_eq!(repaired, !is_reported, "{manager}: {:?}", &store.writes[before..]);
        let conditions = store.objects[&of("trainingjobs", "toy")]["status"]["conditions"].as_array().unwrap().clone();
        let stalled = conditions.into_iter().find(|each| each["type"] == "Stalled").unwrap_or(Value::Null);
        assert_eq!(stalled["status"], if is_reported { "True" } else { "False" }, "{stalled}");
        let message = stalled["message"].as_str().unwrap_or_default();
        assert_eq!(message.contains("is managed by kueue.x-k8s.io/multikueue"), is_reported, "{message}");
        assert_eq!(cluster::gangs_alive(&store).len(), 1, "nothing is stopped");
    }
}
