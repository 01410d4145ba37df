//! Infrastructure: lost, vanished, refused, late; suspended, overdue.

use crate::world::{World, done, ended, factors, fuse};
use jiff::SignedDuration;
use pawl_api::status::{PhaseState, Stage, StopCause};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use pawl_decision::action::Action;
use pawl_decision::decide;
use pawl_decision::observed::{AttemptState, Ending, Leaving, Observed, WaitsFor};
use serde_json::json;
use std::cell::Cell;
use std::rc::Rc;

const FACTORS: &[(&str, f64)] = &[("Fuse", 1.3)];

#[test]
fn a_lost_attempt_is_made_again_without_its_finished_launches() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 3);
    world.end_alive(Ending::Lost("node-0 was drained".to_owned()));
    let lost_at = world.now;
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 7, "no finished pair is repeated");
    assert_eq!(world.count_events("AttemptFailed"), 1);
    assert!(world.now.as_second() - lost_at.as_second() >= 10, "it was backed off");
}

/// The status went on to say that it waits before a retry, between launches of other phases and after the end of the
/// job.
#[test]
fn a_failure_is_forgotten_once_its_trial_has_its_verdict() {
    let mut world = World::new(fuse(json!({"train": {"items": 1000}})), factors(FACTORS));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 3);
    world.end_alive(Ending::Lost("node-0 was drained".to_owned()));
    world.run_until(|world| world.status.retry.is_some());
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 4);
    assert_eq!(world.status.retry.as_ref().map(|retry| retry.count), Some(1), "it counts until then");
    world.run_until(|world| world.status.stage == Stage::Training && !world.alive().is_empty());
    assert_eq!(world.status.retry, None);
    world.end_alive(Ending::Lost("node-0 was drained".to_owned()));
    world.run_until(|world| world.status.retry.is_some());
    world.run();
    assert_eq!((world.status.stage, &world.status.retry), (Stage::Complete, &None));
}

#[test]
fn a_back_off_that_a_clock_ahead_wrote_is_not_waited_for() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 3);
    let right = world.now;
    world.now += SignedDuration::from_mins(40);
    world.end_alive(Ending::Lost("node-0 was drained".to_owned()));
    world.run_until(|world| world.status.retry.is_some());
    world.now = right;
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    assert!(world.now.duration_since(right) < SignedDuration::from_mins(30), "{} after {right}", world.now);
}

#[test]
fn a_pair_on_two_machines_does_not_count() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 1);
    world.end_alive(Ending::Lost("node-0 was drained".to_owned()));
    world.placement = "node-1".to_owned();
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    let speedup = world.phase("fuse").speedup.as_ref().unwrap();
    assert_eq!(speedup.pairs, 3);
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 7, "the torn pair is replaced by a whole one");
}

/// The machine is twice as fast after the interruption, and the phase does nothing.
#[test]
fn a_pair_that_an_interruption_has_split_does_not_count() {
    // Without an ending, its objects are deleted, and it is created again under its name.
    for ending in [Some(Ending::Stopped), Some(Ending::Disrupted("node-0 was drained".to_owned())), None] {
        let machine = Rc::new(Cell::new(100.0));
        let now = Rc::clone(&machine);
        let mut world = World::new(
            fuse(json!({"analysis": {"minPairs": 1, "maxPairs": 1}})),
            Box::new(move |plan, _| done(plan, now.get())),
        );
        world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 1);
        if let Some(ending) = ending.clone() {
            world.end_alive(ending);
        } else {
            world.decide();
            world.attempts.clear();
        }
        machine.set(200.0);
        world.run();
        let phase = world.phase("fuse");
        assert_eq!(phase.state, PhaseState::RolledBack, "{ending:?}: {}", phase.message);
        assert_eq!(phase.speedup.as_ref().unwrap().estimate.value(), 1.0, "{ending:?}");
        assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 3);
    }
}

#[test]
fn a_restarted_shell_does_not_wait_and_is_not_counted() {
    let mut world = World::new(fuse(json!({"lifecycle": {"maxRestarts": 0}})), factors(FACTORS));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 3);
    world.end_alive(Ending::Stopped);
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    assert_eq!(world.count_events("AttemptFailed"), 0);
}

#[test]
fn missing_data_is_never_a_verdict_and_the_budget_ends_it() {
    // A launch that is done and did not measure would not measure the next time.
    let outcomes = [(Outcome::Failed, 3), (Outcome::LostPeer, 3), (Outcome::Stopped, 3), (Outcome::Done, 1)];
    for (outcome, failures) in outcomes {
        let mut world = World::new(
            fuse(json!({"lifecycle": {"maxRestarts": 2}, "train": {"items": 10}})),
            Box::new(move |plan, _| match plan.settings.compile {
                Some(_) if plan.kind == LaunchKind::Measure => ended(plan, outcome),
                _ => done(plan, 100.0),
            }),
        );
        world.run();
        assert_eq!(world.verdict("fuse"), (PhaseState::Error, "RetriesExhausted", 0));
        assert_eq!(world.count_events("AttemptFailed"), failures, "{outcome}");
        assert_eq!(world.status.stage, Stage::Complete, "the rest of the job goes on");
    }
}

/// A trainer whose launches of `kind` end with `outcome` and a message with the name of their attempt, as paths in
/// messages have it.
fn breaking(kind: LaunchKind, outcome: Outcome, message: &'static str) -> crate::world::Trainer {
    Box::new(move |plan, _| match plan.kind == kind {
        true => LaunchResult { message: format!("{message}, {}", plan.attempt), ..ended(plan, outcome) },
        false => done(plan, crate::world::speed(&plan.settings, FACTORS)),
    })
}

#[test]
fn a_script_that_has_never_worked_and_fails_in_the_same_way_is_not_started_again_and_again() {
    let lifecycle = json!({"lifecycle": {"maxRestarts": 4}, "train": {"items": 1000}});
    let broken = "rank 0: exit code 1; its last output: IndexError";
    let mut world = World::new(fuse(lifecycle.clone()), breaking(LaunchKind::Measure, Outcome::Failed, broken));
    world.run();
    assert_eq!((world.failure().0, world.count_events("AttemptFailed")), ("BaselineFailed", 3));
    assert!(world.failure().1.contains("3 failures in the same way"), "{:?}", world.failure());

    // The baseline runs nowhere here: once is enough.
    let mut world = World::new(fuse(lifecycle.clone()), breaking(LaunchKind::Measure, Outcome::Unsupported, broken));
    world.run();
    assert_eq!((world.failure().0, world.count_events("AttemptFailed")), ("BaselineUnsupported", 1));

    // Somebody else killed it, which the message does not say: the termination message had no room for it.
    let mut trainer = breaking(LaunchKind::Measure, Outcome::Failed, "");
    let killed = move |plan: &LaunchPlan, before| match trainer(plan, before) {
        LaunchResult { outcome: Outcome::Failed, message, .. } => {
            LaunchResult { message, signal: Some(9), ..ended(plan, Outcome::Failed) }
        }
        well => well,
    };
    let mut world = World::new(fuse(lifecycle.clone()), Box::new(killed));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Error, "RetriesExhausted", 0));
    assert!(world.events.iter().filter(|event| event.message.contains("maxRestarts 4; again after")).count() >= 4);

    // It worked a while ago: what fails now may be a server that is away.
    let mut world = World::new(fuse(lifecycle), breaking(LaunchKind::Train, Outcome::Failed, broken));
    world.run();
    assert_eq!((world.failure().0, world.count_events("AttemptFailed")), ("RetriesExhausted", 5));
}

#[test]
fn a_baseline_without_validation_is_not_trained_twice() {
    let phases = json!([{"name": "fuse", "numerics": "Changed", "settings": {"compile": "Fuse"}}]);
    let mut world = World::new(
        json!({"phases": phases, "gates": {"validationLossDelta": "0.1"}}),
        Box::new(|plan, _| {
            let mut result = done(plan, crate::world::speed(&plan.settings, FACTORS));
            result.measured.validation = None;
            result
        }),
    );
    world.run();
    assert_eq!((world.failure().0, world.count_events("AttemptFailed")), ("BaselineFailed", 1));
    assert!(world.failure().1.contains("reported no validation metric \"loss\""), "{:?}", world.failure());
}

#[test]
fn a_failed_job_is_tried_again_when_its_user_starts_it_again() {
    let mended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let script = std::sync::Arc::clone(&mended);
    let mut world = World::new(
        fuse(json!({})),
        Box::new(move |plan, _| match script.load(std::sync::atomic::Ordering::Relaxed) {
            true => done(plan, crate::world::speed(&plan.settings, FACTORS)),
            false => ended(plan, Outcome::Unsupported),
        }),
    );
    world.run();
    assert_eq!(world.failure().0, "BaselineUnsupported");
    mended.store(true, std::sync::atomic::Ordering::Relaxed);
    world.run();
    assert_eq!(world.status.stage, Stage::Failed, "nothing says that it was mended");
    let newest = format!("job-{}", world.status.attempts);
    assert_eq!(world.attempts.keys().collect::<Vec<_>>(), [&newest], "its logs are kept");
    pawl_decision::retry(&mut world.status);
    world.run();
    assert_eq!((world.status.stage, world.count_events("Reopened")), (Stage::Complete, 1));
    assert!(world.attempts.is_empty(), "{:?}", world.attempts.keys());
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
}

#[test]
fn accepted_settings_that_fail_are_no_verdict_on_the_phase() {
    let trainer = |needle: &'static str| -> crate::world::Trainer {
        Box::new(move |plan, _| {
            let text = serde_json::to_string(&plan.settings).unwrap();
            let control = plan.launch.contains("-a-");
            if control && plan.kind == LaunchKind::Measure && text.contains(needle) && plan.launch.starts_with("flash")
            {
                return ended(plan, Outcome::OutOfMemory);
            }
            done(plan, crate::world::speed(&plan.settings, &[("Fuse", 1.3), ("Flash", 1.2)]))
        })
    };
    let phases = json!({"lifecycle": {"maxRestarts": 1}, "phases": [
        {"name": "fuse", "settings": {"compile": "Fuse"}}, {"name": "flash", "settings": {"attention": "Flash"}}]});
    let mut world = World::new(phases, trainer("Fuse"));
    world.run();
    assert_eq!(world.verdict("flash"), (PhaseState::Error, "ControlFailed", 0));
    let baseline =
        json!({"lifecycle": {"maxRestarts": 1}, "phases": [{"name": "flash", "settings": {"attention": "Flash"}}]});
    let mut world = World::new(baseline, trainer("batchPerGpu"));
    world.run();
    assert_eq!(world.failure().0, "BaselineOutOfMemory");
}

#[test]
fn what_a_node_does_not_accept_is_no_failure_and_is_not_tried_again_at_once() {
    let mut world = World::new(fuse(json!({"lifecycle": {"maxRestarts": 0}})), factors(FACTORS));
    world.decide();
    let before = world.now;
    world.end_alive(Ending::Refused("node n did not accept pod job-1-0: UnexpectedAdmissionError".to_owned()));
    world.decide();
    assert!(world.alive().is_empty(), "it would meet the same node");
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    assert_eq!((world.count_events("Disrupted"), world.count_events("AttemptFailed")), (1, 0));
    assert!(world.now.as_second() - before.as_second() >= 10);
}

/// Trains, and is killed for its memory the first so many times.
fn killed_for_memory(times: usize) -> World {
    let train = json!({"train": {"items": 1000}, "lifecycle": {"maxRestarts": 2}});
    World::new(
        train,
        Box::new(move |plan, before| match plan.kind {
            LaunchKind::Train if before < times => ended(plan, Outcome::HostOutOfMemory),
            _ => done(plan, 100.0),
        }),
    )
}

#[test]
fn a_training_that_is_killed_for_its_memory_resumes_as_often_as_it_may() {
    let mut world = killed_for_memory(2);
    world.run();
    let training = world.status.training.as_ref().unwrap();
    assert_eq!((world.status.stage, training.restarts), (Stage::Complete, 2));
    let mut world = killed_for_memory(9);
    world.run();
    assert_eq!((world.failure().0, world.launches(LaunchKind::Train, "")), ("RetriesExhausted", 3));
    assert!(world.failure().1.contains("HostOutOfMemory as planted"), "{:?}", world.failure());
}

#[test]
fn containers_that_do_not_start_in_time_are_a_failure() {
    let mut world =
        World::new(fuse(json!({"lifecycle": {"schedulingTimeout": "2m", "maxRestarts": 0}})), factors(FACTORS));
    world.decide();
    let (since, message) = (world.now, "ErrImagePull: x".to_owned());
    let attempt = world.attempts.values_mut().next().unwrap();
    attempt.facts.state = AttemptState::Pending { since, message, waits_for: WaitsFor::Containers };
    world.decide();
    world.wait(121).run();
    assert_eq!(world.status.stage, Stage::Failed);
}

#[test]
fn a_suspended_job_releases_its_devices_and_resumes() {
    let mut world = World::new(fuse(json!({"lifecycle": {"activeDeadline": "1h"}})), factors(FACTORS));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 2);
    world.edit(|spec| spec["suspend"] = json!(true));
    world.run();
    assert_eq!((world.status.stage, world.alive().len()), (Stage::Suspended, 0));
    world.wait(100_000).run();
    assert_eq!(world.status.stage, Stage::Suspended, "suspended time does not count");
    world.edit(|spec| spec["suspend"] = json!(false));
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 6);
}

#[test]
fn a_queued_job_waits_without_a_deadline() {
    let spec = json!({"lifecycle": {"activeDeadline": "1h", "schedulingTimeout": "2m"}});
    let mut world = World::new(fuse(spec), factors(FACTORS));
    world.decide();
    let queued = |world: &mut World, state| world.attempts.values_mut().next().unwrap().facts.state = state;
    queued(&mut world, AttemptState::Queued);
    world.decide();
    assert_eq!(world.status.progress, "", "a queue with free quota admits it at once");
    world.wait(3).decide();
    let reconciling = |world: &World| {
        let condition = world.status.conditions.iter().find(|condition| condition.type_ == "Reconciling").unwrap();
        (condition.reason.clone(), condition.message.clone())
    };
    assert_eq!((reconciling(&world).0.as_str(), world.status.progress.as_str()), ("Queued", "queued"));
    let waits = world.status.clone();
    world.wait(100_000).decide();
    assert_eq!(world.status, waits, "nothing is written while it waits");
    let decision = decide(&world.job, &world.status, &world.observed(), world.now);
    assert_eq!((decision.requeue_after, decision.actions.len()), (None, 0));

    let since = world.now;
    queued(&mut world, AttemptState::Pending { since, message: String::new(), waits_for: WaitsFor::Containers });
    world.decide();
    assert_eq!(world.status.attempt.as_ref().unwrap().queued_since, None);
    assert_ne!(reconciling(&world).0, "Queued");
    queued(&mut world, AttemptState::Running);
    let later = |seconds| {
        let now = world.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
        decide(&world.job, &world.status, &world.observed(), now).status.stage
    };
    let active = [later(3_500), later(3_700)];
    assert_eq!(active, [Stage::Preflight, Stage::Failed], "the wait does not count towards lifecycle.activeDeadline");
}

#[test]
fn preemption_by_kueue_is_not_a_failure_and_is_retried_at_once() {
    let mut world = World::new(fuse(json!({"lifecycle": {"maxRestarts": 0}})), factors(FACTORS));
    for _ in 0..3 {
        world.run_until(|world| !world.alive().is_empty());
        let (attempts, now) = (world.status.attempts, world.now);
        world.end_alive(Ending::Preempted);
        world.decide();
        assert_eq!((world.status.attempts, world.now), (attempts + 1, now));
    }
    assert_eq!((world.status.retry.clone(), world.count_events("Preempted")), (None, 3));
    world.run();
    assert_eq!((world.status.stage, world.count_events("AttemptFailed")), (Stage::Complete, 0));
}

/// The actions that are decided while the attempt under way leaves like this, and the cause that the status keeps.
fn leaving(world: &mut World, leaving: Leaving) -> (Vec<Action>, Option<StopCause>) {
    let attempt = world.attempts.values_mut().find(|attempt| attempt.facts.state == AttemptState::Running).unwrap();
    attempt.facts.state = AttemptState::Leaving(leaving);
    let decision = decide(&world.job, &world.status, &world.observed(), world.now);
    let again = decide(&world.job, &decision.status, &world.observed(), world.now);
    assert_eq!(again.actions, decision.actions, "the stop is decided until the attempt has ended");
    (decision.actions, decision.status.attempt.unwrap().stop)
}

#[test]
fn a_broken_gang_is_stopped_by_decision_and_made_again_without_its_finished_launches() {
    let mut world = World::new(fuse(json!({"lifecycle": {"maxRestarts": 1}})), factors(FACTORS));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 3);
    let (attempt, cause) = (world.alive()[0].facts.name.clone(), StopCause::GangBroken);
    let (actions, kept) = leaving(&mut world, Leaving::Broken);
    assert_eq!(
        (actions, kept),
        (vec![Action::Stop { attempt: attempt.clone(), checkpoint: true, cause }], Some(cause))
    );
    let state = |world: &mut World, state| world.attempts.get_mut(&attempt).unwrap().facts.state = state;
    // Its pods take their time: nothing is started before they are gone.
    let decision = decide(&world.job, &world.status, &world.observed(), world.now);
    assert!(!decision.actions.iter().any(|action| matches!(action, Action::Start { .. })), "{:?}", decision.actions);
    world.status = decision.status;
    state(&mut world, AttemptState::Ended(Ending::Lost("pod job-2-1 was deleted".to_owned())));
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 7, "no finished pair is repeated");
    assert_eq!(world.count_events("AttemptFailed"), 1);
    assert!(world.events.iter().any(|event| event.message.contains("pod job-2-1 was deleted")));
}

#[test]
fn a_preempted_gang_is_stopped_by_decision_and_counts_as_no_failure() {
    let mut world = World::new(fuse(json!({"lifecycle": {"maxRestarts": 0}})), factors(FACTORS));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 3);
    let (attempt, cause) = (world.alive()[0].facts.name.clone(), StopCause::Preempted);
    let (actions, kept) = leaving(&mut world, Leaving::Preempted);
    assert_eq!((actions, kept), (vec![Action::Stop { attempt, checkpoint: true, cause }], Some(cause)));
    world.decide();
    assert_eq!(world.alive().len(), 0);
    world.attempts.values_mut().last().unwrap().facts.state = AttemptState::Ended(Ending::Preempted);
    world.run();
    assert_eq!((world.verdict("fuse").0, world.status.retry.clone()), (PhaseState::Accepted, None));
    assert_eq!((world.count_events("Preempted"), world.count_events("AttemptFailed")), (1, 0));
}

#[test]
fn a_preempted_gang_that_is_gone_before_it_was_seen_to_end_counts_as_no_failure() {
    let mut world = World::new(fuse(json!({"lifecycle": {"maxRestarts": 0}})), factors(FACTORS));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 1);
    leaving(&mut world, Leaving::Preempted);
    world.decide();
    world.attempts.clear();
    world.run();
    assert_eq!((world.verdict("fuse").0, world.count_events("AttemptFailed")), (PhaseState::Accepted, 0));
    assert_eq!(world.count_events("Preempted"), 1);
}

#[test]
fn a_broken_gang_that_its_queue_preempts_is_removed_as_a_whole() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 1);
    let state = |world: &mut World, leaving| {
        world.attempts.values_mut().last().unwrap().facts.state = AttemptState::Leaving(leaving);
        let decision = decide(&world.job, &world.status, &world.observed(), world.now);
        world.status = decision.status;
        world.status.attempt.as_ref().unwrap().stop
    };
    let causes =
        [Leaving::Broken, Leaving::Draining, Leaving::Preempted, Leaving::Broken].map(|now| state(&mut world, now));
    let [broken, preempted] = [StopCause::GangBroken, StopCause::Preempted].map(Some);
    assert_eq!(causes, [broken, broken, preempted, preempted]);
}

#[test]
fn the_plan_of_an_attempt_follows_from_the_status_until_a_launch_has_ended() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    assert_eq!(world.current_plan(), None, "there is no attempt");
    for number in 1..=2 {
        world.run_until(|world| world.alive().iter().any(|attempt| attempt.facts.name == format!("job-{number}")));
        let started = world.alive()[0].plan.clone();
        assert_eq!(world.current_plan(), Some(started.clone()), "before it was seen");
        world.decide();
        assert_eq!(world.current_plan(), Some(started), "while it runs");
    }
    world.work();
    world.decide();
    assert_eq!(world.current_plan(), None, "what is left of the plan is another plan");
    world.edit(|spec| spec["phases"] = json!([]));
    assert_eq!(world.current_plan(), None, "another spec has another plan");
}

#[test]
fn a_job_beyond_its_deadline_fails_and_releases_its_devices() {
    let mut world = World::new(fuse(json!({"lifecycle": {"activeDeadline": "90s"}})), factors(FACTORS));
    world.run();
    assert_eq!(world.failure().0, "DeadlineExceeded");
    assert!(world.alive().is_empty(), "{:?}", world.attempts.keys());
}

#[test]
fn a_status_that_is_restored_from_a_copy_starts_nothing_twice() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    world.decide();
    let before = world.status.clone();
    world.run_until(|world| world.status.attempts == 2);
    let started = world.alive()[0].facts.clone();
    // A person restores the status from before the second attempt.
    let first = decide(&world.job, &before, &world.observed(), world.now);
    assert!(first.actions.iter().all(|action| !matches!(action, Action::Stop { .. })), "{:?}", first.actions);
    // With the first attempt ended and its results seen, it takes over what it finds.
    world.status = before;
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 6);
    assert_eq!(started.name, "job-2");
}

#[test]
fn strange_attempts_are_stopped_before_anything_starts() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    let mut other = World::new(json!({}), factors(FACTORS));
    other.decide();
    let mut facts = other.observed().attempts.remove(0);
    facts.plan_hash = "of another spec".to_owned();
    let decision = decide(
        &world.job,
        &world.status,
        &Observed { attempts: vec![facts.clone()], ..Observed::default() },
        world.now,
    );
    let cause = StopCause::NotWanted;
    assert_eq!(decision.actions, [Action::Stop { attempt: "job-1".to_owned(), checkpoint: false, cause }]);
    facts.state = AttemptState::Ended(Ending::Stopped);
    let decision =
        decide(&world.job, &decision.status, &Observed { attempts: vec![facts], ..Observed::default() }, world.now);
    let started =
        decision.actions.iter().any(|action| matches!(action, Action::Start { plan, .. } if plan.attempt == "job-2"));
    assert!(started, "{:?}", decision.actions);
    world.run();
}

#[test]
fn device_time_is_counted_once() {
    let mut world =
        World::new(fuse(json!({"trainer": {"gpusPerReplica": 4}, "cost": {"gpuHour": "2"}})), factors(FACTORS));
    world.run();
    let cost = world.status.cost.as_ref().unwrap();
    // The first attempt checks the job without a GPU.
    let on_gpus = world.ran.iter().filter(|launch| launch.attempt != "job-1").count();
    assert!(on_gpus > 6 && on_gpus < world.ran.len());
    assert_eq!(cost.device_milliseconds, on_gpus as u64 * 36_000 * 4);
    let hours = on_gpus as f64 * 0.04;
    assert!((cost.spent.as_ref().unwrap().value() - 2.0 * hours).abs() < 1e-3);
}

#[test]
fn re_evaluating_a_phase_keeps_the_retries_of_a_phase_with_the_same_name_prefix() {
    for other in ["batch-recompute", "batch-r0"] {
        let mut world = World::new(
            json!({"lifecycle": {"maxRestarts": 3}, "phases": [
                {"name": "batch", "settings": {"compile": "Fuse"}}, {"name": other, "settings": {"attention": "Flash"}}]}),
            Box::new(|plan, before| match plan.settings.attention {
                Some(_) if plan.kind == LaunchKind::Measure && before == 0 => ended(plan, Outcome::Failed),
                _ => done(plan, crate::world::speed(&plan.settings, &[("Fuse", 1.3), ("Flash", 1.2)])),
            }),
        );
        let retries = |world: &World| world.status.retry.as_ref().map_or(0, |retry| retry.count);
        world.run_until(|world| retries(world) == 1 && world.alive().is_empty());
        world.edit(|spec| spec["phases"][0]["minSpeedup"] = json!("1.01"));
        world.decide();
        assert_eq!((world.count_events("Superseded"), world.verdict("batch").0), (1, PhaseState::Accepted), "{other}");
        assert_eq!(retries(&world), 1, "{other}");
        // Its own retries are forgotten when it is judged again itself.
        world.edit(|spec| spec["phases"][1]["pin"] = json!("RolledBack"));
        world.decide();
        world.edit(|spec| spec["phases"][1]["pin"] = json!(null));
        world.decide();
        assert_eq!(retries(&world), 0, "{other}");
    }
}

#[test]
fn a_job_that_somebody_has_to_free_is_stalled_until_then() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    world.decide();
    let stalled = |observed: &Observed| {
        let status = decide(&world.job, &world.status, observed, world.now).status;
        let condition = status.conditions.into_iter().find(|condition| condition.type_ == "Stalled").unwrap();
        (condition.status, condition.reason, condition.message)
    };
    let obstacle = "pod toy-1-0 does not end: delete it".to_owned();
    let blocked = stalled(&Observed { obstacle: obstacle.clone(), ..world.observed() });
    assert_eq!(blocked, ("True".to_owned(), "ActionRequired".to_owned(), obstacle));
    assert_eq!(stalled(&world.observed()).0, "False");
}

#[test]
fn a_report_that_cannot_be_true_is_a_failure_that_counts() {
    type Plant = fn(&mut LaunchResult);
    let planted: [(&str, Plant); 6] = [
        ("itemsPerSecond: 1e100", |result| result.measured.items_per_second = Some(1e100)),
        ("itemsPerSecond: 1e-100", |result| result.measured.items_per_second = Some(1e-100)),
        ("loss: 1e120", |result| result.measured.loss = Some(1e120)),
        ("steps: 18446744073709551615", |result| result.measured.steps = u64::MAX),
        ("items: 0, and its budget is 1000", |result| (result.measured.items, result.measured.steps) = (0, 0)),
        ("checkpoint.items: 18446744073709551615", |result| {
            let (name, step, items) = ("c".to_owned(), 1, u64::MAX);
            result.checkpoint = Some(pawl_contract::checkpoint::CheckpointRef { name, step, items });
        }),
    ];
    for (named, change) in planted {
        let mut world = World::new(
            json!({"train": {"items": 1000}, "lifecycle": {"maxRestarts": 2}}),
            Box::new(move |plan, _| {
                let mut result = done(plan, 100.0);
                if plan.kind == LaunchKind::Train {
                    change(&mut result);
                }
                result
            }),
        );
        world.run();
        let (reason, message) = world.failure();
        assert!(reason == "RetriesExhausted" && message.contains(named), "{named}: {message}");
        assert_eq!(world.launches(LaunchKind::Train, ""), 3, "{named}");
        assert!(world.status.training.as_ref().unwrap().last_checkpoint.is_none(), "{named}");
    }
    // A candidate's speed that no status can hold: it was measured again and again without end.
    let mut world = World::new(
        fuse(json!({"lifecycle": {"maxRestarts": 2}})),
        Box::new(|plan, _| done(plan, if plan.settings.compile.is_some() { 1e100 } else { 100.0 })),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Error, "RetriesExhausted", 0));
}
