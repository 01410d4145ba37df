//! What happened to a job goes with its next attempts, which keep it in its storage.

use crate::api::{Api, Store};
use crate::cluster;
use crate::crash;
use crate::operator::Operator;
use pawl_contract::plan::AttemptPlan;
use std::collections::BTreeSet;

/// The plans that pods read now.
fn plans(store: &Store) -> Vec<AttemptPlan> {
    let objects = store.objects.iter().filter_map(|((kind, ..), object)| match kind.as_str() {
        "pods" => object["metadata"]["annotations"]["pawl.dev/plan"].as_str(),
        "configmaps" => object["data"]["plan.json"].as_str(),
        _ => None,
    });
    objects.map(|text| serde_json::from_str(text).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn attempts_have_the_events_of_the_decisions_before_them() {
    let api = Api::default();
    api.store().create(("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned()), crash::job());
    let before = api.store().version;
    let mut operator = Operator::start(&api, before);
    let mut carried = BTreeSet::new();
    for _ in 0..600 {
        let now = api.store().version;
        operator.catch_up(now);
        // One that fails, as while an object is being deleted, is made again in the next round.
        let _ = operator.reconcile().await;
        let mut store = api.store();
        cluster::step(&mut store);
        let events = plans(&store).into_iter().flat_map(|plan| plan.events);
        carried.extend(events.map(|event| (event.reason, event.message)));
    }
    let store = api.store();
    let events = store.objects.iter().filter(|((kind, ..), _)| kind == "events").map(|(_, event)| event);
    let text = |text: &serde_json::Value| text.as_str().unwrap_or_default().to_owned();
    let published: BTreeSet<_> = events.map(|event| (text(&event["reason"]), text(&event["note"]))).collect();
    assert!(carried.is_subset(&published), "{carried:#?}\n{published:#?}");
    assert!(carried.iter().any(|(reason, _)| reason == "SpeedBelowThreshold"), "{carried:#?}");
}
