//! What is refused before anything is measured: by the specification, and by the trainer's own check.

use crate::world::{World, done, ended, factors, fuse};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::attempt::AttemptName;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;
use serde_json::json;

const FACTORS: &[(&str, f64)] = &[("Fuse", 1.3)];

#[test]
fn the_plan_is_refused_by_name() {
    let mut world = World::new(
        fuse(json!({})),
        Box::new(|plan, _| match plan.settings.compile {
            Some(_) => pawl_contract::report::LaunchResult {
                message: "settings.compileScope.exclude: no scope \"foo\"".to_owned(),
                ..ended(plan, Outcome::InvalidPlan)
            },
            None => done(plan, 1.0),
        }),
    );
    world.run();
    assert_eq!(world.failure().0, "InvalidPlan");
    assert!(world.failure().1.contains("compileScope.exclude"));
    assert_eq!(world.launches(LaunchKind::Measure, ""), 0);
    // A changed spec is retried.
    world.edit(|spec| spec["phases"] = json!([]));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
}

/// The agent takes the first two attempts for those before which no launch of the job has run.
#[test]
fn the_first_attempt_checks_settings_and_the_second_one_is_the_first_that_measures() {
    let mut world = World::new(fuse(json!({})), factors(FACTORS));
    world.run();
    let of = |number: u32| {
        let launches = world.ran.iter().filter(move |launch| AttemptName::number_of(&launch.attempt) == number);
        launches.map(|launch| launch.kind).collect::<Vec<_>>()
    };
    assert!(!of(1).is_empty() && of(1).iter().all(|kind| *kind == LaunchKind::Preflight), "{:?}", of(1));
    assert!(of(2).contains(&LaunchKind::Measure), "{:?}", of(2));
}

/// A job whose baseline or phases the trainer refuses: `wrong` says why, by a part of the settings.
fn refused(spec: serde_json::Value, wrong: &'static [(&'static str, &'static str)]) -> World {
    let trainer = Box::new(move |plan: &pawl_contract::plan::LaunchPlan, _| {
        let text = serde_json::to_string(&plan.settings).unwrap();
        match wrong.iter().find(|(part, _)| text.contains(part)) {
            Some((_, message)) => pawl_contract::report::LaunchResult {
                message: (*message).to_owned(),
                ..ended(plan, Outcome::InvalidPlan)
            },
            None => done(plan, 1.0),
        }
    });
    let mut world = World::new(spec, trainer);
    world.run();
    assert_eq!(world.launches(LaunchKind::Measure, ""), 0);
    world
}

#[test]
fn the_preflight_lists_all_problems_of_all_phases_at_once() {
    let spec = json!({"phases": [
        {"name": "fuse", "settings": {"compile": "Fuse"}},
        {"name": "clip", "settings": {"gradientClip": "0"}},
        {"name": "half", "settings": {"precision": "fp16"},
         "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 4}},
                       {"when": ["NonFinite"], "settings": {"precision": "bf16"}}]},
    ]});
    let mut world = refused(
        spec.clone(),
        &[
            ("Fuse", "settings.compile: Fuse: unknown"),
            ("gradientClip", "settings.gradientClip: 0: must be above 0"),
            ("bf16", "settings.precision: bf16: no such device"),
            ("fp16", "settings.precision: fp16: no loss scale"),
        ],
    );
    let (reason, message) = world.failure();
    assert_eq!(reason, "InvalidPlan");
    let all = "phase fuse: settings.compile: Fuse: unknown; phase clip: settings.gradientClip: 0: must be above 0; \
               phase half: settings.precision: fp16: no loss scale; \
               phase half, fallback 2: settings.precision: bf16: no such device";
    assert_eq!(message, all);
    for phase in ["fuse", "clip", "half"] {
        let of_phase = |event: &&pawl_decision::action::Event| event.phase.as_deref() == Some(phase);
        assert!(world.events.iter().filter(of_phase).any(|event| event.reason == "InvalidPlan"), "{phase}");
    }
    // What is right by now is checked again; what is still wrong is not.
    let before = world.launches(LaunchKind::Preflight, "");
    world.edit(|spec| {
        spec["phases"][0]["settings"] = json!({"compile": "Graph"});
        spec["phases"].as_array_mut().unwrap().truncate(2);
    });
    world.run();
    assert_eq!(world.failure().1, "phase clip: settings.gradientClip: 0: must be above 0");
    assert_eq!(world.launches(LaunchKind::Preflight, "") - before, 1);
    world.edit(|spec| spec["phases"][1]["settings"] = json!({"gradientClip": "1"}));
    world.trainer = factors(&[]);
    world.run();
    assert_eq!((world.status.stage, world.status.invalid.len()), (Stage::Complete, 0));
}

#[test]
fn a_problem_of_the_baseline_is_not_repeated_for_every_phase() {
    let phases =
        json!([{"name": "a", "settings": {"compile": "Fuse"}}, {"name": "b", "settings": {"precision": "bf16"}}]);
    let world = refused(json!({"phases": phases}), &[("batchPerGpu", "workload.config.presett: unknown field")]);
    assert_eq!(world.failure().1, "baseline: workload.config.presett: unknown field");
}

#[test]
fn more_problems_than_a_message_holds_are_counted() {
    let phase = |number: u32| json!({"name": format!("phase-{number}"), "settings": {"loaderWorkers": number}});
    let phases: Vec<_> = (1..=20).map(phase).collect();
    let world = refused(
        json!({"phases": phases}),
        &[("loaderWorkers", "settings.loaderWorkers: too many of them, and more words")],
    );
    let message = world.failure().1;
    assert!(message.len() <= 640 && message.contains("phase phase-1: settings.loaderWorkers"), "{message}");
    assert!(message.ends_with("more") && message.contains("; and "), "{message}");
}

#[test]
fn batches_that_do_not_divide_are_all_listed() {
    let mut world = World::new(
        json!({"settings": {"batchPerGpu": 8, "globalBatch": 96}, "phases": [
            {"name": "odd", "settings": {"batchPerGpu": 20}}, {"name": "even", "settings": {"batchPerGpu": 16}},
            {"name": "odder", "settings": {"batchPerGpu": 28}}]}),
        factors(FACTORS),
    );
    world.run();
    let (reason, message) = world.failure();
    assert_eq!(reason, "BatchMismatch");
    assert!(message.contains("phase odd: ") && message.contains("phase odder: "), "{message}");
    assert!(!message.contains("phase even"), "{message}");
}

#[test]
fn invalid_specs_fail_before_any_launch() {
    for (spec, reason, part) in [
        (json!({"settings": {"batchPerGpu": 8, "globalBatch": 12}}), "BatchMismatch", "multiple of 8"),
        (json!({"settings": {"batchPerGpu": 0}}), "BatchMismatch", "batchPerGpu: 0"),
        (fuse(json!({"trainer": {"replicas": 0}})), "BatchMismatch", "replicas"),
    ] {
        let mut world = World::new(spec, factors(FACTORS));
        world.run();
        assert_eq!(world.failure().0, reason);
        assert!(world.failure().1.contains(part), "{}", world.failure().1);
        assert_eq!(world.ran.len(), 0);
    }
}

/// The messages of the events that started the attempts of a preflight with 21 checks, of which the first fails
/// `failures` times.
fn attempts_of_many_checks(failures: usize) -> Vec<String> {
    let phase = |number| json!({"name": format!("workers-{number}"), "settings": {"loaderWorkers": 2 + number}});
    let phases: Vec<_> = (0..20).map(phase).collect();
    let trainer = move |plan: &pawl_contract::plan::LaunchPlan, before| match plan.launch.starts_with("baseline-check")
    {
        true if before < failures => ended(plan, Outcome::Failed),
        _ => done(plan, 1.0),
    };
    let mut world = World::new(json!({"phases": phases}), Box::new(trainer));
    world.run_until(|world| world.launches(LaunchKind::Measure, "") > 0);
    assert_eq!(
        world.launches(LaunchKind::Preflight, ""),
        21 + failures + 1,
        "each check once, and that of the first phase"
    );
    let events = world.events.iter().filter(|event| event.reason == "AttemptStarted");
    events.map(|event| event.message.clone()).filter(|message| message.contains("Preflight")).collect()
}

/// Regression: with more checks than fit into one attempt, the attempt was stopped after each of them, because the next
/// decision also requested a check that the attempt lacks.
#[test]
fn more_checks_than_fit_into_one_attempt_take_two() {
    assert_eq!(attempts_of_many_checks(0), ["job-1: Preflight, 14 launches", "job-2: Preflight, 7 launches"]);
    // The attempt runs to its end, so that the failure is counted; the failed check is repeated with those that did not
    // fit.
    assert_eq!(attempts_of_many_checks(1), ["job-1: Preflight, 14 launches", "job-2: Preflight, 8 launches"]);
}

#[test]
fn the_preflight_of_the_built_in_trainer_is_one_rank_without_a_gpu() {
    let trainer = json!({"replicas": 2, "gpusPerReplica": 4});
    let shapes = |spec: serde_json::Value| {
        let mut world = World::new(spec, factors(FACTORS));
        let mut shapes = Vec::new();
        for number in 1..=2 {
            let name = format!("job-{number}");
            world.run_until(|world| world.attempts.contains_key(&name));
            let plan = &world.attempts[&name].plan;
            shapes.push((plan.replicas, plan.ranks_per_replica, plan.gpus_per_replica, plan.world_size()));
        }
        shapes
    };
    assert_eq!(shapes(fuse(json!({"trainer": trainer}))), [(1, 1, 0, 8), (2, 4, 4, 8)]);
    // A foreign trainer may ask its peers and its GPUs what it can do.
    let foreign = fuse(json!({"trainer": trainer, "workload": {"command": ["python3", "train.py"]}}));
    assert_eq!(shapes(foreign), [(2, 4, 4, 8), (2, 4, 4, 8)]);
}

#[test]
fn preflight_finds_unsupported_settings_and_a_fallback_may_replace_them() {
    let trainer = || -> crate::world::Trainer {
        Box::new(|plan, _| match serde_json::to_string(&plan.settings).unwrap().contains("Full") {
            true => ended(plan, Outcome::Unsupported),
            false => done(plan, crate::world::speed(&plan.settings, &[("Selective", 1.2)])),
        })
    };
    let phase = json!({"name": "recompute", "settings": {"activationCheckpointing": "Full"}});
    let mut world = World::new(json!({"phases": [phase]}), trainer());
    world.run();
    assert_eq!(world.verdict("recompute").0, PhaseState::Unsupported);
    assert_eq!(world.launches(LaunchKind::Measure, ""), 0);
    let mut phase = phase;
    phase["fallbacks"] = json!([{"when": ["Unsupported"], "settings": {"activationCheckpointing": "Selective"}}]);
    let mut world = World::new(json!({"phases": [phase]}), trainer());
    world.run();
    assert_eq!(world.verdict("recompute"), (PhaseState::Accepted, "SpeedAboveThreshold", 1));
}
