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

/// Nobody may have observed the checkpoints that a gang wrote since it resumed: it, and not the next one, deleted the
/// damaged.
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
        let items = |known: Option<CheckpointRef>| known.map(|known| known.items);
        (checkpoint.resume_not_after_items, items(checkpoint.expected), items(checkpoint.expected_after_limit))
    };
    assert_eq!(lost(&mut world), (Some(500), None, None), "the gang may not have begun to train");
    world.decide();
    world.progress(|progress| {
        let checkpoint = CheckpointRef { name: "step-60".to_owned(), step: 60, items: 600 };
        (progress.step, progress.items, progress.last_checkpoint) = (65, 650, Some(checkpoint));
    });
    world.decide();
    assert_eq!(lost(&mut world), (None, Some(600), None));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
}

/// Otherwise an emptied storage would be a new start.
#[test]
fn a_checkpoint_after_the_last_good_position_is_known_to_the_next_attempt() {
    let mut world = World::new(
        spec(json!({})),
        Box::new(|plan, _| match (plan.kind, plan.settings.precision) {
            (LaunchKind::Train, Some(_)) => ended(plan, Outcome::NonFinite),
            _ => done(plan, speed(&plan.settings, FACTORS) * noise(plan, 0.002)),
        }),
    );
    let trains = |world: &World| world.alive().iter().any(|attempt| attempt.plan.launches[0].kind == LaunchKind::Train);
    world.run_until(trains);
    world.decide();
    let checkpoint = CheckpointRef { name: "step-60".to_owned(), step: 60, items: 600 };
    world.progress(|progress| {
        (progress.step, progress.items, progress.last_checkpoint) = (65, 650, Some(checkpoint.clone()));
    });
    world.decide();
    let reverted = |world: &World| world.status.phases.iter().any(|phase| phase.state == PhaseState::RolledBack);
    world.run_until(|world| reverted(world) && trains(world));
    let policy = world.alive()[0].plan.launches[0].checkpoint.clone().unwrap();
    assert_eq!((policy.resume_not_after_items, policy.expected), (Some(500), None), "it is not resumed");
    assert_eq!(policy.expected_after_limit, Some(checkpoint));
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
fn slow_windows_add_up_each_counts_once_and_fast_ones_outweigh_them() {
    let mut world = training(json!({}));
    let promised = world.status.training.as_ref().unwrap().promised_items_per_second.as_ref().unwrap().value();
    assert!((promised - 156.0).abs() < 1.0, "{promised}");
    let mut ended = 0;
    let mut windows = |world: &mut World, count: u64, speed: f64| {
        for _ in 0..count {
            ended += 1;
            world.progress(|progress| (progress.windows, progress.items_per_second) = (ended, Some(speed)));
            world.decide();
            world.decide();
        }
        world.status.training.clone().unwrap()
    };
    assert_eq!(windows(&mut world, 2, 100.0).slow_windows, 2, "seen twice, counted once");
    assert_eq!(windows(&mut world, 10, 156.0).slow_windows, 0, "no evidence is left");
    // Such windows belong to the noise of this training now: the next slow-down takes longer to show.
    let taken = (1..9).find(|_| windows(&mut world, 1, 100.0).slowdown.is_some()).unwrap();
    assert!((3..=7).contains(&taken), "{taken} windows");
    // What follows is in `slowdown.rs`: no phase is rolled back before the cause is measured.
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "the pair is as fast as before");
    assert_eq!(world.status.stage, Stage::Complete);
}

/// A loss that only the seed moves, as that of `done`.
fn evaluated(items: u64, loss: f64) -> Validation {
    Validation { items, metrics: BTreeMap::from([("loss".to_owned(), loss), ("nrmse".to_owned(), loss / 10.0)]) }
}

/// The training evaluates with these losses.
fn evaluates(world: &mut World, losses: &[(u64, f64)]) {
    for (items, loss) in losses {
        world.progress(|progress| {
            (progress.items, progress.step) = (*items, items / 10);
            progress.validation = Some(evaluated(*items, *loss));
        });
        world.decide();
    }
}

/// A training whose schedule is that of the baseline's quality launches: two looks in a row decide, after 1,600 and
/// 6,400 of 25,600 items.
fn comparable(gates: Value) -> Value {
    spec(json!({
        "gates": gates,
        "seeds": [1, 2, 3],
        "analysis": {"qualityItems": 25_600, "qualityLooks": 3},
        "train": {"items": 25_600, "evalEvery": 100},
    }))
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
fn two_comparable_evaluations_worse_than_the_baseline_revert_and_resume_from_the_last_good_one() {
    let mut world = World::new(comparable(json!({"validationLossDelta": "0.001"})), factors(FACTORS));
    trains(&mut world);
    // The baseline has 1.0002 on average, and its seeds differ by 0.0001.
    evaluates(&mut world, &[(1_600, 1.0), (3_200, 3.0), (6_400, 1.4)]);
    assert_eq!(world.verdict("bf16").0, PhaseState::Accepted, "a single comparable evaluation may be noise");
    assert!(world.status.training.as_ref().unwrap().worse.starts_with("validation loss increase"));
    evaluates(&mut world, &[(6_500, 1.4)]);
    world.run();
    assert_eq!(world.verdict("bf16"), (PhaseState::RolledBack, "ValidationAboveGate", 0));
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    let resumed = trained(&world).last().unwrap().checkpoint.clone().unwrap();
    assert_eq!(resumed.resume_not_after_items, Some(1_600));
}

/// As in the smoke runs of vision-bdh and atft: the fused optimizer and a worker of the loader change no number, and
/// were rolled back by one evaluation, later than the baseline's launches whose learning rate had decayed.
#[test]
fn an_evaluation_that_is_not_comparable_reverts_nothing() {
    let vision = json!({"analysis": {"qualityItems": 4_096}, "train": {"items": 40_960, "evalEvery": 1_024}});
    let atft = json!({"analysis": {"qualityItems": 25_600}, "train": {"items": 128_000, "evalEvery": 6_400}});
    for rest in [vision, atft] {
        let mut job = comparable(json!({"validationLossWithin": "0.01"}));
        job.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        let (full, every) =
            (rest["analysis"]["qualityItems"].as_u64().unwrap(), rest["train"]["evalEvery"].as_u64().unwrap());
        let mut world = World::new(job, factors(FACTORS));
        trains(&mut world);
        evaluates(&mut world, &[(full, 1.3), (full + every, 1.3), (full + 2 * every, 1.4)]);
        assert_eq!(world.verdict("bf16").0, PhaseState::Accepted);
        let degraded = world.status.conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
        assert_eq!((degraded.status.as_str(), degraded.reason.as_str()), ("True", "TrainingDegraded"));
        assert!(degraded.message.contains("the numbers of items differ"), "{}", degraded.message);
        evaluates(&mut world, &[(full + 3 * every, 0.9)]);
        let degraded = world.status.conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
        assert_eq!(degraded.status, "False");
        world.run();
        assert!(world.status.phases.iter().all(|phase| phase.state == PhaseState::Accepted));
    }
}

#[test]
fn a_deviation_within_the_interval_or_of_the_baseline_too_reverts_nothing() {
    let gate = |gate: Value| json!({"validationMetrics": [gate]});
    for (gates, seeds, why) in [
        (
            json!({"validationLossDelta": "0.001"}),
            json!([1, 2_000, 4_000]),
            "within the interval of the baseline's seeds",
        ),
        (json!({"validationLossDelta": "0.001"}), json!([1]), "no interval with one seed"),
        (gate(json!({"name": "nrmse", "max": "0.05"})), json!([1, 2, 3]), "so is the baseline"),
    ] {
        let mut job = comparable(gates);
        // A single seed has a single look.
        let items = if seeds.as_array().unwrap().len() > 1 { 6_400 } else { 25_400 };
        job["seeds"] = seeds;
        // Accepted whatever the gates say of it.
        job["phases"][0]["numerics"] = json!("Equivalent");
        job["phases"].as_array_mut().unwrap().push(
            json!({"name": "flash", "numerics": "Changed", "settings": {"attention": "Flash"}, "pin": "Accepted"}),
        );
        let mut world = World::new(job, factors(FACTORS));
        trains(&mut world);
        evaluates(&mut world, &[(items, 1.3), (items + 100, 1.3)]);
        assert!(world.status.phases.iter().all(|phase| phase.state == PhaseState::Accepted));
        let worse = &world.status.training.as_ref().unwrap().worse;
        assert!(worse.contains(why), "{why}: {worse}");
    }
}

#[test]
fn a_slow_training_is_seen_while_its_validation_looks_worse() {
    let mut world =
        training(json!({"analysis": {"qualityItems": 1_000}, "train": {"items": 100_000, "guard": {"windows": 3}}}));
    evaluates(&mut world, &[(2_000, 1.5)]);
    for window in 1..=3 {
        world.progress(|progress| (progress.windows, progress.items_per_second) = (window, Some(100.0)));
        world.decide();
    }
    let training = world.status.training.as_ref().unwrap();
    assert!(!training.worse.is_empty() && training.slowdown.is_some());
}

#[test]
fn after_a_rollback_every_number_is_of_what_runs() {
    let gates = json!({"overallSpeedup": "1.1"});
    let diverges = |scope: &str| {
        let spec = spec(
            json!({"gates": gates, "rollback": {"scope": scope}, "cost": {"gpuHour": "1"}, "train": {"items": 1_000_000}}),
        );
        let mut world = World::new(spec, factors(FACTORS));
        trains(&mut world);
        let before = world.status.speedup.as_ref().unwrap().value();
        assert!((before - 1.56).abs() < 0.01, "{before}");
        world.progress(|progress| {
            (progress.step, progress.items, progress.windows, progress.items_per_second) =
                (10, 200_000, 1, Some(156.0));
        });
        world.decide();
        let plan = world.alive()[0].plan.launches[0].clone();
        let name = world.alive()[0].facts.name.clone();
        let mut result = LaunchResult { failed_at_items: Some(200_000), ..ended(&plan, Outcome::NonFinite) };
        result.measured.items = 200_000;
        world.attempts.get_mut(&name).unwrap().facts.results.push(result);
        world.end(&name, Ending::Completed);
        trains(&mut world);
        world
    };
    let world = diverges("All");
    assert!(world.status.phases.iter().all(|phase| phase.state == PhaseState::RolledBack));
    let bundle = world.status.bundle.clone().unwrap();
    assert_eq!((world.status.speedup.as_ref(), bundle.speedup.as_ref()), (None, None));
    assert_eq!((bundle.state, bundle.outdated), (PhaseState::RolledBack, true));
    assert!(bundle.message.starts_with("every phase was reverted"), "{}", bundle.message);

    let mut world = diverges("Phase");
    assert_eq!(world.verdict("bf16").0, PhaseState::RolledBack);
    let rest = world.status.speedup.as_ref().unwrap().value();
    assert!((rest - 1.3).abs() < 0.01, "that of the phase that is left: {rest}");
    let bundle = world.status.bundle.clone().unwrap();
    assert_eq!((bundle.state, bundle.outdated, bundle.speedup), (PhaseState::Accepted, true, None));
    assert!(bundle.message.contains("were not measured together, since bf16 changed"), "{}", bundle.message);
    assert_eq!(world.status.training.as_ref().unwrap().measured.items_per_second, None, "not that of other settings");
    // What was trained before was trained at its speed.
    world.progress(|progress| {
        (progress.step, progress.items, progress.windows, progress.items_per_second) = (20, 400_000, 1, Some(130.0));
    });
    world.decide();
    let cost = world.status.cost.clone().unwrap();
    let judging = cost.purposes.iter().filter(|(purpose, _)| **purpose != Purpose::Train);
    let judging = judging.map(|(_, ms)| *ms as f64).sum::<f64>() / 3.6e6;
    let saved = 400_000.0 / 100.0 - 200_000.0 / 156.0 - 200_000.0 / 130.0;
    let found = cost.saved.unwrap().value();
    assert!((found - (saved / 3600.0 - judging)).abs() < 0.002, "{found}");
    // A person knows better: the settings that were measured are in effect again.
    world.edit(|spec| spec["phases"][0]["pin"] = json!("Accepted"));
    trains(&mut world);
    let (bundle, speedup) = (world.status.bundle.clone().unwrap(), world.status.speedup.clone().unwrap().value());
    assert!(!bundle.outdated && (speedup - 1.56).abs() < 0.01, "{speedup} {bundle:#?}");
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

/// Phases of which the older one has a fallback for failures, and a training that fails with `outcome` until `fits`.
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
        assert_eq!((fuse.state, fuse.fallback, fuse.training_fallback), (PhaseState::Accepted, 0, Some(2)));
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
fn a_training_that_no_fallback_saves_reverts_phases() {
    let mut world = fallible(Outcome::OutOfMemory, |text| !text.contains("Fuse"));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    assert_eq!(world.verdict("flash"), (PhaseState::RolledBack, "OutOfMemory", 0), "the newest first");
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "OutOfMemory", 0));
    assert_eq!(trained(&world).len(), 4, "as judged, on the fallback, without flash, without both");
    // A phase that is judged again begins with its first patch.
    world.edit(|spec| spec["phases"][0]["minSpeedup"] = json!("1.01"));
    world.run_until(|world| world.phase("fuse").state == PhaseState::Accepted);
    assert_eq!(world.phase("fuse").training_fallback, None);
}

#[test]
fn a_fallback_answers_validation_worse_than_the_gate() {
    let mut spec = comparable(json!({"validationMetrics": [{"name": "nrmse", "max": "0.2"}]}));
    spec["phases"][0]["fallbacks"] = json!([{"when": ["QualityBelowThreshold"], "settings": {"precision": "tf32"}}]);
    let mut world = World::new(spec, factors(FACTORS));
    trains(&mut world);
    evaluates(&mut world, &[(1_600, 1.9), (6_400, 2.1), (6_500, 2.1)]);
    world.run();
    let bf16 = world.phase("bf16");
    assert_eq!((bf16.state, bf16.training_fallback), (PhaseState::Accepted, Some(1)));
    assert_eq!(bf16.reason, "ValidationAboveGate");
    let resumed = trained(&world).last().unwrap().checkpoint.clone().unwrap();
    assert_eq!(resumed.resume_not_after_items, Some(1_600));
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
