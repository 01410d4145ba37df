//! Guarded training. What its attempts leave behind, and how they resume, is in `resume.rs`.

use crate::world::{World, done, ended, factors, noise, speed};
use pawl_api::status::{PhaseState, Purpose, Stage};
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
fn trains(world: &mut World) {
    world.run_until(|world| world.alive().iter().any(|attempt| attempt.plan.launches[0].kind == LaunchKind::Train));
    world.decide();
}

pub fn trained(world: &World) -> Vec<&LaunchPlan> {
    world.ran.iter().filter(|plan| plan.kind == LaunchKind::Train).collect()
}

#[test]
fn divergence_reverts_changed_numerics_and_resumes_before_the_damage() {
    let mut world = World::new(
        spec(json!({})),
        Box::new(|plan, _| match (plan.kind, plan.settings.precision) {
            (LaunchKind::Train, Some(_)) => ended(plan, Outcome::NonFinite),
            _ => done(plan, speed(&plan.settings, FACTORS) * noise(plan, 0.002)),
        }),
    );
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    assert_eq!(world.verdict("bf16"), (PhaseState::RolledBack, "NonFinite", 0));
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "not judged again");
    let runs = trained(&world);
    assert_eq!(runs.len(), 2);
    let checkpoint = runs[1].checkpoint.as_ref().unwrap();
    assert_eq!((checkpoint.resume, checkpoint.resume_not_after_items), (true, Some(500)));
    assert!(runs[1].settings.compile.is_some() && runs[1].settings.precision.is_none());
}

/// Nobody may have observed the checkpoints that a gang wrote since it resumed: it, and not the next one, deleted the damaged.
#[test]
fn what_is_written_after_a_reverted_divergence_is_not_damaged() {
    let mut world = World::new(
        spec(json!({})),
        Box::new(|plan, _| match (plan.kind, plan.settings.precision) {
            (LaunchKind::Train, Some(_)) => ended(plan, Outcome::NonFinite),
            _ => done(plan, speed(&plan.settings, FACTORS) * noise(plan, 0.002)),
        }),
    );
    let trains = |world: &World| world.alive().iter().any(|attempt| attempt.plan.launches[0].kind == LaunchKind::Train);
    let reverted = |world: &World| world.status.phases.iter().any(|phase| phase.state == PhaseState::RolledBack);
    world.run_until(|world| reverted(world) && trains(world));
    world.decide();
    let lost = |world: &mut World| {
        world.end_alive(Ending::Disrupted("the pod was deleted".to_owned()));
        world.run_until(trains);
        let checkpoint = world.alive()[0].plan.launches[0].checkpoint.clone().unwrap();
        (checkpoint.resume_not_after_items, checkpoint.expected.map(|expected| expected.items))
    };
    assert_eq!(lost(&mut world), (Some(500), None), "the gang may not have begun to train");
    world.decide();
    world.progress(|progress| {
        let checkpoint = CheckpointRef { name: "step-60".to_owned(), step: 60, items: 600 };
        (progress.step, progress.items, progress.last_checkpoint) = (65, 650, Some(checkpoint));
    });
    world.decide();
    assert_eq!(lost(&mut world), (None, Some(600)));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
}

#[test]
fn training_that_diverges_with_the_baseline_fails() {
    let mut world = World::new(
        spec(json!({})),
        Box::new(|plan, _| match plan.kind {
            LaunchKind::Train => ended(plan, Outcome::LossSpike),
            _ => done(plan, speed(&plan.settings, FACTORS) * noise(plan, 0.002)),
        }),
    );
    world.run();
    assert_eq!(world.failure().0, "LossSpike");
    assert_eq!(trained(&world).len(), 3, "both phases were reverted before");
}

#[test]
fn slow_windows_revert_the_newest_phase_and_each_counts_once() {
    let mut world = training(json!({}));
    let promised = world.status.training.as_ref().unwrap().promised_items_per_second.as_ref().unwrap().value();
    assert!((promised - 156.0).abs() < 1.0, "{promised}");
    for window in 1..=2 {
        world.progress(|progress| (progress.windows, progress.items_per_second) = (window, Some(100.0)));
        world.decide();
        world.decide();
    }
    assert_eq!(world.status.training.as_ref().unwrap().slow_windows, 2, "seen twice, counted once");
    world.progress(|progress| (progress.windows, progress.items_per_second) = (3, Some(150.0)));
    world.decide();
    assert_eq!(world.status.training.as_ref().unwrap().slow_windows, 0, "they must follow each other");
    for window in 4..=6 {
        world.progress(|progress| (progress.windows, progress.items_per_second) = (window, Some(100.0)));
        world.decide();
    }
    assert_eq!(world.verdict("fuse"), (PhaseState::RollingBack, "ThroughputBelowPromise", 0));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "ThroughputBelowPromise", 0));
    assert_eq!(world.verdict("bf16").0, PhaseState::Accepted);
    assert_eq!(world.status.stage, Stage::Complete);
    assert_eq!(trained(&world).last().unwrap().settings.compile, None);
}

#[test]
fn a_straggler_is_reported_and_nothing_is_rolled_back() {
    let mut world = training(json!({}));
    for window in 1..=9 {
        world.progress(|progress| {
            (progress.windows, progress.items_per_second) = (window, Some(50.0));
            progress.straggler = Some("rank 3 takes 2.1 times the median".to_owned());
        });
        world.decide();
    }
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    let degraded = world.status.conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
    assert_eq!((degraded.status.as_str(), degraded.reason.as_str()), ("True", "Straggler"));
}

#[test]
fn validation_worse_than_the_baseline_reverts_and_resumes_from_the_last_good_one() {
    let mut world = training(json!({"gates": {"validationLossDelta": "0.001"}}));
    let evaluated = |items: u64, loss: f64| Validation { items, metrics: BTreeMap::from([("loss".to_owned(), loss)]) };
    for (items, loss) in [(100_000, 3.0), (200_000, 0.9), (300_000, 1.4)] {
        world.progress(|progress| {
            (progress.items, progress.step) = (items, items / 10);
            progress.validation = Some(evaluated(items, loss));
        });
        world.decide();
    }
    world.run();
    assert_eq!(world.verdict("bf16"), (PhaseState::RolledBack, "ValidationAboveGate", 0));
    let resumed = trained(&world).last().unwrap().checkpoint.clone().unwrap();
    assert_eq!(resumed.resume_not_after_items, Some(200_000));
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

/// Phases of which the older one has a rung for failures, and a training that fails with `outcome` until `fits`.
fn fallible(outcome: Outcome, fits: fn(&str) -> bool) -> World {
    World::new(
        json!({
            "phases": [
                {"name": "fuse", "settings": {"compile": "Fuse"},
                 "fallbacks": [{"when": ["Hang"], "settings": {"loaderWorkers": 2}},
                               {"when": ["OutOfMemory", "CompileFailed", "NonFinite"], "settings": {"activationCheckpointing": "Full"}}]},
                {"name": "flash", "settings": {"attention": "Flash"}}],
            "train": {"items": 100_000},
        }),
        Box::new(move |plan, _| {
            let text = serde_json::to_string(&plan.settings).unwrap();
            match plan.kind == LaunchKind::Train && !fits(&text) {
                true => ended(plan, outcome),
                false => done(plan, speed(&plan.settings, &[("Fuse", 1.3), ("Flash", 1.2)]) * noise(plan, 0.002)),
            }
        }),
    )
}

#[test]
fn a_fallback_handles_a_failure_of_the_training() {
    for (outcome, resume_not_after) in
        [(Outcome::OutOfMemory, None), (Outcome::CompileFailed, None), (Outcome::NonFinite, Some(500))]
    {
        let mut world = fallible(outcome, |text| text.contains("Full"));
        world.run();
        assert_eq!(world.status.stage, Stage::Complete);
        let fuse = world.phase("fuse");
        assert_eq!((fuse.state, fuse.rung, fuse.training_rung), (PhaseState::Accepted, 0, Some(2)));
        assert_eq!(fuse.reason, outcome.to_string());
        assert!(fuse.message.contains("fallback 2 of 2") && fuse.message.contains("not measured"), "{}", fuse.message);
        assert_eq!(world.verdict("flash").0, PhaseState::Accepted);
        assert_eq!(world.count_events("Superseded"), 0, "nothing is evaluated again");
        let runs = trained(&world);
        assert_eq!(runs.len(), 2);
        let resumed = runs[1].checkpoint.as_ref().unwrap();
        assert_eq!((resumed.resume, resumed.resume_not_after_items), (true, resume_not_after));
        assert!(runs[1].settings.compile.is_some() && runs[1].settings.attention.is_some());
    }
}

#[test]
fn a_training_that_no_rung_saves_reverts_phases() {
    let mut world = fallible(Outcome::OutOfMemory, |text| !text.contains("Fuse"));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    assert_eq!(world.verdict("flash"), (PhaseState::RolledBack, "OutOfMemory", 0), "the newest first");
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "OutOfMemory", 0));
    assert_eq!(trained(&world).len(), 4, "as judged, on the rung, without flash, without both");
    // A phase that is judged again begins with its first patch.
    world.edit(|spec| spec["phases"][0]["minSpeedup"] = json!("1.01"));
    world.run_until(|world| world.phase("fuse").state == PhaseState::Accepted);
    assert_eq!(world.phase("fuse").training_rung, None);
}

#[test]
fn a_rung_answers_validation_worse_than_the_gate() {
    let mut spec = spec(json!({"gates": {"validationMetrics": [{"name": "nrmse", "max": "0.2"}]}}));
    spec["phases"][0]["fallbacks"] = json!([{"when": ["QualityBelowThreshold"], "settings": {"precision": "tf32"}}]);
    let mut world = World::new(spec, factors(FACTORS));
    trains(&mut world);
    for (items, nrmse) in [(200_000, 0.19), (300_000, 0.21)] {
        world.progress(|progress| {
            (progress.items, progress.step) = (items, items / 10);
            let metrics = BTreeMap::from([("loss".to_owned(), 5.0), ("nrmse".to_owned(), nrmse)]);
            progress.validation = Some(Validation { items, metrics });
        });
        world.decide();
    }
    world.run();
    let bf16 = world.phase("bf16");
    assert_eq!((bf16.state, bf16.training_rung), (PhaseState::Accepted, Some(1)));
    assert_eq!(bf16.reason, "ValidationAboveGate");
    let resumed = trained(&world).last().unwrap().checkpoint.clone().unwrap();
    assert_eq!(resumed.resume_not_after_items, Some(200_000));
}

#[test]
fn training_slower_than_a_gate_is_degraded_and_nothing_is_reverted() {
    for (gates, slow) in [
        (json!({"minItemsPerSecond": "150"}), true),
        (json!({"minItemsPerSecond": "130"}), false),
        (json!({"maxEpochSeconds": "70"}), true),
        (json!({"maxEpochSeconds": "80"}), false),
    ] {
        let mut world = training(json!({"gates": gates}));
        for window in 1..=3 {
            // As promised within the tolerance, and 71 s an epoch.
            world.progress(|progress| (progress.windows, progress.items_per_second) = (window, Some(140.0)));
            world.decide();
        }
        let degraded = world.status.conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
        assert_eq!(degraded.reason == "TrainingDegraded", slow, "{gates}: {}", degraded.message);
        assert!(world.status.phases.iter().all(|phase| phase.state == PhaseState::Accepted));
    }
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
