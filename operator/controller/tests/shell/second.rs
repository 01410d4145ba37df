//! Two operators whose namespaces overlap, with a lease each: one acts, the other one says so and does nothing.

use crate::api::{Api, Id};
use crate::cluster;
use crate::crash::job;
use crate::operator::Operator;
use serde_json::{Value, json};
use std::time::Duration;

/// After that, a Lease that was not renewed is free.
const FREE: Duration = Duration::from_secs(181);
/// Between two looks.
const LOOK: Duration = Duration::from_secs(31);

fn toy() -> Id {
    ("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned())
}

fn lease() -> Id {
    ("leases".to_owned(), "default".to_owned(), "pawl-trainingjobs".to_owned())
}

fn begin(api: &Api, name: &str) -> Operator {
    let now = api.store().version;
    Operator::start(api, now).named(name)
}

/// Reconciles once with fresh caches. Returns the writes.
async fn reconcile(api: &Api, operator: &mut Operator) -> Vec<String> {
    let now = api.store().version;
    let before = api.store().writes.len();
    operator.catch_up(now);
    operator.reconcile().await.unwrap();
    api.store().writes[before..].to_vec()
}

/// The writes of some reconciles, between which the cluster advances.
async fn some_rounds(api: &Api, operator: &mut Operator) -> Vec<String> {
    let mut writes = Vec::new();
    for _ in 0..6 {
        cluster::step(&mut api.store());
        writes.extend(reconcile(api, operator).await);
    }
    writes
}

fn stage(api: &Api) -> Value {
    api.store().objects[&toy()]["status"]["stage"].clone()
}

/// Each carried out what it saw first, with its own images and defaults.
#[tokio::test(start_paused = true)]
async fn the_second_one_says_so_and_does_nothing() {
    let api = Api::default();
    api.store().create(toy(), job());
    let (mut first, mut second) = (begin(&api, "a/pawl-operator"), begin(&api, "b/pawl-operator"));
    reconcile(&api, &mut first).await;
    for _ in 0..200 {
        cluster::step(&mut api.store());
        assert_eq!(reconcile(&api, &mut second).await, Vec::<String>::new());
        reconcile(&api, &mut first).await;
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    assert_eq!(stage(&api), "Complete");
    let renewals = api.store().writes.iter().filter(|write| write.contains("/leases")).count();
    assert!((15..=18).contains(&renewals), "{renewals} in 1000 s");
    let of_another = "pawl_namespace_of_another_operator{namespace=\"default\"} 1";
    assert!(second.metrics().contains(of_another), "{}", second.metrics());
    assert!(!first.metrics().contains("pawl_namespace_of_another_operator{"));
}

#[tokio::test(start_paused = true)]
async fn it_takes_over_once_the_first_one_is_gone() {
    let api = Api::default();
    api.store().create(toy(), job());
    let (mut first, mut second) = (begin(&api, "a/pawl-operator"), begin(&api, "b/pawl-operator"));
    for _ in 0..3 {
        reconcile(&api, &mut first).await;
        cluster::step(&mut api.store());
    }
    reconcile(&api, &mut second).await;
    tokio::time::advance(LOOK).await;
    assert_eq!(reconcile(&api, &mut second).await, Vec::<String>::new(), "the first one may be renewing its Lease");
    tokio::time::advance(FREE).await;
    assert!(!reconcile(&api, &mut second).await.is_empty());
    assert_eq!(api.store().objects[&lease()]["spec"]["holderIdentity"], "b/pawl-operator");
    assert!(!second.metrics().contains("pawl_namespace_of_another_operator{"));
    // The first one was only cut off.
    assert_eq!(reconcile(&api, &mut first).await, Vec::<String>::new());
    for _ in 0..120 {
        reconcile(&api, &mut second).await;
        cluster::step(&mut api.store());
        assert!(cluster::gangs_alive(&api.store()).len() <= 1);
    }
    assert_eq!(stage(&api), "Complete");
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_of_the_same_operator_goes_on_at_once() {
    let api = Api::default();
    api.store().create(toy(), job());
    let mut first = begin(&api, "a/pawl-operator");
    reconcile(&api, &mut first).await;
    let mut next = begin(&api, "a/pawl-operator");
    let writes = some_rounds(&api, &mut next).await;
    assert!(writes.iter().any(|write| write.ends_with("/trainingjobs/toy/status")), "{writes:?}");
    // The first one leads again, and does not know that its Lease was renewed.
    tokio::time::advance(Duration::from_secs(61)).await;
    for _ in 0..60 {
        reconcile(&api, &mut first).await;
        cluster::step(&mut api.store());
    }
    assert_eq!(stage(&api), "Complete");
}

#[rstest::rstest]
#[tokio::test(start_paused = true)]
async fn without_the_right_to_write_the_lease_it_acts_as_before(#[values(403, 422)] code: u16) {
    let api = Api::default();
    api.store().create(toy(), job());
    api.store().refuses = vec![("POST /apis/coordination.k8s.io", code)];
    let mut operator = begin(&api, "a/pawl-operator");
    for _ in 0..120 {
        reconcile(&api, &mut operator).await;
        cluster::step(&mut api.store());
    }
    assert_eq!(stage(&api), "Complete");
    let refused = api.store().refused.iter().filter(|request| request.contains("/leases")).count();
    assert_eq!(refused, 1, "it is not asked for again and again");
}

#[tokio::test(start_paused = true)]
async fn while_nobody_knows_whose_the_namespace_is_nothing_is_done() {
    let api = Api::default();
    api.store().create(toy(), job());
    api.store().refuses = vec![("GET /apis/coordination.k8s.io", 500)];
    let mut operator = begin(&api, "a/pawl-operator");
    for _ in 0..60 {
        assert_eq!(reconcile(&api, &mut operator).await, Vec::<String>::new());
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    api.store().refuses.clear();
    tokio::time::advance(Duration::from_secs(6)).await;
    assert!(!reconcile(&api, &mut operator).await.is_empty());
    // What was certain holds for a while: renewals fail.
    api.store().refuses = vec![("PUT /apis/coordination.k8s.io", 500)];
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_ne!(some_rounds(&api, &mut operator).await, Vec::<String>::new());
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(some_rounds(&api, &mut operator).await, Vec::<String>::new(), "by now another one may act");
}

/// Who may write Leases in the namespace must not be able to keep its jobs from being run for ever.
#[tokio::test(start_paused = true)]
async fn a_lease_with_an_endless_duration_ends() {
    let api = Api::default();
    api.store().create(toy(), job());
    let spec = json!({"holderIdentity": "nobody", "leaseDurationSeconds": i32::MAX});
    api.store().create(lease(), json!({"metadata": {"name": "pawl-trainingjobs"}, "spec": spec}));
    let mut operator = begin(&api, "a/pawl-operator");
    assert_eq!(reconcile(&api, &mut operator).await, Vec::<String>::new());
    tokio::time::advance(Duration::from_secs(601)).await;
    assert!(!reconcile(&api, &mut operator).await.is_empty());
}

/// A webhook for Leases that is slow, or ends nowhere, held up all jobs of the namespace and, with those that waited,
/// the others.
#[tokio::test(start_paused = true)]
async fn a_slow_lease_holds_up_one_job_at_a_time() {
    let api = Api::default();
    api.store().create(toy(), job());
    let (mut first, stranger) = (begin(&api, "a/pawl-operator"), begin(&api, "b/pawl-operator"));
    reconcile(&api, &mut first).await;
    api.store().slow = "PUT /apis/coordination.k8s.io";
    tokio::time::advance(Duration::from_secs(61)).await;
    let (asks, other) = tokio::join!(wait(&first), wait(&first));
    assert!(asks.0.is_none() && other.0.is_none(), "it may act for some time without a renewal");
    assert!(asks.1 <= Duration::from_secs(10) && other.1.is_zero(), "{asks:?} {other:?}");

    api.store().slow = "GET /apis/coordination.k8s.io";
    let (asks, other) = tokio::join!(wait(&stranger), wait(&stranger));
    assert!(asks.0.is_some() && other.0.is_some(), "whose the namespace is, it does not know");
    assert!(asks.1 <= Duration::from_secs(10) && other.1 < Duration::from_secs(1), "{asks:?} {other:?}");
    assert!(wait(&stranger).await.1.is_zero(), "it is not asked again at once");
    api.store().slow = "";
    tokio::time::advance(Duration::from_secs(6)).await;
    assert!(reconcile(&api, &mut first).await.iter().any(|write| write.contains("/leases")), "it is renewed");
}

/// The answer for the namespace, and how long it took.
async fn wait(operator: &Operator) -> (Option<Duration>, Duration) {
    let began = tokio::time::Instant::now();
    let answer = operator.may_not_act().await;
    (answer, began.elapsed())
}
