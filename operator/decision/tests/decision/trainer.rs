//! Builds of the trainer: evidence of different ones is never mixed.

use crate::world::{Trainer, World, done, factors, speed};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::plan::LaunchKind;
use pawl_decision::observed::Ending;
use serde_json::{Value, json};

const OTHER: &str = "sha256:bbbbbbbbbbbbbbbb";

fn fuse(rest: Value) -> Value {
    let mut spec = json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}]});
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    spec
}

/// Loses the attempt that runs; the next one runs `build`.
fn move_tag(world: &mut World, build: &str) {
    world.end_alive(Ending::Disrupted("node-0 was drained".to_owned()));
    world.build = build.to_owned();
}

#[test]
fn a_moved_tag_starts_open_measurements_again() {
    let mut world = World::new(fuse(json!({})), factors(&[("Fuse", 1.3)]));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 3);
    assert_eq!(world.status.trainer.as_ref().unwrap().build, world.build);
    move_tag(&mut world, OTHER);
    world.run();
    // The new attempt has begun the pair that was missing when it shows its build.
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 3 + 1 + 6, "no launch of the earlier build is in a pair");
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    assert_eq!(world.phase("fuse").speedup.as_ref().unwrap().pairs, 3);
    assert_eq!(world.status.trainer.as_ref().unwrap().build, OTHER);
    let changed: Vec<_> = world.events.iter().filter(|event| event.reason == "TrainerChanged").collect();
    let [event] = changed[..] else { panic!("{changed:?}") };
    assert!(
        event.message.contains("runs build bbbbbbbbbbbb of") && event.message.contains("ran aaaaaaaaaaaa:"),
        "{event:?}"
    );
}

#[test]
fn launches_of_an_earlier_build_are_kept_under_its_name() {
    let mut world = World::new(fuse(json!({})), factors(&[("Fuse", 1.3)]));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 3);
    move_tag(&mut world, OTHER);
    world.run_until(|world| world.count_events("TrainerChanged") == 1);
    // The new attempt has run the launch that was missing.
    let measured = world.phase("fuse").launches.iter().filter(|launch| launch.kind == LaunchKind::Measure);
    let builds: Vec<&str> = measured.map(|launch| launch.trainer.as_str()).collect();
    assert_eq!(builds, ["aaaaaaaaaaaa", "aaaaaaaaaaaa", "aaaaaaaaaaaa", ""]);
}

#[test]
fn a_verdict_stays_when_the_tag_is_moved_after_it() {
    let phases = json!([{"name": "fuse", "settings": {"compile": "Fuse"}},
        {"name": "flash", "settings": {"attention": "Flash"}}]);
    let mut world = World::new(json!({"phases": phases}), factors(&[("Fuse", 1.3), ("Flash", 1.2)]));
    world.run_until(|world| world.launches(LaunchKind::Measure, "flash") == 1);
    move_tag(&mut world, OTHER);
    world.run();
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 6, "it is not measured again");
    assert_eq!(world.launches(LaunchKind::Measure, "flash"), 1 + 1 + 6);
    // All together is measured with the new build: no pair of an earlier one is taken over.
    assert_eq!(world.launches(LaunchKind::Measure, "bundle"), 6);
    assert_eq!(world.status.stage, Stage::Complete);
}

#[test]
fn quality_is_not_compared_with_a_baseline_of_another_build() {
    // The second build has another loss: mixed, the comparison would reject the phase.
    let mut first = 6;
    let trainer: Trainer = Box::new(move |plan, _| {
        let mut result = done(plan, speed(&plan.settings, &[("Flash", 1.2)]));
        if plan.kind == LaunchKind::Quality {
            first -= i32::from(first > 0);
            let shift = if first > 0 { 0.0 } else { 0.5 };
            result.measured.loss = result.measured.loss.map(|loss| loss + shift);
            let validation = result.measured.validation.as_mut().unwrap();
            validation.metrics.values_mut().for_each(|value| *value += shift);
        }
        result
    });
    let phases = json!([{"name": "flash", "numerics": "Changed", "settings": {"attention": "Flash"}}]);
    let mut world = World::new(json!({"phases": phases}), trainer);
    world.run_until(|world| world.launches(LaunchKind::Quality, "") == 5);
    move_tag(&mut world, OTHER);
    world.run();
    assert_eq!(world.launches(LaunchKind::Quality, "baseline"), 3 + 3);
    assert_eq!(world.verdict("flash").0, PhaseState::Accepted, "{}", world.phase("flash").message);
}

#[test]
fn two_builds_in_turn_end_in_an_error_that_says_so() {
    let phases = json!([{"name": "flash", "numerics": "Changed", "settings": {"attention": "Flash"}}]);
    let spec = json!({"phases": phases, "lifecycle": {"maxRestarts": 2}, "train": {"items": 1000}});
    let mut world = World::new(spec, factors(&[("Flash", 1.2)]));
    let mut attempts = 0;
    for _ in 0..2_000 {
        let moved = world.decide();
        if world.status.attempts > attempts {
            attempts = world.status.attempts;
            let nodes = ["sha256:aaaaaaaaaaaaaaaa", OTHER];
            world.build = nodes[attempts as usize % 2].to_owned();
        }
        if !moved & !world.work() {
            break;
        }
    }
    assert_eq!(world.verdict("flash"), (PhaseState::Error, "RetriesExhausted", 0));
    assert!(world.phase("flash").message.contains("named by its digest"), "{}", world.phase("flash").message);
    assert_eq!(world.status.stage, Stage::Complete, "the rest of the job is done");
}

#[test]
fn training_is_not_guarded_by_measurements_of_another_build() {
    let spec = fuse(json!({"train": {"items": 100_000, "guard": {"windows": 2}}}));
    let mut world = World::new(spec, factors(&[("Fuse", 1.3)]));
    world.run_until(|world| world.status.stage == Stage::Training && !world.alive().is_empty());
    assert!(world.status.training.as_ref().unwrap().promised_items_per_second.is_some());
    move_tag(&mut world, OTHER);
    while world.alive().is_empty() {
        world.decide();
    }
    world.decide();
    assert_eq!(world.count_events("TrainerChanged"), 1);
    assert_eq!(world.status.training.as_ref().unwrap().promised_items_per_second, None);
    for window in 1..=3 {
        world.progress(|progress| {
            (progress.windows, progress.step, progress.items) = (window, 10 * window, 100 * window);
            progress.items_per_second = Some(50.0);
        });
        world.decide();
    }
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "its throughput with this build was never measured");
    assert_eq!(world.count_events("AttemptFailed"), 0, "nothing was lost");
}

#[test]
fn evidence_of_a_version_that_recorded_no_build_counts_for_the_first_that_is_known() {
    let mut world = World::new(fuse(json!({})), factors(&[("Fuse", 1.3)]));
    world.build.clear();
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 3);
    assert_eq!(world.status.trainer, None);
    move_tag(&mut world, OTHER);
    world.run();
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 1 + 6, "an upgrade of the operator repeats no whole pair");
    assert_eq!(world.count_events("TrainerChanged"), 0);
}

#[test]
fn an_edited_image_is_no_failure() {
    let mut world = World::new(fuse(json!({"trainer": {"image": "trainer:1"}})), factors(&[("Fuse", 1.3)]));
    world.run_until(|world| world.launches(LaunchKind::Measure, "fuse") == 3);
    world.build = OTHER.to_owned();
    world.edit(|spec| spec["trainer"]["image"] = json!("trainer:2"));
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    assert_eq!(world.count_events("AttemptFailed"), 0);
}
