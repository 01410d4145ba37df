//! The Service of a namespace: put right while a gang needs its name, and otherwise left unchanged.

use crate::api::{Api, Id};
use crate::cluster;
use crate::crash::job;
use crate::operator::Operator;
use kube::runtime::controller::Action;
use pawl_controller::key::Key;
use serde_json::{Value, json};
use std::time::Duration;

/// Rounds after which a job must have ended.
const ROUNDS: usize = 600;
/// So long the operator lets a Service be that it applied.
const LET_BE: Duration = Duration::from_secs(5);
/// Longer than that.
const A_WHILE: Duration = Duration::from_secs(60);
/// So long after it found somebody else's Service it looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

fn id() -> Id {
    ("services".to_owned(), "default".to_owned(), "pawl-trainers".to_owned())
}

/// The Service, without what the API server says of it.
fn said(api: &Api) -> Value {
    let service = api.store().objects.get(&id()).cloned().unwrap_or_default();
    json!([service["metadata"]["labels"], service["spec"]])
}

/// Changes the Service as a person does.
fn edit(api: &Api, change: impl FnOnce(&mut Value)) {
    let mut store = api.store();
    let mut service = store.objects[&id()].clone();
    change(&mut service);
    store.put(id(), service);
}

/// How often the operator wrote a Service.
fn writes(api: &Api) -> usize {
    api.store().writes.iter().filter(|write| write.contains("/services")).count()
}

pub async fn reconcile(operator: &mut Operator, api: &Api) -> Action {
    let now = api.store().version;
    operator.catch_up(now);
    operator.reconcile().await.unwrap()
}

/// A job, and the operator in the midst of it: a gang of two runs.
pub async fn under_way() -> (Api, Operator) {
    let api = Api::default();
    let mut job = job();
    // The first attempt of a foreign trainer is a gang.
    job["spec"]["workload"] = json!({"command": ["train"]});
    api.store().create(("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned()), job);
    let before = api.store().version;
    let mut operator = Operator::start(&api, before);
    for _ in 0..2 {
        reconcile(&mut operator, &api).await;
        cluster::step(&mut api.store());
    }
    assert_eq!(cluster::gangs_alive(&api.store()).len(), 1);
    assert_eq!(writes(&api), 1, "one Service is enough for all");
    (api, operator)
}

#[tokio::test(start_paused = true)]
async fn what_people_break_of_it_comes_back_within_one_reconcile() {
    let (api, mut operator) = under_way().await;
    let before = said(&api);
    let ways: [fn(&Api); 6] = [
        |api| edit(api, |service| service["metadata"]["labels"]["app.kubernetes.io/name"] = json!("theirs")),
        // Now the watch does not see it any more.
        |api| edit(api, |service| service["metadata"]["labels"] = json!({})),
        |api| edit(api, |service| service["spec"]["selector"]["app.kubernetes.io/name"] = json!("theirs")),
        |api| edit(api, |service| service["spec"]["publishNotReadyAddresses"] = json!(false)),
        |api| api.store().remove(&id()),
        // The one that was made again is watched as the first was.
        |api| api.store().remove(&id()),
    ];
    for (number, broken) in ways.into_iter().enumerate() {
        tokio::time::advance(A_WHILE).await;
        reconcile(&mut operator, &api).await;
        broken(&api);
        assert_ne!(said(&api), before, "way {number}");
        operator.named.clear();
        reconcile(&mut operator, &api).await;
        assert_eq!(operator.named, [Key::new("default", "toy")], "way {number}: its job is named");
        assert_eq!(said(&api), before, "way {number}");
        assert_eq!(writes(&api), number + 2, "way {number}: one write puts it right");
    }
    reconcile(&mut operator, &api).await;
    assert_eq!(writes(&api), ways.len() + 1);
}

#[tokio::test(start_paused = true)]
async fn somebody_who_wants_it_otherwise_gets_no_endless_fight() {
    let (api, mut operator) = under_way().await;
    let before = said(&api);
    tokio::time::advance(A_WHILE).await;
    for _ in 0..100 {
        edit(&api, |service| service["spec"]["publishNotReadyAddresses"] = json!(false));
        reconcile(&mut operator, &api).await;
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    assert_eq!(writes(&api), 1 + 2, "in ten seconds");
    // It is not forgotten during the cool-down.
    tokio::time::advance(A_WHILE).await;
    reconcile(&mut operator, &api).await;
    assert_eq!(said(&api), before);
    tokio::time::advance(Duration::from_secs(1)).await;
    api.store().remove(&id());
    assert_eq!(reconcile(&mut operator, &api).await, Action::requeue(LET_BE - Duration::from_secs(1)));
    assert_ne!(said(&api), before);
    tokio::time::advance(LET_BE - Duration::from_secs(1)).await;
    reconcile(&mut operator, &api).await;
    assert_eq!(said(&api), before);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_not_headless_is_somebody_elses() {
    let (api, mut operator) = under_way().await;
    let theirs = json!({"metadata": {"name": "pawl-trainers"}, "spec": {"clusterIP": "10.0.0.1"}});
    tokio::time::advance(A_WHILE).await;
    api.store().remove(&id());
    api.store().create(id(), theirs.clone());
    let refused = |api: &Api| api.store().refused.iter().filter(|write| write.contains("/services")).count();
    let told = |api: &Api| api.store().writes.iter().filter(|write| write.contains("/events")).count();
    let before = told(&api);
    for number in 1..=3 {
        for _ in 0..10 {
            let now = api.store().version;
            operator.catch_up(now);
            assert_eq!(operator.reconcile().await.unwrap(), Action::requeue(LOOK_AGAIN), "its gang trains on");
        }
        assert_eq!(refused(&api), number, "it is not tried all the time");
        tokio::time::advance(LET_BE).await;
    }
    assert_eq!(told(&api), before + 1, "and one event is published");
    assert_eq!(said(&api), json!([null, theirs["spec"]]));
    // A person gives the name back.
    api.store().remove(&id());
    reconcile(&mut operator, &api).await;
    assert_eq!(writes(&api), 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_gang_it_is_nobodys() {
    let (api, mut operator) = under_way().await;
    for _ in 0..ROUNDS {
        reconcile(&mut operator, &api).await;
        cluster::step(&mut api.store());
    }
    assert_eq!(cluster::gangs_alive(&api.store()).len(), 0);
    tokio::time::advance(A_WHILE).await;
    operator.named.clear();
    let before = api.store().writes.len();
    edit(&api, |service| service["spec"]["selector"] = json!({}));
    reconcile(&mut operator, &api).await;
    api.store().remove(&id());
    reconcile(&mut operator, &api).await;
    assert_eq!(operator.named, []);
    assert_eq!(api.store().writes.len(), before, "an operator at rest writes nothing");
}
