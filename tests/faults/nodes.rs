//! Machines that are gone.

use crate::gang::Training;
use pawl_e2e::job::status;
use pawl_e2e::machines::Node;
use pawl_e2e::scene;
use std::time::Duration;

/// The node that loses its power; the others stay.
const NUMBER: u32 = 9;

#[test]
fn after_a_power_cut_the_gang_trains_on_elsewhere() {
    scene(async |scene| {
        let node = Node::own(NUMBER, 0);
        scene.node_is_ready(&node.name()).await;
        let _operator = scene.operator().await;
        let training = Training::under_way(scene, "train", 30, |job| {
            job["spec"]["trainer"]["podTemplate"] = node.pod_template();
        })
        .await;
        let gang = training.running().await;
        assert_eq!(gang[0].spec.as_ref().unwrap().node_name.as_deref(), Some(node.name().as_str()));
        let items = training.checkpointed();
        node.cut();
        training.again(&gang, 1, Duration::from_secs(60)).await;
        let done = training.completes_from(items, Duration::from_secs(120)).await;
        assert_eq!(status(&done).training.as_ref().unwrap().restarts, 1);
    });
}
