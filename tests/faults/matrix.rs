//! The crash matrix: the operator dies after every write, and the end is the same.

use crate::gang::attempt;
use k8s_openapi::api::core::v1::Pod;
use pawl_api::status::{PhaseState, Stage};
use pawl_e2e::job::{status, toy, verdicts};
use pawl_e2e::operator::{account, client, write_kubeconfig};
use pawl_e2e::proxy::Proxy;
use pawl_e2e::scene::stage;
use pawl_e2e::{Operator, Scene, scene};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The attempts that have a pod which runs or will run. A pod's phase may lag behind the end of its container.
async fn alive(scene: &Scene) -> BTreeSet<String> {
    let ended = |pod: &Pod| {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let containers = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
        let terminated = containers.iter().filter_map(|container| container.state.as_ref()?.terminated.as_ref());
        matches!(phase, Some("Succeeded" | "Failed"))
            || terminated.count() > 0
            || pod.metadata.deletion_timestamp.is_some()
    };
    scene.pods("toy").await.iter().filter(|pod| !ended(pod)).map(attempt).collect()
}

/// Runs the job `toy` with an operator that dies after every write, behind caches that are `lag` old.
async fn die_after_every_write(scene: &Scene, lag: Duration) {
    let proxy = Proxy::start(client(&account(scene)).await, lag).await;
    let through = scene.directory.path().join("proxy.kubeconfig");
    write_kubeconfig(&through, "unused", Some(&format!("http://{}", proxy.address)));
    scene.apply(&toy(|_| {}));

    let mut deaths = 0;
    let began = Instant::now();
    let mut operator = Operator::spawn_alone(scene, Some(&through));
    proxy.kill_after(1, operator.process());
    let done = loop {
        let gangs = alive(scene).await;
        assert!(gangs.len() <= 1, "two gangs are alive: {gangs:?}");
        let job = scene.job("toy").await;
        if matches!(stage(&job), Stage::Complete | Stage::Failed) {
            break job;
        }
        if operator.has_ended() {
            deaths += 1;
            operator = Operator::spawn_alone(scene, Some(&through));
            proxy.kill_after(1, operator.process());
        }
        assert!(began.elapsed() < Duration::from_secs(600), "{deaths} deaths; {:?}", proxy.seen().last());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let ends: Vec<_> = verdicts(status(&done)).into_iter().map(|(_, state, _, rung)| (state, rung)).collect();
    let expected = [(PhaseState::Accepted, 0), (PhaseState::RolledBack, 0), (PhaseState::Accepted, 1)];
    assert_eq!(ends, expected, "after {deaths} deaths: {:?}", verdicts(status(&done)));
    eprintln!("{deaths} deaths after {} writes in {:.0} s", proxy.writes(), began.elapsed().as_secs_f64());
    assert!(deaths >= 40, "only {deaths} writes were followed by a death");
}

#[test]
fn dying_after_every_write_changes_nothing_and_never_makes_a_second_gang() {
    scene(async |scene| die_after_every_write(scene, Duration::ZERO).await);
}

#[test]
fn nor_does_it_when_caches_are_old() {
    scene(async |scene| die_after_every_write(scene, Duration::from_millis(700)).await);
}
