//! Phases whose settings cannot have an effect are not measured.

use crate::world::{World, factors};
use pawl_api::status::PhaseState;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use pawl_contract::settings::Compile;
use serde_json::{Value, json};

/// Measured factors: noise alone decides about settings without effect.
const FACTORS: &[(&str, f64)] = &[("Fuse", 1.3), ("loaderWorkers", 1.2), ("loaderPrefetch", 1.5), ("scope", 1.5)];

fn world(phases: Value) -> World {
    let mut world = World::new(json!({"phases": phases}), factors(FACTORS));
    world.run();
    world
}

#[test]
fn a_phase_without_effect_is_not_measured_and_says_what_would_give_it_one() {
    for (settings, setting, remedy) in [
        (json!({"loaderPrefetch": 64}), "loaderPrefetch", "set loaderWorkers to at least 1"),
        (json!({"compileScope": {"exclude": ["gat"]}}), "compileScope", "set compile to Fuse or Graph"),
        (json!({"loaderPersistent": true, "compile": "None"}), "loaderPersistent", "set loaderWorkers to at least 1"),
        (json!({"nccl": {"NCCL_ALGO": "Ring"}}), "nccl", "use several GPUs"),
    ] {
        let world = world(json!([{"name": "idle", "settings": settings}]));
        assert_eq!(world.verdict("idle"), (PhaseState::Skipped, "NoEffect", 0), "{setting}");
        assert_eq!(world.launches(LaunchKind::Measure, "idle"), 0, "{setting}");
        let message = &world.phase("idle").message;
        assert!(
            message.contains(setting) && message.contains(remedy) && message.ends_with("or an earlier one"),
            "{message}"
        );
    }
}

#[test]
fn the_same_settings_have_an_effect_on_top_of_what_they_need() {
    let mut after = world(json!([
        {"name": "workers", "settings": {"loaderWorkers": 4}},
        {"name": "prefetch", "settings": {"loaderPrefetch": 8}}]));
    assert_eq!(after.verdict("prefetch"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
    // Without workers it has none any more: that is found when an earlier phase is rolled back by hand.
    after.edit(|spec| spec["phases"][0]["pin"] = json!("RolledBack"));
    after.run();
    assert_eq!(after.verdict("prefetch"), (PhaseState::Skipped, "NoEffect", 0));
    after.edit(|spec| spec["phases"][0]["pin"] = json!(null));
    after.run();
    assert_eq!(after.verdict("prefetch"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
    let together = world(json!([{"name": "loader", "settings": {"loaderWorkers": 4, "loaderPrefetch": 8}}]));
    assert_eq!(together.verdict("loader"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
}

#[test]
fn a_phase_that_repeats_what_is_accepted_is_not_measured() {
    let world = world(json!([
        {"name": "fuse", "settings": {"compile": "Fuse"}},
        {"name": "again", "settings": {"compile": "Fuse", "attention": "Math"}}]));
    assert_eq!(world.verdict("again"), (PhaseState::Skipped, "NoEffect", 0));
    assert_eq!(world.launches(LaunchKind::Measure, "again"), 0);
}

#[test]
fn an_enabler_has_its_effect_with_the_phase_that_requires_it() {
    let world = world(json!([
        {"name": "prefetch", "role": "Enabler", "settings": {"loaderPrefetch": 8}},
        {"name": "workers", "requires": ["prefetch"], "settings": {"loaderWorkers": 4}}]));
    assert_eq!(world.verdict("prefetch").0, PhaseState::Accepted);
    assert_eq!(world.verdict("workers").0, PhaseState::Accepted);
}

#[test]
fn a_fallback_that_undoes_its_phase_is_not_measured_and_does_not_hide_why() {
    let fails = |plan: &LaunchPlan, before: usize| match plan.settings.compile {
        Some(Compile::Graph) if plan.kind == LaunchKind::Measure => {
            let message = "kernel 7 does not compile".to_owned();
            LaunchResult { message, ..LaunchResult::bare(&plan.launch, Outcome::CompileFailed) }
        }
        _ => factors(FACTORS)(plan, before),
    };
    let phases = json!([{"name": "graph", "settings": {"compile": "Graph", "compileScope": {"exclude": ["gat"]}},
        "fallbacks": [{"when": ["CompileFailed"], "settings": {"compile": "None"}}]}]);
    let mut world = World::new(json!({"phases": phases}), Box::new(fails));
    world.run();
    assert_eq!(world.verdict("graph"), (PhaseState::Skipped, "NoEffect", 1));
    let message = &world.phase("graph").message;
    assert!(message.starts_with("fallback 1: compileScope has no effect without compile"), "{message}");
    assert!(message.contains("kernel 7 does not compile"), "{message}");
}
