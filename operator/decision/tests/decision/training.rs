//! Guarded training: its course and its end. How its attempts resume is in `resume.rs`, what its guard reverts in
//! `guard.rs`, what its failures do in `damage.rs`.

use crate::world::{World, done, ended, factors, noise, speed};
use pawl_api::status::{Purpose, Stage};
use pawl_contract::checkpoint::{BestCheckpoint, CheckpointRef};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Validation;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use pawl_decision::observed::Ending;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub fn spec(rest: Value) -> Value {
    let mut spec = json!({
        "phases": [
            {"name": "bf16", "numerics": "Changed", "settings": {"precision": "bf16"}},
            {"name": "fuse", "settings": {"compile": "Fuse"}}],
        "train": {"items": 100_000, "guard": {"windows": 3}},
    });
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    spec
}

pub const FACTORS: &[(&str, f64)] = &[("Fuse", 1.3), ("bf16", 1.2)];

/// A world in which training has begun and was seen.
pub fn training(rest: Value) -> World {
    let mut world = World::new(spec(rest), factors(FACTORS));
    trains(&mut world);
    world
}

/// Runs a world until training has begun and was seen.
pub fn trains(world: &mut World) {
    world.run_until(|world| world.alive().iter().any(|attempt| attempt.plan.launches[0].kind == LaunchKind::Train));
    world.decide();
}

pub fn trained(world: &World) -> Vec<&LaunchPlan> {
    world.ran.iter().filter(|plan| plan.kind == LaunchKind::Train).collect()
}

#[test]
fn scope_all_trains_on_with_the_baseline() {
    let mut world = World::new(
        spec(json!({"rollback": {"scope": "All"}})),
        Box::new(|plan, _| match (plan.kind, plan.settings.precision) {
            (LaunchKind::Train, Some(_)) => ended(plan, Outcome::OutOfMemory),
            _ => done(plan, speed(&plan.settings, FACTORS) * noise(plan, 0.002)),
        }),
    );
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    assert_eq!(trained(&world).last().unwrap().settings, world.job.spec.settings);
    assert_eq!(
        trained(&world).last().unwrap().checkpoint.as_ref().unwrap().resume_not_after_items,
        None,
        "nothing is damaged"
    );
}

/// A job that only trains; its final report contains its first evaluation (a loss of 2.5) and its checkpoint.
fn unobserved(left: Option<CheckpointRef>) -> World {
    World::new(
        spec(json!({"phases": []})),
        Box::new(move |plan, _| match plan.kind {
            LaunchKind::Train => {
                let metrics = BTreeMap::from([("loss".to_owned(), 2.5)]);
                let mut result = done(plan, 100.0);
                result.measured.first_validation = Some(Validation { items: 0, metrics });
                LaunchResult { checkpoint: left.clone(), ..result }
            }
            _ => done(plan, 100.0),
        }),
    )
}

#[test]
fn the_final_report_of_an_unobserved_training_contains_its_first_evaluation_and_checkpoint() {
    let last = CheckpointRef { name: "step-9000".to_owned(), step: 9_000, items: 90_000 };
    let mut world = unobserved(Some(last.clone()));
    world.run();
    // The gang was not observed between this checkpoint and its end.
    let training = world.status.training.as_ref().unwrap();
    let checkpoint = training.last_checkpoint.as_ref().unwrap();
    assert_eq!(
        (checkpoint.name.as_str(), checkpoint.step, checkpoint.items),
        (last.name.as_str(), last.step, last.items)
    );
    assert_eq!(training.measured.first_metric("loss").unwrap().value(), 2.5);
}

#[test]
fn the_first_validation_is_recorded_whenever_a_training_is_observed() {
    let first = |world: &World| {
        let training = world.status.training.as_ref().unwrap();
        training.measured.first_metric("loss").map(|loss| loss.value())
    };
    for (items, loss, seen) in [(0, 2.5, Some(2.5)), (5_000, 0.5, None)] {
        let mut world = unobserved(None);
        trains(&mut world);
        world.progress(|progress| {
            (progress.items, progress.step) = (6_000, 600);
            progress.validation = Some(Validation { items, metrics: BTreeMap::from([("loss".to_owned(), loss)]) });
        });
        world.decide();
        assert_eq!(world.status.training.as_ref().unwrap().measured.metric("loss").unwrap().value(), loss);
        assert_eq!(first(&world), seen, "validated after {items} items");
        world.run();
        assert_eq!(first(&world), Some(2.5), "validated after {items} items");
    }
}

#[test]
fn the_first_evaluation_of_a_resumed_training_is_not_taken_for_the_one_before_its_first_step() {
    let mut world = World::new(
        spec(json!({"phases": []})),
        Box::new(|plan, _| {
            let mut result = done(plan, 100.0);
            let items =
                plan.checkpoint.as_ref().and_then(|policy| policy.expected.as_ref()).map_or(0, |from| from.items);
            let metrics = BTreeMap::from([("loss".to_owned(), 0.5)]);
            result.measured.first_validation = Some(Validation { items, metrics });
            result
        }),
    );
    trains(&mut world);
    world.progress(|progress| {
        let checkpoint = CheckpointRef { name: "step-70".to_owned(), step: 70, items: 4_480 };
        (progress.step, progress.items, progress.last_checkpoint) = (70, 4_480, Some(checkpoint));
    });
    world.decide();
    world.end_alive(Ending::Disrupted("the pod was deleted".to_owned()));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    let measured = &world.status.training.as_ref().unwrap().measured;
    assert_eq!(measured.first_validation, None, "nobody saw the loss before the first step");
}

#[test]
fn a_spec_that_rules_cannot_refuse_fails_before_anything_runs() {
    let template = json!({"env": [{"name": "PAWL_RANK", "value": "1"}]});
    let mut world = World::new(json!({"trainer": {"podTemplate": template}}), factors(FACTORS));
    world.job.metadata.generation = Some(1);
    world.run();
    assert_eq!(world.status.stage, Stage::Failed);
    let failure = world.status.failure.clone().unwrap();
    assert_eq!(failure.reason, "InvalidSpec");
    assert!(failure.message.starts_with("spec.trainer.podTemplate.env[0].name"), "{}", failure.message);
    assert!(world.ran.is_empty());
    assert!(world.events.iter().any(|event| event.reason == "InvalidSpec" && event.message == failure.message));
    // It stays so; a changed spec is retried.
    assert!(!world.decide());
    world.edit(|spec| spec["trainer"]["podTemplate"]["env"] = json!([]));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
}

#[test]
fn a_metric_decides_when_training_ends_early_and_which_checkpoint_is_the_best() {
    let planned = |train: Value| {
        let world = training(json!({"train": train}));
        let plan = world.alive()[0].plan.launches[0].clone();
        let stopping =
            plan.budget.early_stopping.map(|stop| (stop.criterion.metric, stop.criterion.better.to_string()));
        let best = plan.checkpoint.unwrap().best;
        (stopping, (best.metric, best.better.to_string()))
    };
    let named = |metric: &str, better: &str| (metric.to_owned(), better.to_owned());
    assert_eq!(planned(json!({"items": 9})), (None, named("loss", "Smaller")));
    let larger = json!({"metric": "rankIC", "better": "Larger", "patience": 3});
    let stopping = json!({"items": 9, "earlyStopping": larger});
    assert_eq!(planned(stopping), (Some(named("rankIC", "Larger")), named("rankIC", "Larger")));
    let both = json!({"items": 9, "earlyStopping": larger, "checkpoint": {"best": {"metric": "nrmse"}}});
    assert_eq!(planned(both), (Some(named("rankIC", "Larger")), named("nrmse", "Smaller")));
}

#[test]
fn the_best_checkpoint_of_a_training_is_in_the_status() {
    let mut world = World::new(
        spec(json!({"phases": []})),
        Box::new(|plan, _| {
            let checkpoint = CheckpointRef { name: "step-400".to_owned(), step: 400, items: 4_000 };
            let best = BestCheckpoint { checkpoint, metric: "loss".to_owned(), value: 0.25 };
            LaunchResult { best_checkpoint: (plan.kind == LaunchKind::Train).then_some(best), ..done(plan, 100.0) }
        }),
    );
    world.run();
    let best = world.status.training.as_ref().unwrap().best_checkpoint.clone().unwrap();
    assert_eq!((best.checkpoint.items, best.metric.as_str(), best.value.value()), (4_000, "loss", 0.25));
}

#[test]
fn the_cost_of_measurement_is_deducted_from_the_savings() {
    let saved = |cost: Value| {
        let mut world = World::new(
            spec(json!({"cost": cost, "trainer": {"gpusPerReplica": 4}, "train": {"items": 10_000_000}})),
            factors(FACTORS),
        );
        world.run();
        world.status.cost.unwrap()
    };
    let per_gpu = saved(json!({"gpuHour": "2"}));
    let judging: u64 =
        per_gpu.purposes.iter().filter(|(purpose, _)| **purpose != Purpose::Train).map(|(_, ms)| *ms).sum();
    // The baseline trains 100 items/s, the accepted phases 156, on 4 GPUs.
    let hours = |speed: f64| 1e7 / speed * 4.0 / 3600.0;
    let expected = hours(100.0) - hours(156.0) - judging as f64 / 3.6e6;
    let found = per_gpu.saved.as_ref().unwrap().value() / 2.0;
    assert!(judging > 0 && (found / expected - 1.0).abs() < 0.01, "{found} {expected}");
    let percent = per_gpu.saved_percent.as_ref().unwrap().value();
    assert!((percent - expected / hours(100.0) * 100.0).abs() < 0.5, "{percent}");
    // The same price for all four together, and the same share without a price.
    let per_machine = saved(json!({"machineHour": "8"}));
    assert_eq!((&per_machine.spent, &per_machine.saved), (&per_gpu.spent, &per_gpu.saved));
    let unpriced = saved(json!({}));
    assert_eq!((unpriced.saved, unpriced.saved_percent), (None, per_gpu.saved_percent));
}
