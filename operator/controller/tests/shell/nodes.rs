//! A node that does not accept pods, again and again.

use crate::api::{Api, Id};
use crate::cluster;
use crate::crash::job;
use crate::operator::Operator;
use jiff::{SignedDuration, Timestamp};
use pawl_controller::clock::Clock;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

fn of(kind: &str, name: &str) -> Id {
    (kind.to_owned(), "default".to_owned(), name.to_owned())
}

/// A job whose gangs have one pod, and an operator whose clock advances with each reconcile.
struct Scene {
    api: Api,
    operator: Operator,
    /// Seconds after now.
    later: Arc<AtomicI64>,
}

impl Scene {
    fn new() -> Self {
        let (api, later) = (Api::default(), Arc::new(AtomicI64::new(0)));
        let mut job = job();
        job["spec"]["trainer"] = json!({"replicas": 1, "gpusPerReplica": 1, "podTemplate": {"affinity": {"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [
                {"key": "zone", "operator": "In", "values": ["b"]}]}}]}}}});
        api.store().create(of("trainingjobs", "toy"), job);
        let read = later.clone();
        let clock = Clock::of(move || Timestamp::now() + SignedDuration::from_secs(read.load(Ordering::Relaxed)));
        let now = api.store().version;
        let operator = Operator::start_at(&api, now, clock);
        Self { api, operator, later }
    }

    async fn reconcile(&mut self) {
        let now = self.api.store().version;
        self.operator.catch_up(now);
        self.operator.reconcile().await.unwrap();
    }

    /// The next attempt is started, and its pod is refused. Returns the affinity of its pods.
    async fn refuse(&mut self, attempt: &str, node: &str) -> Value {
        self.later.fetch_add(301, Ordering::Relaxed);
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..3 {
            self.reconcile().await;
        }
        cluster::step(&mut self.api.store());
        let affinity = {
            let mut store = self.api.store();
            let is_own =
                |id: &Id, pod: &Value| id.0 == "pods" && pod["metadata"]["labels"]["pawl.dev/attempt"] == attempt;
            let pods = store.objects.iter().filter(|(id, pod)| is_own(id, pod));
            let (id, mut pod) = pods.map(|(id, pod)| (id.clone(), pod.clone())).next().expect("the attempt has a pod");
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = json!({"phase": "Failed", "reason": "UnexpectedAdmissionError",
                "message": "Pod was rejected: Allocate failed due to no healthy devices present"});
            store.put(id, pod);
            store.objects[&of("jobs", attempt)]["spec"]["template"]["spec"]["affinity"].clone()
        };
        self.reconcile().await;
        affinity
    }

    fn events(&self, reason: &str) -> Vec<String> {
        let store = self.api.store();
        let events = store.objects.iter().filter(|(id, event)| id.0 == "events" && event["reason"] == reason);
        events.map(|(_, event)| event["note"].as_str().unwrap().to_owned()).collect()
    }
}

fn preferred(affinity: &Value) -> Vec<Value> {
    affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"].as_array().cloned().unwrap_or_default()
}

/// The scheduler chose the broken node each time: nothing runs there, so that it has the most room.
#[tokio::test(start_paused = true)]
async fn one_that_refuses_again_is_avoided_for_a_while() {
    let mut scene = Scene::new();
    let first = scene.refuse("toy-1", "node-a").await;
    let second = scene.refuse("toy-2", "node-a").await;
    for affinity in [&first, &second] {
        assert_eq!(preferred(affinity).len(), 1, "one refusal may be over by the next attempt: {affinity}");
    }
    assert_eq!(scene.events("NodeAvoided"), Vec::<String>::new());
    let third = scene.refuse("toy-3", "node-b").await;
    let avoided = json!({"weight": 100, "preference": {"matchFields": [
        {"key": "metadata.name", "operator": "NotIn", "values": ["node-a"]}]}});
    assert_eq!(preferred(&third)[1..], [avoided], "{third}");
    let events = scene.events("NodeAvoided");
    let [event] = &events[..] else { panic!("{events:?}") };
    for words in ["toy-3", "node-a", "2 attempts", "no healthy devices"] {
        assert!(event.contains(words), "{words}: {event}");
    }
    let disrupted = scene.events("Disrupted");
    assert!(
        disrupted.iter().all(|event| event.contains("did not accept pod")) && disrupted.len() == 3,
        "{disrupted:?}"
    );
    let metrics = scene.operator.metrics();
    for line in ["pawl_node_refusals_total{node=\"node-a\"} 2", "pawl_node_refusals_total{node=\"node-b\"} 1"] {
        assert!(metrics.contains(line), "{metrics}");
    }

    let fourth = scene.refuse("toy-4", "node-b").await;
    assert_eq!(preferred(&fourth).len(), 2);
    let both = scene.refuse("toy-5", "node-c").await;
    let fields = preferred(&both)[1]["preference"]["matchFields"].clone();
    let values: Vec<_> = fields.as_array().unwrap().iter().map(|field| field["values"].clone()).collect();
    assert_eq!(values, [json!(["node-b"]), json!(["node-a"])], "the newest first");
    tokio::time::advance(Duration::from_secs(30 * 60)).await;
    let last = scene.refuse("toy-6", "node-c").await;
    assert_eq!(preferred(&last).len(), 1, "it may have been repaired");
}
