//! A control plane that is away for a while.

use crate::gang::Training;
use kube::ResourceExt;
use pawl_e2e::job::status;
use pawl_e2e::machines::Outage;
use pawl_e2e::scene;
use std::time::Duration;

/// Seconds of training that are over before the API server is back.
const SHORT: u32 = 45;
/// Seconds of training that are not.
const LONG: u32 = 110;

#[test]
fn pods_train_and_end_through_a_minute_without_an_api_server() {
    scene(async |scene| {
        let operator = scene.operator().await;
        let under_way = |name, seconds| Training::under_way(scene, name, seconds, |_| {});
        let (long, short) = tokio::join!(under_way("long", LONG), under_way("short", SHORT));
        let gang = long.running().await;
        let outage = Outage::begin();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let (ended, items) = (short.checkpointed(), long.checkpointed());
        assert_eq!(ended, short.items, "the short training is to be over by now");
        assert!(items < long.items, "the long one is to be under way still");
        outage.end();
        let still = long.running().await;
        assert!(!still.is_empty() && still[0].uid() == gang[0].uid(), "other pods train");
        // It ended where nobody saw it: nothing is trained again, and that is soon known.
        let done = short.completes_from(ended, Duration::from_secs(30)).await;
        assert_eq!(status(&done).training.as_ref().unwrap().restarts, 0);
        let done = long.completes_from(items, Duration::from_secs(150)).await;
        assert_eq!(status(&done).training.as_ref().unwrap().restarts, 0);
        drop(operator);
    });
}
