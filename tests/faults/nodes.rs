//! Machines that are gone.

use crate::gang::Training;
use pawl_e2e::job::status;
use pawl_e2e::machines::Node;
use pawl_e2e::programs::{kubectl, succeed};
use pawl_e2e::scene;
use serde_json::json;
use std::time::Duration;

/// The node that loses its power; the others stay.
const NUMBER: u32 = 9;
/// What keeps pods of other tests from it.
const TAINT: &str = "pawl-e2e/doomed";

#[test]
fn after_a_power_cut_the_gang_trains_on_elsewhere() {
    scene(async |scene| {
        let node = Node::start(NUMBER, 0);
        let name = node.name();
        let ready = format!("node/{name}");
        let look = async || kubectl(&["get", &ready]).output().unwrap().status.success().then_some(());
        scene.until("the node", Duration::from_secs(30), look).await;
        // Before it is ready: nothing is placed there until then.
        succeed(&mut kubectl(&["taint", "node", &name, &format!("{TAINT}=:NoSchedule")]));
        succeed(&mut kubectl(&["wait", "--for=condition=Ready", "--timeout=30s", &ready]));

        let _operator = scene.operator().await;
        let training = Training::under_way(scene, "train", 30, |job| {
            let term = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [name]});
            let tolerations = json!([{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}]);
            job["spec"]["trainer"]["podTemplate"] = json!({"tolerations": tolerations, "affinity": {"nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 100, "preference": {"matchExpressions": [term]}}]}}});
        })
        .await;
        let gang = training.running().await;
        assert_eq!(gang[0].spec.as_ref().unwrap().node_name.as_deref(), Some(name.as_str()));
        let items = training.checkpointed();
        node.cut();
        training.again(&gang, 1, Duration::from_secs(60)).await;
        let done = training.completes_from(items, Duration::from_secs(120)).await;
        assert_eq!(status(&done).training.as_ref().unwrap().restarts, 1);
    });
}
