//! A control plane that is away for a while.

use crate::gang::Training;
use kube::ResourceExt;
use pawl_e2e::job::status;
use pawl_e2e::machines::Outage;
use pawl_e2e::scene;
use std::time::Duration;

#[test]
fn pods_train_through_a_minute_without_an_api_server() {
    scene(async |scene| {
        let operator = scene.operator().await;
        let training = Training::under_way(scene, "train", 75, |_| {}).await;
        let gang = training.running().await;
        let outage = Outage::of("kube-apiserver");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let items = training.checkpointed();
        outage.end();
        let done = training.completes_from(items, Duration::from_secs(150)).await;
        let after = scene.pods("train").await;
        assert!(after.is_empty() || after[0].uid() == gang[0].uid(), "other pods trained to the end");
        assert_eq!(status(&done).training.as_ref().unwrap().restarts, 0);
        drop(operator);
    });
}
