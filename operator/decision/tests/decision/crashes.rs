//! A program that fails by itself in the same way again, while others do not: evidence about its settings.

use crate::search::{of_search, of_trials, rate, stage, states, trained};
use crate::world::{Trainer, World, done, ended, fuse, speed};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::exit::Outcome;
use pawl_contract::fingerprint::Fingerprint;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use pawl_decision::observed::Ending;
use serde_json::{Value, json};

const FACTORS: &[(&str, f64)] = &[("Fuse", 1.3), ("Flash", 1.2)];

/// An exception of the script, as the agent reports it.
fn crash(plan: &LaunchPlan, text: &str) -> LaunchResult {
    let (exit_code, fingerprint) = (Some(1), Some(Fingerprint::of(text)));
    LaunchResult { message: format!("rank 0: {text}"), exit_code, fingerprint, ..ended(plan, Outcome::Failed) }
}

/// Fails the launches that `breaks` selects with an exception whose numbers differ each time.
fn crashing(breaks: impl Fn(&LaunchPlan) -> bool + 'static) -> Trainer {
    let mut failures = 0;
    Box::new(move |plan, _| {
        if !breaks(plan) {
            return done(plan, speed(&plan.settings, FACTORS));
        }
        failures += 1;
        crash(plan, &format!("torch._dynamo.exc.Unsupported: call_method of 0x7f{failures}a0 in {}", plan.attempt))
    })
}

fn has(plan: &LaunchPlan, needle: &str) -> bool {
    serde_json::to_string(&plan.settings).unwrap().contains(needle)
}

fn measured(kind: LaunchKind) -> impl Fn(&LaunchPlan) -> bool {
    move |plan| plan.kind == kind && has(plan, "Fuse")
}

/// How many launches of the kind ran whose settings contain `needle`.
fn ran(world: &World, kind: LaunchKind, needle: &str) -> usize {
    world.ran.iter().filter(|plan| plan.kind == kind && has(plan, needle)).count()
}

#[test]
fn a_candidate_that_crashes_twice_in_the_same_way_is_rolled_back() {
    let after = json!({"name": "flash", "settings": {"attention": "Flash"}});
    let before = json!({"name": "flash", "minSpeedup": "0.9", "settings": {"attention": "Flash"}});
    let crashes = json!({"name": "fuse", "settings": {"compile": "Fuse"}});
    for phases in [json!([crashes, after]), json!([before, crashes])] {
        let mut world =
            World::new(json!({"phases": phases, "train": {"items": 1000}}), crashing(measured(LaunchKind::Measure)));
        let start = world.now;
        world.run();
        assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "Crashed", 0), "{}", world.phase("fuse").message);
        assert_eq!(ran(&world, LaunchKind::Measure, "Fuse"), 2, "once more, and no more");
        assert!(world.phase("fuse").message.contains("2 failures in the same way"), "{}", world.phase("fuse").message);
        assert_eq!((world.verdict("flash").0, world.status.stage), (PhaseState::Accepted, Stage::Complete));
        let minutes = world.now.duration_since(start).as_secs_f64() / 60.0;
        let launches = world.ran.len() as f64 * 36.0 / 60.0;
        assert!(minutes - launches < 2.0, "{minutes} minutes, {launches} of them in launches");
    }
}

#[test]
fn a_candidate_that_crashes_in_its_check_or_its_quality_launch_is_rolled_back() {
    let quality = json!({"gates": {"validationLossDelta": "0.1"}, "train": {"items": 1000}, "phases": [
        {"name": "fuse", "numerics": "Changed", "settings": {"compile": "Fuse"}}]});
    for (spec, kind) in [(quality.clone(), LaunchKind::Quality), (quality, LaunchKind::Preflight)] {
        let mut world = World::new(spec, crashing(measured(kind)));
        world.run();
        assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "Crashed", 0), "{kind:?}");
        assert_eq!((ran(&world, kind, "Fuse"), world.status.stage), (2, Stage::Complete), "{kind:?}");
    }
}

#[test]
fn what_happens_to_machines_is_no_evidence() {
    type End = fn(&LaunchPlan) -> LaunchResult;
    let ends: [End; 4] = [
        |plan| LaunchResult { signal: Some(9), ..ended(plan, Outcome::Failed) },
        |plan| LaunchResult { exit_code: Some(40), ..ended(plan, Outcome::LostPeer) },
        |plan| LaunchResult { exit_code: Some(1), ..ended(plan, Outcome::Failed) },
        |plan| LaunchResult { exit_code: Some(30), ..ended(plan, Outcome::Stopped) },
    ];
    for end in ends {
        let trainer =
            move |plan: &LaunchPlan, before| match plan.launch.starts_with("fuse") && plan.launch.contains("-p0-b-") {
                true if before < 4 => end(plan),
                _ => done(plan, speed(&plan.settings, FACTORS)),
            };
        let mut world = World::new(fuse(json!({})), Box::new(trainer));
        world.run();
        assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    }
    // A node that is lost after a crash neither counts as one nor excuses it.
    let mut world = World::new(fuse(json!({})), crashing(measured(LaunchKind::Measure)));
    world.run_until(|world| world.status.retry.is_some());
    for _ in 0..3 {
        world.run_until(|world| !world.alive().is_empty());
        world.end_alive(Ending::Disrupted("node-0 was drained".to_owned()));
        world.decide();
    }
    assert_eq!(world.verdict("fuse").0, PhaseState::Measuring);
    world.run();
    assert_eq!((world.verdict("fuse").1, ran(&world, LaunchKind::Measure, "Fuse")), ("Crashed", 2));
}

#[test]
fn failures_that_differ_are_repeated() {
    let mut failures = 0;
    let trainer = move |plan: &LaunchPlan, _| {
        if plan.kind != LaunchKind::Measure || !has(plan, "Fuse") {
            return done(plan, 100.0);
        }
        failures += 1;
        crash(plan, ["ConnectionResetError", "TimeoutError: read"][failures % 2])
    };
    let mut world = World::new(fuse(json!({"lifecycle": {"maxRestarts": 4}})), Box::new(trainer));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Error, "RetriesExhausted", 0));
    assert_eq!(world.count_events("AttemptFailed"), 5);
}

#[test]
fn a_baseline_that_crashes_twice_in_the_same_way_fails_the_job() {
    let spec = json!({"gates": {"validationLossDelta": "0.1"}, "phases": [
        {"name": "fuse", "numerics": "Changed", "settings": {"compile": "Fuse"}}]});
    let mut world = World::new(spec, crashing(|plan| plan.kind == LaunchKind::Quality));
    world.run();
    assert_eq!(world.failure().0, "BaselineFailed", "{}", world.failure().1);
    assert_eq!(world.launches(LaunchKind::Quality, ""), 2);
    // One that runs out of memory although it has been measured before.
    let short = move |plan: &LaunchPlan, _| match plan.kind {
        LaunchKind::Quality => ended(plan, Outcome::OutOfMemory),
        _ => done(plan, speed(&plan.settings, FACTORS)),
    };
    let spec = json!({"gates": {"validationLossDelta": "0.1"}, "phases": [
        {"name": "fuse", "numerics": "Changed", "settings": {"compile": "Fuse"}}]});
    let mut world = World::new(spec, Box::new(short));
    world.run();
    assert_eq!((world.failure().0, world.launches(LaunchKind::Quality, "")), ("BaselineOutOfMemory", 2));
}

#[test]
fn phases_that_crash_together_lose_the_newest() {
    let phases = json!([
        {"name": "fuse", "settings": {"compile": "Fuse"}}, {"name": "flash", "settings": {"attention": "Flash"}}]);
    let together = |plan: &LaunchPlan| plan.launch.starts_with("bundle") && has(plan, "Fuse") && has(plan, "Flash");
    let spec = json!({"phases": phases, "gates": {"overallSpeedup": "1.01"}, "train": {"items": 1000}});
    let mut world = World::new(spec, crashing(together));
    world.run();
    assert_eq!(world.verdict("flash"), (PhaseState::RolledBack, "Crashed", 0));
    assert_eq!((world.verdict("fuse").0, world.status.stage), (PhaseState::Accepted, Stage::Complete));
}

/// A search over the learning rate alone, of 1e-6 to 1, where what `breaks` selects crashes.
fn searched(changes: Value, breaks: fn(&LaunchPlan) -> bool) -> World {
    let mut of_rates = stage(json!({
        "sampler": "TPE", "trials": 40, "finalists": 1,
        "parameters": [{"name": "learningRate", "min": "1e-6", "max": "1", "scale": "Log"}],
    }));
    of_rates.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let spec = json!({
        "settings": {"batchPerGpu": 8, "learningRate": "1e-4"}, "search": [of_rates], "train": {"items": 1000}});
    let trainer = move |plan: &LaunchPlan, _| match plan.kind {
        LaunchKind::Search if breaks(plan) => crash(plan, "ValueError: the loss has no gradient"),
        _ => trained(plan),
    };
    let mut world = World::new(spec, Box::new(trainer));
    world.run();
    world
}

#[test]
fn a_search_learns_where_its_script_crashes() {
    let start = World::new(json!({}), crashing(|_| false)).now;
    let world = searched(json!({}), |plan| rate(plan) > 1e-2);
    assert_eq!(world.status.stage, Stage::Complete);
    let states = states(&world);
    let crashed = states.matches('X').count();
    assert!(crashed > 0 && states.chars().all(|state| "CX".contains(state)), "{states}");
    assert_eq!(of_trials(&world).len(), 40 + crashed, "each crash is repeated once");
    assert!(states[20..].matches('X').count() <= 3, "{states}");
    let hours = world.now.duration_since(start).as_secs_f64() / 3600.0;
    assert!(hours < 2.0, "{hours} hours");
    assert_eq!(world.count_events("TrialInfeasible"), crashed);
}

#[test]
fn a_trial_that_hangs_twice_is_infeasible() {
    let hangs = |plan: &LaunchPlan, _| match plan.kind {
        LaunchKind::Search if plan.launch.contains("-t3-") => ended(plan, Outcome::Hang),
        _ => trained(plan),
    };
    let mut world = World::new(crate::search::spec(json!([stage(json!({"finalists": 1}))])), Box::new(hangs));
    world.run();
    assert_eq!((states(&world).as_str(), of_trials(&world).len()), ("CCCXCCCC", 8 + 1));
}

#[test]
fn accepted_settings_that_crash_do_not_end_a_search_but_a_script_that_always_does_ends_it() {
    let world = searched(json!({}), |plan| rate(plan) < 1e-3);
    let states = states(&world);
    assert!(states.starts_with('X') && states.contains('C'), "{states}");
    assert_eq!(world.status.stage, Stage::Complete);

    let world = searched(json!({}), |_| true);
    assert_eq!(world.failure().0, "SearchFailed");
    assert_eq!((of_search(&world).len(), crate::search::trials(&world).len()), (5 * 2, 0), "{}", world.failure().1);
}
