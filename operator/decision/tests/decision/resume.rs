//! Checkpoints of a training: where they are, what a later attempt expects of them, and how often attempts may fail.

use crate::training::{FACTORS, spec, trained, training};
use crate::world::{World, done, ended, factors, noise, speed};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::checkpoint::{BestCheckpoint, CheckpointRef};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;
use pawl_contract::report::LaunchResult;
use pawl_decision::observed::{AttemptState, Ending};
use serde_json::{Value, json};

/// The running training reports a checkpoint at step 70.
fn report_checkpoint(world: &mut World) -> CheckpointRef {
    let checkpoint = CheckpointRef { name: "00000007-step-70-by-5.1".to_owned(), step: 70, items: 4_480 };
    world.progress(|progress| {
        (progress.step, progress.items, progress.last_checkpoint) = (70, 4_480, Some(checkpoint.clone()));
    });
    world.decide();
    checkpoint
}

/// The cause of the failure is repaired, and the job is suspended and resumed.
fn completes_after_a_repair(world: &mut World) {
    world.trainer = factors(FACTORS);
    world.edit(|spec| spec["suspend"] = json!(true));
    world.run();
    world.edit(|spec| spec["suspend"] = json!(false));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
}

#[test]
fn a_stopped_training_reports_the_checkpoint_from_which_it_resumes() {
    let stopped = |edit: Value| {
        let mut world = training(json!({}));
        world.edit(|spec| spec.as_object_mut().unwrap().extend(edit.as_object().unwrap().clone()));
        let attempt = world.attempts.values_mut().next_back().unwrap();
        let launch = attempt.plan.launches[0].clone();
        let checkpoint = Some(CheckpointRef { name: "00000007-step-70".to_owned(), step: 70, items: 4_480 });
        let best_checkpoint =
            checkpoint.clone().map(|checkpoint| BestCheckpoint { checkpoint, metric: "loss".to_owned(), value: 0.5 });
        attempt.facts.results.push(LaunchResult { checkpoint, best_checkpoint, ..ended(&launch, Outcome::Stopped) });
        attempt.facts.state = AttemptState::Ended(Ending::Stopped);
        world.decide();
        let training = world.status.training?;
        assert_eq!(training.best_checkpoint.map(|best| best.checkpoint), training.last_checkpoint);
        training.last_checkpoint.map(|checkpoint| checkpoint.items)
    };
    assert_eq!(stopped(json!({"suspend": true})), Some(4_480));
    assert_eq!(stopped(json!({})), Some(4_480), "the gang was lost");
    // Another training has other checkpoints.
    assert_eq!(stopped(json!({"suspend": true, "seeds": [7]})), None);
}

#[test]
fn a_job_that_has_a_checkpoint_never_starts_from_the_beginning() {
    let mut world = training(json!({}));
    assert_eq!(world.alive()[0].plan.launches[0].checkpoint.as_ref().unwrap().expected, None, "the first attempt");
    let checkpoint = report_checkpoint(&mut world);
    assert!(world.current_plan().is_some(), "the plan of the running attempt is the same");
    // The gang is lost. The storage of the next one is empty, or another one.
    world.end_alive(Ending::Lost("node lost".to_owned()));
    world.trainer = Box::new(|plan, _| ended(plan, Outcome::CheckpointUnreadable));
    world.run();
    let resumed = trained(&world).pop().unwrap().checkpoint.clone().unwrap();
    assert_eq!(resumed.expected, Some(checkpoint));
    assert_eq!(trained(&world).len(), 1, "it is not retried");
    assert_eq!(world.failure().0, "CheckpointUnreadable");
    let stalled = world.status.conditions.iter().find(|condition| condition.type_ == "Stalled").unwrap();
    assert_eq!((stalled.status.as_str(), stalled.reason.as_str()), ("True", "CheckpointUnreadable"));
    // Restored, it goes on.
    completes_after_a_repair(&mut world);
}

#[test]
fn nor_does_one_whose_attempt_is_created_again_under_its_name() {
    let mut world = training(json!({}));
    let checkpoint = report_checkpoint(&mut world);
    // Its objects were deleted, and the status still names it.
    world.attempts.clear();
    world.trainer = Box::new(|plan, _| ended(plan, Outcome::CheckpointUnreadable));
    world.run();
    let resumed = trained(&world).pop().unwrap().clone();
    assert_eq!(resumed.checkpoint.unwrap().expected, Some(checkpoint), "by {}", resumed.attempt);
    assert_eq!(world.failure().0, "CheckpointUnreadable");
    completes_after_a_repair(&mut world);
}

#[test]
fn a_storage_that_cannot_be_used_stops_the_job_before_a_device_is_held() {
    let mut world = World::new(spec(json!({})), factors(FACTORS));
    world.trainer = Box::new(|plan, _| match (plan.kind, &plan.checkpoint) {
        (LaunchKind::Preflight, Some(_)) => ended(plan, Outcome::CheckpointUnreadable),
        _ => done(plan, 100.0),
    });
    world.run();
    assert!(world.ran.iter().all(|plan| plan.kind == LaunchKind::Preflight), "{:?}", world.ran);
    let (reason, message) = world.failure();
    assert_eq!(reason, "StorageUnusable");
    assert!(message.contains("as planted; set spec.suspend to true and back to false"), "{message}");
    // Repaired, the check is repeated.
    completes_after_a_repair(&mut world);
}

/// A claim that Pawl creates is not mounted by the preflight: the first launch that measures finds that it cannot be
/// used.
#[test]
fn a_storage_that_the_first_measurement_cannot_use_stops_the_job_and_no_phase() {
    let mut world = World::new(spec(json!({"lifecycle": {"maxRestarts": 0}})), factors(FACTORS));
    world.trainer = Box::new(|plan, _| match plan.kind {
        LaunchKind::Measure => ended(plan, Outcome::CheckpointUnreadable),
        _ => done(plan, 100.0),
    });
    world.run();
    let (reason, message) = world.failure();
    assert_eq!(reason, "StorageUnusable", "{message}");
    assert!(message.contains("9 attempts in a row; mend the storage or its mount, then set spec.suspend"), "{message}");
    let open = [PhaseState::Pending, PhaseState::Preflight, PhaseState::Measuring, PhaseState::Retrying];
    assert!(world.status.phases.iter().all(|phase| open.contains(&phase.state)), "{:?}", world.status.phases);
    completes_after_a_repair(&mut world);
}

#[test]
fn a_storage_that_is_full_for_a_while_is_checked_again() {
    let mut world = World::new(spec(json!({})), factors(FACTORS));
    let mut checks = 0;
    let mut trains = factors(FACTORS);
    world.trainer = Box::new(move |plan, progress| {
        let probes = plan.kind == LaunchKind::Preflight && plan.checkpoint.is_some();
        checks += u32::from(probes);
        if probes && checks <= 2 { ended(plan, Outcome::CheckpointUnreadable) } else { trains(plan, progress) }
    });
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
}

#[test]
fn a_job_that_does_not_train_needs_no_storage() {
    let mut world = World::new(spec(json!({"train": {}})), factors(FACTORS));
    world.run();
    assert!(world.ran.iter().all(|plan| plan.checkpoint.is_none()), "{:?}", world.ran);
}

#[test]
fn the_slowest_checkpoint_that_was_reported_is_remembered() {
    let mut world = training(json!({}));
    for (seconds, known) in [(7.2, 8), (90.0, 90), (20.0, 90)] {
        world.progress(|progress| {
            progress.step += 10;
            progress.stop_seconds = Some(seconds);
        });
        world.decide();
        assert_eq!(world.status.training.as_ref().unwrap().stop_seconds, Some(known));
        assert!(world.current_plan().is_some(), "the plan of the running attempt is the same");
    }
    let plan = world.alive()[0].plan.clone();
    assert_eq!(pawl_decision::stop_grace(&world.job.spec, Some(&world.status), &plan).as_secs(), 90);
}

#[test]
fn what_was_deleted_with_its_pods_is_not_expected() {
    for (storage, expected) in [(json!({"storage": "None"}), false), (json!({"storage": "s3://models"}), true)] {
        let mut world = training(json!({}));
        world.edit(|spec| spec["train"]["checkpoint"] = storage.clone());
        report_checkpoint(&mut world);
        world.end_alive(Ending::Lost("node lost".to_owned()));
        world.run();
        assert_eq!(trained(&world).pop().unwrap().checkpoint.as_ref().unwrap().expected.is_some(), expected);
    }
}

#[test]
fn a_job_that_gets_a_storage_starts_anew_and_one_that_changes_it_does_not() {
    let expected_after = |before: &str, after: &str| {
        let mut world = training(json!({"train": {"items": 100_000, "checkpoint": {"storage": before}}}));
        report_checkpoint(&mut world);
        world.end_alive(Ending::Lost("node lost".to_owned()));
        world.edit(|spec| spec["train"]["checkpoint"] = json!({"storage": after}));
        world.run();
        let storage = world.status.training.as_ref().unwrap().storage.clone();
        let expected = trained(&world).pop().unwrap().checkpoint.clone().unwrap().expected;
        (storage.unwrap(), expected.is_some())
    };
    let (storage, expected) = expected_after("None", "s3://models");
    assert!(storage.starts_with("s3://models") && !expected, "its checkpoint was deleted with its pods");
    let (storage, expected) = expected_after("s3://old", "s3://new");
    assert!(storage.starts_with("s3://new") && expected, "it stops where the checkpoint was not copied");
}

#[test]
fn what_was_damaged_is_not_expected() {
    let mut world = training(json!({}));
    let checkpoint = CheckpointRef { name: "00000007-step-70-by-5.1".to_owned(), step: 70, items: 4_480 };
    world.progress(|progress| {
        (progress.step, progress.items, progress.last_checkpoint) = (70, 4_480, Some(checkpoint));
    });
    world.decide();
    // It diverged at 500 items, before the only checkpoint.
    world.trainer = Box::new(|plan, before| match (plan.kind, before, plan.settings.precision) {
        (LaunchKind::Train, _, Some(_)) => ended(plan, Outcome::NonFinite),
        _ => done(plan, speed(&plan.settings, FACTORS) * noise(plan, 0.002)),
    });
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    assert_eq!(trained(&world).pop().unwrap().checkpoint.as_ref().unwrap().expected, None);
}

#[test]
fn infrastructure_failures_resume_with_the_same_settings() {
    let mut world = training(json!({}));
    world.progress(|progress| {
        (progress.items, progress.step) = (5_000, 500);
        progress.last_checkpoint = Some(CheckpointRef { name: "step-400".to_owned(), step: 400, items: 4_000 });
    });
    world.decide();
    world.end_alive(Ending::Lost("preempted".to_owned()));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    let training = world.status.training.as_ref().unwrap();
    assert_eq!((training.restarts, training.last_checkpoint.as_ref().unwrap().items), (1, 4_000));
    assert!(world.status.phases.iter().all(|phase| phase.state == PhaseState::Accepted));
}

/// Training that is interrupted 12 times, whose `maxRestarts` is 2. With `progress`, each attempt writes a checkpoint
/// first.
fn interrupted(ending: &Ending, progress: bool) -> World {
    let mut world = interruptions(ending, progress);
    world.run();
    world
}

/// The same, before it goes on to its end.
fn interruptions(ending: &Ending, progress: bool) -> World {
    let mut world = training(json!({"lifecycle": {"maxRestarts": 2}}));
    for number in 1..=12_u64 {
        if world.status.stage == Stage::Failed {
            break;
        }
        if progress {
            let (step, items) = (number * 10, number * 640);
            world.progress(|progress| {
                (progress.step, progress.items) = (step, items);
                progress.last_checkpoint = Some(CheckpointRef { name: format!("step-{step}"), step, items });
            });
            world.decide();
        }
        world.end_alive(ending.clone());
        world.decide();
        // The longest back-off.
        world.wait(301).decide();
    }
    world
}

#[test]
fn disruptions_are_not_limited_and_a_new_checkpoint_refills_the_limit_on_failures() {
    let reclaimed = Ending::Disrupted("pod toy-0: PreemptionByScheduler".to_owned());
    let crashed = Ending::Lost("pod toy-0: signal 11".to_owned());
    for (ending, progress, expected) in [
        (&reclaimed, true, Stage::Complete),
        (&reclaimed, false, Stage::Complete),
        (&crashed, true, Stage::Complete),
        (&crashed, false, Stage::Failed),
    ] {
        let world = interrupted(ending, progress);
        assert_eq!(world.status.stage, expected, "{ending:?}, progress {progress}");
        if expected == Stage::Complete {
            assert_eq!(world.status.training.as_ref().unwrap().restarts, 12);
        }
    }
}

/// The live results of an agent that was stopped arrived before its pod was seen to be evicted: the job failed with
/// "ended by SIGTERM", and the volume was never named.
#[test]
fn what_befell_a_pod_explains_a_launch_that_was_stopped_by_it() {
    for (outcome, message) in [(Outcome::Stopped, "rank 0: ended by SIGTERM"), (Outcome::LostPeer, "rank 1 is gone")] {
        let mut world = training(json!({"lifecycle": {"maxRestarts": 0}}));
        let attempt = world.attempts.values_mut().next_back().unwrap();
        let launch = attempt.plan.launches[0].clone();
        attempt.facts.results.push(LaunchResult { message: message.to_owned(), ..ended(&launch, outcome) });
        world.end_alive(Ending::Lost("pod toy-1-0 was evicted: volume \"scratch\" is full".to_owned()));
        world.decide();
        let (reason, failure) = world.failure();
        assert_eq!(reason, "RetriesExhausted");
        assert!(failure.contains("volume \"scratch\" is full") && failure.contains(message), "{failure}");
    }
}

#[test]
fn disruptions_without_progress_are_backed_off_and_with_progress_are_not() {
    let reclaimed = Ending::Disrupted("pod toy-0: PreemptionByScheduler".to_owned());
    let backed_off = |progress| {
        let world = interruptions(&reclaimed, progress);
        let events = world.events.iter().filter(|event| event.reason == "Disrupted");
        assert!(events.clone().all(|event| event.message.contains("not counted")));
        (events.count(), world.status.retry.clone().unwrap_or_default().disruptions)
    };
    assert_eq!(backed_off(true), (12, 1), "each begins anew");
    assert_eq!(backed_off(false), (12, 12));
}
