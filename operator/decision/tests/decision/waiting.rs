//! Attempts that wait: what is reported of them, for how long, and what replaces them.

use crate::world::{World, factors, fuse};
use jiff::SignedDuration;
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::plan::LaunchKind;
use pawl_decision::action::Action;
use pawl_decision::decide;
use pawl_decision::observed::{AttemptState, Ending, Leaving, WaitsFor};
use serde_json::json;
use std::time::Duration;

const FACTORS: &[(&str, f64)] = &[("Fuse", 1.3)];

#[test]
fn a_gang_that_is_not_scheduled_gives_its_devices_back_and_tries_again() {
    let mut world =
        World::new(fuse(json!({"lifecycle": {"schedulingTimeout": "2m", "maxRestarts": 3}})), factors(FACTORS));
    world.decide();
    let since = world.now;
    let attempt = world.attempts.values_mut().next().unwrap();
    let message = "0/3 nodes are available".to_owned();
    attempt.facts.state = AttemptState::Pending { since, message, waits_for: WaitsFor::MoreDevices };
    world.decide();
    world.wait(119).decide();
    assert_eq!(world.alive().len(), 1, "not yet");
    world.wait(2).decide();
    assert_eq!(world.alive().len(), 0, "stopped");
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    assert_eq!((world.count_events("AttemptFailed"), world.count_events("Disrupted")), (0, 1));
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
}

#[test]
fn a_gang_without_any_device_waits_without_limit() {
    let mut world =
        World::new(fuse(json!({"lifecycle": {"schedulingTimeout": "2m", "maxRestarts": 0}})), factors(FACTORS));
    world.decide();
    let created = world.now;
    let state = |world: &mut World, waits_for| {
        let pending =
            AttemptState::Pending { since: created, message: "0/3 nodes are available".to_owned(), waits_for };
        world.attempts.values_mut().next().unwrap().facts.state = pending;
    };
    state(&mut world, WaitsFor::Devices);
    world.wait(3).decide();
    let waits = world.status.clone();
    world.wait(100_000).decide();
    assert_eq!((world.alive().len(), &world.status), (1, &waits), "it waits, and nothing is written");
    let reconciling = world.status.conditions.iter().find(|condition| condition.type_ == "Reconciling").unwrap();
    assert_eq!(reconciling.reason, "Queued");

    // From the time at which the first pod holds devices, the others have 2 minutes.
    state(&mut world, WaitsFor::MoreDevices);
    world.decide();
    world.wait(119).decide();
    assert_eq!(world.alive().len(), 1);
    world.wait(2).decide();
    assert_eq!(world.alive().len(), 0);
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
}

/// Reason and message of the condition `Reconciling`.
fn reconciling(world: &World) -> (String, String) {
    let conditions = &world.status.conditions;
    let condition = conditions.iter().find(|condition| condition.type_ == "Reconciling").unwrap();
    (condition.reason.clone(), condition.message.clone())
}

#[test]
fn what_a_job_waits_for_is_reported_in_the_words_of_whom_it_waits_for() {
    let waits = |waits_for| AttemptState::Pending {
        since: "2026-01-01T00:00:00Z".parse().unwrap(),
        // Nobody says why pods are not created.
        message: if waits_for == WaitsFor::Pods { "" } else { "0 of 1 pods run; what Kubernetes says" }.to_owned(),
        waits_for,
    };
    for (state, reason, words) in [
        (AttemptState::Queued, "Queued", "in the queue research"),
        (waits(WaitsFor::Pods), "Queued", "kubectl describe job job-1"),
        (waits(WaitsFor::Quota), "Queued", "waits for quota: 0 of 1 pods run; what Kubernetes says"),
        (waits(WaitsFor::Devices), "Queued", "free devices: 0 of 1 pods run; what Kubernetes says"),
        (waits(WaitsFor::Admission), "PodsRefused", "refuses the pods of job-1: 0 of 1 pods run; what Kubernetes says"),
        (waits(WaitsFor::Containers), "GangPending", "job-1: 0 of 1 pods run; what Kubernetes says"),
    ] {
        let mut world = World::new(fuse(json!({})), factors(FACTORS));
        let queue = ("kueue.x-k8s.io/queue-name".to_owned(), "research".to_owned());
        world.job.metadata.labels = Some([queue].into());
        world.decide();
        world.attempts.values_mut().next().unwrap().facts.state = state.clone();
        // The Job controller may have many pods to create.
        let uncreated = matches!(state, AttemptState::Pending { waits_for: WaitsFor::Pods, .. });
        if uncreated {
            world.wait(59).decide();
            assert_eq!(reconciling(&world).0, "Preflight");
        }
        world.wait(3).decide();
        let told = reconciling(&world);
        assert!(told.0 == reason && told.1.contains(words), "{state:?}: {told:?}");
        assert!(told.1.contains("; remedy: "), "{state:?}: {told:?}");
    }
}

/// The scheduler may have much to say, and many trials may wait at a time.
#[test]
fn the_remedy_is_not_cut_however_long_the_cause_is() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    world.decide();
    let (since, message) = (world.now, "0/3 nodes are available, ".repeat(40));
    world.attempts.values_mut().next().unwrap().facts.state =
        AttemptState::Pending { since, message, waits_for: WaitsFor::Devices };
    world.wait(3).decide();
    let (_, message) = reconciling(&world);
    assert!(message.len() <= 640 && message.ends_with("correct spec.trainer"), "{message}");
}

/// A volume that cannot be mounted is in events of the kubelet only.
#[test]
fn pods_that_do_not_start_are_reported_after_a_minute_although_nothing_is_known_of_the_cause() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    world.decide();
    let since = world.now;
    world.attempts.values_mut().next().unwrap().facts.state =
        AttemptState::Pending { since, message: String::new(), waits_for: WaitsFor::Containers };
    world.wait(59).decide();
    assert_eq!(reconciling(&world).0, "Preflight");
    world.wait(1).decide();
    let (reason, message) = reconciling(&world);
    assert!(
        reason == "GangPending" && message.contains("kubectl describe pods -l pawl.dev/attempt=job-1"),
        "{message}"
    );
}

#[test]
fn pods_that_the_api_server_refuses_do_not_wait_without_limit() {
    let mut world =
        World::new(fuse(json!({"lifecycle": {"schedulingTimeout": "2m", "maxRestarts": 0}})), factors(FACTORS));
    world.decide();
    let (since, message) = (world.now, "serviceaccount \"x\" not found".to_owned());
    let attempt = world.attempts.values_mut().next().unwrap();
    attempt.facts.state = AttemptState::Pending { since, message, waits_for: WaitsFor::Admission };
    world.decide();
    world.wait(121).run();
    assert_eq!(world.status.stage, Stage::Failed);
}

#[test]
fn between_two_attempts_the_condition_has_the_failure_and_the_time_of_the_next() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 3);
    world.end_alive(Ending::Refused("node-0 did not accept pod job-1-0".to_owned()));
    world.run_until(|world| world.status.retry.is_some());
    let (reason, message) = reconciling(&world);
    assert_eq!(reason, "BackOff");
    let until = world.status.retry.as_ref().unwrap().not_before.clone().unwrap();
    assert!(message.contains(&until) && message.contains("did not accept"), "{message}");
    world.run();
    assert_ne!(reconciling(&world).0, "BackOff");
}

#[test]
fn a_gang_that_waits_with_an_earlier_template_is_replaced_and_one_that_runs_is_not() {
    let mut world = World::new(fuse(json!({"lifecycle": {"maxRestarts": 0}})), factors(FACTORS));
    world.decide();
    world.outdated = vec!["job-1".to_owned()];
    let needed = |world: &World| world.status.conditions.iter().any(|known| known.type_ == "RestartNeeded");
    world.decide();
    assert!(needed(&world) && world.alive()[0].facts.name == "job-1");
    world.decide();
    assert_eq!(world.count_events("TemplateChanged"), 1);

    for state in [
        AttemptState::Queued,
        AttemptState::Pending { since: world.now, message: String::new(), waits_for: WaitsFor::MoreDevices },
    ] {
        let before = world.status.attempts;
        let name = format!("job-{before}");
        world.attempts.get_mut(&name).unwrap().facts.state = state;
        world.outdated = vec![name];
        world.decide();
        world.decide();
        assert_eq!(world.status.attempts, before + 1);
    }
    world.outdated.clear();
    world.run();
    assert_eq!((world.count_events("AttemptFailed"), world.count_events("TemplateChanged")), (0, 3));
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
}

#[test]
fn an_attempt_that_its_user_starts_again_is_replaced_once() {
    let mut world = World::new(json!({"train": {"items": 1000}, "lifecycle": {"maxRestarts": 0}}), factors(&[]));
    world.run_until(|world| world.status.stage == Stage::Training && !world.alive().is_empty());
    let name = world.alive()[0].facts.name.clone();
    let restart = pawl_api::restart_of(world.status.attempt.as_ref().unwrap());
    world.job.metadata.annotations = Some([(pawl_api::RESTART.to_owned(), format!("job-0/x,{restart}"))].into());
    let decision = decide(&world.job, &world.status, &world.observed(), world.now);
    let stopped =
        |action: &Action| matches!(action, Action::Stop { attempt, checkpoint: true, .. } if *attempt == name);
    assert!(decision.actions.iter().any(stopped), "after a checkpoint: {:?}", decision.actions);
    let before = world.status.attempts;
    world.run();
    assert_eq!((world.status.stage, world.status.attempts), (Stage::Complete, before + 1));
    assert_eq!((world.count_events("Restarted"), world.count_events("AttemptFailed")), (1, 0));
}

/// A request to stop the last of them would come too late, or cut short how it ends.
#[test]
fn ranks_that_end_one_after_another_are_not_stopped_unless_one_stays_behind() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    let all_ran = |world: &World| world.alive().iter().any(|it| it.facts.results.len() == it.plan.launches.len());
    world.run_until(all_ran);
    let since = world.now;
    let attempt = world.attempts.values_mut().last().unwrap();
    attempt.facts.state = AttemptState::Leaving(Leaving::Ending { since });
    let after = |seconds| {
        let now = since + SignedDuration::from_secs(seconds);
        let decision = decide(&world.job, &world.status, &world.observed(), now);
        (decision.actions.iter().any(|action| matches!(action, Action::Stop { .. })), decision.requeue_after)
    };
    let (stopped, again) = after(1);
    assert!(!stopped && again.is_some_and(|again| again <= Duration::from_secs(30)), "{again:?}");
    assert!(!after(29).0);
    assert!(after(31).0, "one that stays behind holds the devices");
}
