//! Phases: accepted, rejected, skipped, retried on a fallback.

use crate::world::{World, done, ended, factors, noise, speed};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use serde_json::json;

#[test]
fn a_faster_phase_is_accepted_a_slower_one_rolled_back_and_training_uses_the_accepted_settings() {
    let mut world = World::new(
        json!({
            "phases": [
                {"name": "fuse", "settings": {"compile": "Fuse"}},
                {"name": "slow", "settings": {"loaderWorkers": 4}},
                {"name": "flash", "settings": {"attention": "Flash"}},
            ],
            "train": {"items": 10_000},
        }),
        factors(&[("Fuse", 1.3), ("loaderWorkers", 0.9), ("Flash", 1.1)]),
    );
    world.run();
    assert_eq!(world.status.stage, Stage::Complete, "{:#?}", world.status);
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
    assert_eq!(world.verdict("slow"), (PhaseState::RolledBack, "SpeedBelowThreshold", 0));
    assert_eq!(world.verdict("flash"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
    let estimate = world.phase("fuse").speedup.as_ref().unwrap().estimate.value();
    assert!((estimate - 1.3).abs() < 0.01, "{estimate}");
    let bundle = world.status.bundle.as_ref().unwrap();
    assert_eq!(bundle.state, PhaseState::Accepted);
    assert!((bundle.speedup.as_ref().unwrap().estimate.value() - 1.43).abs() < 0.02);
    let trained = world.ran.last().unwrap();
    assert_eq!(trained.kind, LaunchKind::Train);
    assert_eq!(
        serde_json::to_value(&trained.settings).unwrap(),
        json!({"batchPerGpu": 8, "compile": "Fuse", "attention": "Flash"})
    );
    assert_eq!(world.attempts.len(), 0, "everything was released");
}

#[test]
fn pairs_are_interleaved_and_share_their_seed() {
    let mut world = World::new(
        json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}], "seeds": [7, 8]}),
        factors(&[("Fuse", 1.3)]),
    );
    world.run();
    let of_phase = |plan: &&LaunchPlan| plan.kind == LaunchKind::Measure && plan.launch.starts_with("fuse");
    let measured: Vec<_> = world.ran.iter().filter(of_phase).collect();
    let arms: Vec<_> = measured.iter().map(|plan| plan.settings.compile.is_some()).collect();
    // Which one of a pair is first is random: see `steady::pairs_begin_with_either_arm`.
    assert!(arms.len() == 6 && arms.chunks(2).all(|pair| pair[0] != pair[1]), "{arms:?}");
    let seeds: Vec<_> = measured.iter().map(|plan| plan.seed).collect();
    assert_eq!(seeds, [7, 7, 8, 8, 7, 7]);
}

#[test]
fn an_unclear_phase_is_looked_at_again_until_further_pairs_would_hardly_help() {
    let noisy = || -> crate::world::Trainer {
        Box::new(|plan, _| done(plan, speed(&plan.settings, &[("Fuse", 1.02)]) * noise(plan, 0.08)))
    };
    let spec = |on: &str| json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}], "analysis": {"onInconclusive": on}});
    let mut world = World::new(spec("RollBack"), noisy());
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Inconclusive, "SpeedUndecided", 0));
    assert_eq!(world.phase("fuse").speedup.as_ref().unwrap().pairs, 5, "of 7");
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 10);
    let message = &world.phase("fuse").message;
    assert!(message.ends_with("includes minSpeedup 1.02, and further pairs would hardly exclude it"), "{message}");
    // What is accepted unless it is shown to be slow is measured to the end.
    let mut world = World::new(spec("Accept"), noisy());
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "AcceptedInconclusive", 0));
    assert_eq!(world.phase("fuse").speedup.as_ref().unwrap().pairs, 7);
}

#[test]
fn a_single_pair_is_allowed_and_labelled() {
    let mut world = World::new(
        json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}], "analysis": {"minPairs": 1, "maxPairs": 1}}),
        factors(&[("Fuse", 1.3)]),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SinglePair", 0));
    assert_eq!(world.phase("fuse").speedup.as_ref().unwrap().lower, None);
}

#[test]
fn a_fallback_answers_out_of_memory_and_replaces_the_one_before() {
    let mut world = World::new(
        json!({"phases": [{
            "name": "batch", "numerics": "Changed", "settings": {"batchPerGpu": 24, "compile": "Fuse"},
            "fallbacks": [
                {"when": ["Hang"], "settings": {"batchPerGpu": 2}},
                {"when": ["OutOfMemory"], "settings": {"batchPerGpu": 20, "loaderWorkers": 2}},
                {"when": ["OutOfMemory"], "settings": {"batchPerGpu": 16}},
            ],
        }]}),
        Box::new(|plan, _| match (plan.kind, plan.settings.batch_per_gpu()) {
            (LaunchKind::Measure, 20..) => ended(plan, Outcome::OutOfMemory),
            _ => done(plan, speed(&plan.settings, &[("Fuse", 1.3)]) * noise(plan, 0.002)),
        }),
    );
    world.run();
    assert_eq!(world.verdict("batch"), (PhaseState::Accepted, "SpeedAboveThreshold", 3));
    let effective = serde_json::to_value(&world.status.effective_settings).unwrap();
    assert_eq!(effective, json!({"batchPerGpu": 16, "compile": "Fuse"}));
    assert_eq!(world.count_events("OutOfMemory"), 2);
}

#[test]
fn every_safety_outcome_rolls_back_on_one_launch() {
    for (outcome, state) in [
        (Outcome::OutOfMemory, PhaseState::RolledBack),
        (Outcome::HostOutOfMemory, PhaseState::RolledBack),
        (Outcome::NonFinite, PhaseState::RolledBack),
        (Outcome::LossSpike, PhaseState::RolledBack),
        (Outcome::Hang, PhaseState::RolledBack),
        (Outcome::CompileFailed, PhaseState::RolledBack),
        (Outcome::Unsupported, PhaseState::Unsupported),
    ] {
        let mut world = World::new(
            json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}]}),
            Box::new(move |plan, _| match plan.settings.compile {
                Some(_) if plan.kind == LaunchKind::Measure => ended(plan, outcome),
                _ => done(plan, 100.0),
            }),
        );
        world.run();
        assert_eq!(world.verdict("fuse"), (state, format!("{outcome:?}").as_str(), 0));
        assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 2, "A, then B, and no more");
        assert_eq!(world.status.stage, Stage::Complete);
    }
}
