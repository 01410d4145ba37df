//! The crash matrix: the operator dies after every write, and the end is the same.

use crate::gang::attempt;
use k8s_openapi::api::core::v1::Pod;
use pawl_api::status::Stage;
use pawl_e2e::job::toy;
use pawl_e2e::local::{differences, pawl_run, timeless};
use pawl_e2e::operator::{account, client, write_kubeconfig};
use pawl_e2e::proxy::Proxy;
use pawl_e2e::scene::stage;
use pawl_e2e::{Operator, Scene, scene};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How old the caches of an operator are that is a reconcile behind.
const BEHIND: Duration = Duration::from_millis(700);

/// The attempts that have a pod which runs or will run, also while it is being deleted. A pod's phase may lag behind
/// the end of its container.
async fn alive(scene: &Scene) -> BTreeSet<String> {
    let ended = |pod: &Pod| {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let containers = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
        let terminated = containers.iter().filter_map(|container| container.state.as_ref()?.terminated.as_ref());
        matches!(phase, Some("Succeeded" | "Failed")) || terminated.count() > 0
    };
    scene.pods("toy").await.iter().filter(|pod| !ended(pod)).map(attempt).collect()
}

/// Runs the job `toy` with an operator that dies after every `every`-th write, behind caches that are `lag` old: its
/// status ends as `pawl run` ends it, which nothing disturbs. It dies nearly as often as it writes.
async fn die(scene: &Scene, every: u64, lag: Duration) {
    // Two pods: then a gang has a token, too. Its last phase is judged by its quality as well.
    let manifest = toy(|job| {
        job["spec"]["trainer"]["replicas"] = 2.into();
        job["spec"]["phases"][2]["numerics"] = "Changed".into();
        job["spec"]["analysis"]["qualityItems"] = 6400.into();
        job["spec"]["gates"] = json!({"validationLossDelta": "0.05"});
    });
    let proxy = Proxy::start(client(&account(scene)).await, lag).await;
    let through = scene.directory.path().join("proxy.kubeconfig");
    write_kubeconfig(&through, "unused", Some(&format!("http://{}", proxy.address)));
    scene.apply(&manifest);

    let mut deaths = 0_u64;
    let began = Instant::now();
    let start = || {
        let operator = Operator::spawn_alone(scene, Some(&through));
        proxy.kill_after(every, operator.process());
        operator
    };
    let mut operator = start();
    loop {
        let gangs = alive(scene).await;
        assert!(gangs.len() <= 1, "two gangs are alive: {gangs:?}");
        let job = scene.job("toy").await;
        let released = job.status.as_ref().is_some_and(|status| status.attempt.is_none());
        if released && matches!(stage(&job), Stage::Complete | Stage::Failed) {
            break;
        }
        if operator.has_ended() {
            deaths += 1;
            operator = start();
        }
        assert!(began.elapsed() < Duration::from_secs(300), "{deaths} deaths; {:?}", proxy.seen().last());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let writes = proxy.writes();
    eprintln!("{deaths} deaths after {writes} writes in {:.0} s", began.elapsed().as_secs_f64());
    // The last life ends with the job; a write that was under way at a death counts, and is followed by none.
    let expected = writes * 9 / 10 / every;
    assert!(deaths + 1 >= expected.max(10), "only {deaths} deaths after {writes} writes");

    let file = scene.directory.path().join("toy.json");
    std::fs::write(&file, manifest.to_string()).unwrap();
    let mut there = timeless(&scene.status("toy").await);
    let mut here = timeless(&pawl_run(scene, &file, &[]));
    // A gang that was stopped and went while no operator looked gives its name to the next one: there may be fewer
    // names than gangs, and never more names than without deaths.
    let [named, undisturbed] = [&there, &here].map(|status| status["status.attempts"].as_u64().unwrap());
    assert!(named <= undisturbed, "{named} attempts after {deaths} deaths, {undisturbed} without");
    // Its status twice, its batch Job and its token: fewer writes of a gang were not tried.
    assert!(writes >= named * 4, "only {writes} writes for {named} attempts");
    for status in [&mut there, &mut here] {
        status.retain(|field, _| field != "status.attempts" && !field.ends_with("].attempt"));
    }
    let differences = differences(&there, &here);
    assert!(differences.is_empty(), "after {deaths} deaths:\n{}", differences.join("\n"));
    assert_eq!(there.get("status.stage"), Some(&Value::from("Complete")));
}

#[test]
fn dying_after_every_write_changes_nothing_and_never_makes_a_second_gang() {
    scene(async |scene| die(scene, 1, Duration::ZERO).await);
}

#[test]
fn nor_does_it_when_caches_are_old() {
    scene(async |scene| die(scene, 1, BEHIND).await);
}

/// It lives long enough to act on what it wrote, and dies in the middle of that.
#[test]
fn nor_does_dying_after_every_third_write() {
    scene(async |scene| die(scene, 3, BEHIND).await);
}
