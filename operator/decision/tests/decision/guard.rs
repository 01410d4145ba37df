//! The guard of a training: windows slower than promised, and evaluations worse than the baseline.

use crate::training::{FACTORS, spec, trained, training, trains};
use crate::world::{World, ended, factors};
use pawl_api::status::{PhaseState, Purpose, Stage};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Validation;
use pawl_contract::report::LaunchResult;
use pawl_decision::observed::Ending;
use serde_json::{Value, json};
use std::collections::BTreeMap;

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
