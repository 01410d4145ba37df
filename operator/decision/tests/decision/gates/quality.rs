//! The gates on quality.

use super::{candidate, candidate_is, changed, metric};
use crate::world::{World, done, ended, factors, noise, speed};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Validation;
use pawl_contract::plan::LaunchKind;
use pawl_contract::report::LaunchResult;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[test]
fn quality_is_compared_with_the_original_baseline_whose_launches_are_made_once() {
    let mut world = World::new(
        json!({"phases": [
            {"name": "bf16", "numerics": "Changed", "settings": {"precision": "bf16"}},
            {"name": "batch", "numerics": "Changed", "settings": {"batchPerGpu": 16}}],
            "gates": {"validationLossDelta": "0.001"}}),
        // Each costs 0.0008: alone within the gate, together not.
        Box::new(|plan, _| {
            let mut result = done(plan, speed(&plan.settings, &[("bf16", 1.3), (":16", 1.3)]) * noise(plan, 0.002));
            *metric(&mut result, "loss") += 0.0008
                * (f64::from(u8::from(plan.settings.precision.is_some()))
                    + f64::from(u8::from(plan.settings.batch_per_gpu() == 16)));
            result
        }),
    );
    world.run();
    assert_eq!(world.verdict("bf16"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
    assert_eq!(world.verdict("batch"), (PhaseState::RolledBack, "QualityBelowThreshold", 0));
    let quality = world.phase("bf16").quality.as_ref().unwrap();
    assert!((quality.loss_delta.value() - 0.0008).abs() < 1e-6 && quality.seeds == 3);
    assert_eq!(world.launches(LaunchKind::Quality, "baseline"), 3, "one for each seed, reused by the second phase");
    assert_eq!(world.launches(LaunchKind::Quality, "b"), 3 + 6);
    assert!(
        world.ran.iter().filter(|plan| plan.kind == LaunchKind::Quality).all(|plan| plan.budget.items == Some(200_000))
    );
}

#[test]
fn the_bundle_repeats_no_quality_launch_that_was_made_with_its_settings() {
    let bf16 = json!({"name": "bf16", "numerics": "Changed", "settings": {"precision": "bf16"}});
    let batch = json!({"name": "batch", "numerics": "Changed", "settings": {"batchPerGpu": 16}});
    let fuse = json!({"name": "fuse", "settings": {"compile": "Fuse"}});
    for (phases, repeated) in [(json!([bf16, batch]), 0), (json!([bf16, batch, fuse]), 3)] {
        let mut world = World::new(json!({"phases": phases}), factors(&[("bf16", 1.3), (":16", 1.3), ("Fuse", 1.3)]));
        world.run();
        assert_eq!(world.status.bundle.as_ref().unwrap().state, PhaseState::Accepted);
        assert_eq!(world.launches(LaunchKind::Quality, "bundle"), repeated);
        assert_eq!(world.status.bundle.as_ref().unwrap().quality.as_ref().unwrap().seeds, 3);
    }
}

/// The items of the quality launches that ran, with how many of each there were.
fn quality_items(world: &World) -> BTreeMap<u64, usize> {
    let items = world.ran.iter().filter(|plan| plan.kind == LaunchKind::Quality).filter_map(|plan| plan.budget.items);
    items.fold(BTreeMap::new(), |mut counts, items| {
        *counts.entry(items).or_default() += 1;
        counts
    })
}

#[test]
fn clear_quality_ends_after_two_looks_and_unclear_quality_after_the_last() {
    let looks = json!({"gates": {"validationLossDelta": "0.001"}, "analysis": {"qualityLooks": 4}});
    let world = |by: [f64; 3]| {
        let mut world = changed(
            looks.clone(),
            candidate_is(move |result, plan| *metric(result, "loss") += by[plan.seed as usize % 3]),
        );
        world.run();
        world
    };
    let early = BTreeMap::from([(3_125, 6), (12_500, 6)]);
    let equal = world([0.0001, 0.0, -0.0001]);
    assert_eq!(equal.verdict("bf16").0, PhaseState::Accepted);
    assert_eq!(quality_items(&equal), early);
    let horizons = equal.ran.iter().filter(|plan| plan.kind == LaunchKind::Quality);
    assert!(horizons.into_iter().all(|plan| plan.budget.horizon_items == Some(200_000)), "schedules of the whole");
    let quality = equal.phase("bf16").quality.as_ref().unwrap();
    assert!(quality.seeds == 3 && quality.items >= 12_500);

    let worse = world([0.05, 0.051, 0.049]);
    assert_eq!(worse.verdict("bf16"), (PhaseState::RolledBack, "QualityBelowThreshold", 0));
    assert_eq!(quality_items(&worse), early);

    let noisy = world([-0.05, 0.05, 0.0]);
    assert_eq!(noisy.verdict("bf16").1, "GateUnderpowered");
    assert_eq!(quality_items(&noisy), BTreeMap::from([(3_125, 6), (12_500, 6), (50_000, 6), (200_000, 6)]));
    let kept = noisy.phase("bf16").launches.iter().filter(|launch| launch.kind == LaunchKind::Quality);
    assert_eq!(kept.count(), 6, "the status keeps the last two looks");
}

#[test]
fn one_seed_has_no_interval_and_one_look() {
    let mut world = changed(json!({"seeds": [7], "analysis": {"qualityLooks": 4}}), candidate_is(|_, _| {}));
    world.run();
    assert_eq!(world.verdict("bf16").0, PhaseState::Accepted);
    assert!(world.phase("bf16").message.contains("no interval (one seed)"), "{}", world.phase("bf16").message);
    assert_eq!(quality_items(&world), BTreeMap::from([(200_000, 2)]));
}

#[test]
fn quality_that_noise_hides_is_inconclusive_and_never_passes() {
    let mut world = changed(
        json!({"gates": {"validationLossDelta": "0.001"}, "analysis": {"onInconclusive": "Accept"}}),
        candidate_is(|result, plan| {
            *result.measured.validation.as_mut().unwrap().metrics.get_mut("loss").unwrap() +=
                [-0.05, 0.05, 0.0][plan.seed as usize % 3];
        }),
    );
    world.run();
    assert_eq!(world.verdict("bf16"), (PhaseState::Inconclusive, "GateUnderpowered", 0));
}

#[test]
fn a_single_seed_is_evaluated_by_its_estimate_and_a_gated_metric_is_required() {
    let gates =
        json!({"seeds": [1], "gates": {"validationMetrics": [{"name": "nrmse", "maxRelativeRegression": "0.03"}]}});
    let mut world = changed(gates.clone(), candidate_is(|_, _| {}));
    world.run();
    assert_eq!(world.verdict("bf16").0, PhaseState::Accepted);
    let mut world = changed(gates, candidate_is(|result, _| *metric(result, "nrmse") *= 1.04));
    world.run();
    assert_eq!(world.verdict("bf16"), (PhaseState::RolledBack, "QualityBelowThreshold", 0));
    assert!(world.phase("bf16").message.contains("no interval (one seed)"), "{}", world.phase("bf16").message);
}

#[test]
fn a_validation_from_before_the_end_is_no_evidence_whoever_reports_it_and_is_not_asked_for_again() {
    // At step 0, the losses of all settings are equal.
    for of_candidate_only in [false, true] {
        for looks in [1, 3] {
            let mut world = changed(
                json!({"analysis": {"qualityLooks": looks}, "gates": {"validationLossDelta": "0.001"}}),
                Box::new(move |plan, _| {
                    let mut result = done(plan, speed(&plan.settings, &[("bf16", 1.3)]) * noise(plan, 0.002));
                    if plan.kind == LaunchKind::Quality && (candidate(plan) || !of_candidate_only) {
                        result.measured.validation.as_mut().unwrap().items = 0;
                    }
                    result
                }),
            );
            world.run();
            assert_eq!(world.verdict("bf16"), (PhaseState::Unsupported, "ValidatedEarly", 0));
            let message = &world.phase("bf16").message;
            assert!(message.contains("$(launch.evalSteps)") && message.contains("from 0 of"), "{message}");
            assert!(world.phase("bf16").quality.is_none() || looks == 1 && of_candidate_only);
            let ran = world.launches(LaunchKind::Quality, "");
            assert!(ran <= 6, "a launch is repeated: {ran}");
            let failed: Vec<_> = world.events.iter().filter(|event| event.reason == "AttemptFailed").collect();
            assert!(failed.is_empty() && world.status.failure.is_none(), "{failed:?}");
        }
    }
}

#[test]
fn a_baseline_validated_early_judges_no_later_phase_and_is_not_trained_again() {
    let phases = json!([
        {"name": "bf16", "numerics": "Changed", "settings": {"precision": "bf16"}},
        {"name": "batch", "numerics": "Changed", "settings": {"batchPerGpu": 16}},
        {"name": "fuse", "settings": {"compile": "Fuse"}}]);
    let mut world = World::new(
        json!({"phases": phases}),
        Box::new(|plan, _| {
            let factors = [("bf16", 1.3), (":16", 1.3), ("Fuse", 1.3)];
            let mut result = done(plan, speed(&plan.settings, &factors) * noise(plan, 0.002));
            result.measured.validation.as_mut().unwrap().items /= 2;
            result
        }),
    );
    world.run();
    assert_eq!(world.verdict("bf16").1, "ValidatedEarly");
    assert_eq!(world.verdict("batch").1, "ValidatedEarly");
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "a phase that keeps the numerics needs no quality");
    assert_eq!(world.launches(LaunchKind::Quality, "baseline"), 1, "one shows it");
}

/// A baseline whose validation loss was `first` before its first step and is 1 at its end, and the verdict on a phase
/// of equal quality.
fn learnt(first: Option<f64>, gates: Value, looks: u32) -> World {
    let mut world = changed(
        json!({"gates": gates, "analysis": {"qualityLooks": looks}}),
        Box::new(move |plan, _| {
            let mut result = done(plan, speed(&plan.settings, &[("bf16", 1.3)]) * noise(plan, 0.002));
            let metrics =
                first.map(|loss| BTreeMap::from([("loss".to_owned(), loss), ("nrmse".to_owned(), loss / 10.0)]));
            result.measured.first_validation = metrics.map(|metrics| Validation { items: 0, metrics });
            result
        }),
    );
    world.run();
    world
}

#[test]
fn a_baseline_that_has_learnt_little_judges_nothing() {
    let accepted = "SpeedAboveThreshold";
    for (first, gates, reason) in [
        (Some(1.5), json!({"validationLossDelta": "0.1"}), accepted),
        (Some(1.3), json!({"validationLossDelta": "0.1"}), "ReferenceUntrained"),
        (Some(0.9), json!({"validationLossDelta": "0.1"}), "ReferenceUntrained"),
        (Some(0.9), json!({"validationLossDelta": "0"}), "ReferenceUntrained"),
        (Some(1.05), json!({}), accepted),
        (Some(1.03), json!({}), "ReferenceUntrained"),
        (
            Some(1.03),
            json!({"validationMetrics": [{"name": "nrmse", "maxRelativeRegression": "0.01"}]}),
            "ReferenceUntrained",
        ),
        (Some(1.5), json!({"validationMetrics": [{"name": "nrmse", "maxRelativeRegression": "0.03"}]}), accepted),
        (Some(1.01), json!({"validationMetrics": [{"name": "nrmse", "max": "0.2"}]}), accepted),
        (None, json!({"validationLossDelta": "0.1"}), accepted),
        // With a limit on either side, a phase that learns nothing differs by as much if the metric has become worse at
        // first.
        (Some(0.95), json!({"validationLossWithin": "0.01"}), accepted),
        (Some(1.05), json!({"validationLossWithin": "0.01"}), accepted),
        (Some(0.97), json!({"validationLossWithin": "0.01"}), "ReferenceUntrained"),
        (Some(0.95), json!({"validationMetrics": [{"name": "nrmse", "maxRelativeDifference": "0.01"}]}), accepted),
    ] {
        let world = learnt(first, gates.clone(), 1);
        let (state, found, _) = world.verdict("bf16");
        let message = &world.phase("bf16").message;
        assert_eq!(found, reason, "{first:?} {gates}: {message}");
        assert_eq!(state == PhaseState::Accepted, reason == accepted);
        assert!(reason == accepted || message.contains("analysis.qualityItems"), "{message}");
        let unknown = message.contains("no validation before the first step");
        assert_eq!(unknown, first.is_none(), "{message}");
    }
    let early = learnt(Some(1.3), json!({"validationLossDelta": "0.1"}), 4);
    assert_eq!(early.verdict("bf16"), (PhaseState::Inconclusive, "ReferenceUntrained", 0));
    assert_eq!(quality_items(&early).len(), 4, "an early look may be too early to have learnt");
}

#[test]
fn an_average_of_initial_weights_is_not_judged() {
    for (share, reason) in [(0.99, "InitialWeights"), (0.011, "InitialWeights"), (0.009, "SpeedAboveThreshold")] {
        let mut world = changed(
            json!({}),
            Box::new(move |plan, _| {
                let mut result = done(plan, speed(&plan.settings, &[("bf16", 1.3)]) * noise(plan, 0.002));
                result.measured.initial_weights_share = Some(share);
                result
            }),
        );
        world.run();
        assert_eq!(world.verdict("bf16").1, reason, "{}", world.phase("bf16").message);
    }
}

#[test]
fn a_worse_estimate_that_noise_explains_is_unclear_and_no_failure() {
    let noisy = |by: [f64; 3]| {
        let mut world = changed(
            json!({"gates": {"validationLossDelta": "0.001"}}),
            candidate_is(move |result, plan| *metric(result, "loss") += by[plan.seed as usize % 3]),
        );
        world.run();
        world
    };
    let unclear = noisy([0.01, -0.002, 0.001]);
    assert_eq!(unclear.verdict("bf16"), (PhaseState::Inconclusive, "QualityUnclear", 0));
    assert!(unclear.phase("bf16").message.contains("more seeds"), "{}", unclear.phase("bf16").message);
    let clear = noisy([0.010, 0.011, 0.012]);
    assert_eq!(clear.verdict("bf16"), (PhaseState::RolledBack, "QualityBelowThreshold", 0));
}

#[test]
fn without_a_quality_gate_one_percent_is_the_margin() {
    for (factor, state) in [(1.005, PhaseState::Accepted), (1.02, PhaseState::RolledBack)] {
        let mut world = changed(
            json!({}),
            Box::new(move |plan, _| {
                let mut result = done(plan, speed(&plan.settings, &[("bf16", 1.3)]) * noise(plan, 0.002));
                if candidate(plan) {
                    *result.measured.validation.as_mut().unwrap().metrics.get_mut("loss").unwrap() *= factor;
                }
                result
            }),
        );
        world.run();
        assert_eq!(world.verdict("bf16").0, state);
    }
}

#[test]
fn divergence_in_the_quality_run_walks_the_ladder() {
    let mut world = World::new(
        json!({"phases": [{"name": "bf16", "numerics": "Changed", "settings": {"precision": "bf16"},
            "fallbacks": [{"when": ["NonFinite"], "settings": {"precision": "tf32"}}]}]}),
        Box::new(|plan, _| {
            let text = serde_json::to_string(&plan.settings).unwrap();
            if plan.kind == LaunchKind::Quality && text.contains("bf16") {
                return ended(plan, Outcome::NonFinite);
            }
            done(plan, speed(&plan.settings, &[("bf16", 1.3), ("tf32", 1.2)]) * noise(plan, 0.002))
        }),
    );
    world.run();
    assert_eq!(world.verdict("bf16"), (PhaseState::Accepted, "SpeedAboveThreshold", 1));
    assert_eq!(world.status.stage, Stage::Complete);
}

/// One phase that changes the numerics, with one seed, whose candidate is what `change` makes of it.
fn judged(gates: Value, change: impl Fn(&mut LaunchResult) + 'static) -> (PhaseState, String) {
    let mut world = changed(
        json!({"seeds": [1], "gates": gates}),
        Box::new(move |plan, _| {
            let mut result = done(plan, speed(&plan.settings, &[("bf16", 1.3)]) * noise(plan, 0.002));
            if candidate(plan) {
                change(&mut result);
            }
            result
        }),
    );
    world.run();
    let (state, reason, _) = world.verdict("bf16");
    (state, reason.to_owned())
}

const ACCEPTED: PhaseState = PhaseState::Accepted;
const WORSE: PhaseState = PhaseState::RolledBack;

#[test]
fn a_metric_gate_has_a_direction_and_relative_absolute_or_fixed_bounds() {
    // The baseline's nrmse is 0.1.
    for (bounds, factor, state) in [
        (json!({"maxRelativeRegression": "0.03"}), 1.02, ACCEPTED),
        (json!({"maxRelativeRegression": "0.03"}), 1.04, WORSE),
        (json!({"maxRelativeDifference": "0.03"}), 1.02, ACCEPTED),
        (json!({"maxRelativeDifference": "0.03"}), 1.04, WORSE),
        (json!({"maxRelativeDifference": "0.03"}), 0.96, WORSE),
        (json!({"better": "Larger", "maxRelativeRegression": "0.03"}), 1.5, ACCEPTED),
        (json!({"better": "Larger", "maxRelativeRegression": "0.03"}), 0.96, WORSE),
        (json!({"maxRegression": "0.005"}), 1.04, ACCEPTED),
        (json!({"maxRegression": "0.005"}), 1.06, WORSE),
        (json!({"max": "0.12"}), 1.1, ACCEPTED),
        (json!({"max": "0.12"}), 1.3, WORSE),
        (json!({"better": "Larger", "min": "0.08"}), 0.9, ACCEPTED),
        (json!({"better": "Larger", "min": "0.08"}), 0.7, WORSE),
    ] {
        let mut gate = bounds.clone();
        gate["name"] = json!("nrmse");
        let change = move |result: &mut LaunchResult| *metric(result, "nrmse") *= factor;
        let (found, reason) = judged(json!({"validationMetrics": [gate]}), change);
        assert_eq!(found, state, "{bounds} {factor}: {reason}");
        assert!(state == ACCEPTED || reason == "QualityBelowThreshold", "{reason}");
    }
}

#[test]
fn losses_are_held_within_a_band_on_both_sides() {
    for (factor, state) in [(1.009, ACCEPTED), (0.991, ACCEPTED), (1.02, WORSE), (0.98, WORSE)] {
        let validation = move |result: &mut LaunchResult| *metric(result, "loss") *= factor;
        assert_eq!(judged(json!({"validationLossWithin": "0.01"}), validation).0, state, "validation {factor}");
        let training =
            move |result: &mut LaunchResult| result.measured.loss = result.measured.loss.map(|loss| loss * factor);
        let gates = json!({"trainingLossWithin": "0.01", "validationLossDelta": "9"});
        assert_eq!(judged(gates, training).0, state, "training {factor}");
    }
}

#[test]
fn a_gate_on_the_training_loss_needs_the_training_loss() {
    let mut world = changed(
        json!({"gates": {"trainingLossWithin": "0.01", "validationLossDelta": "9"}, "lifecycle": {"maxRestarts": 1}}),
        Box::new(|plan, _| {
            let silent = plan.kind == LaunchKind::Quality && candidate(plan);
            let mut result = done(plan, speed(&plan.settings, &[("bf16", 1.3)]));
            result.measured.loss = result.measured.loss.filter(|_| !silent);
            result
        }),
    );
    world.run();
    assert_eq!(world.verdict("bf16"), (PhaseState::Error, "RetriesExhausted", 0));
    assert!(world.phase("bf16").message.contains("no training loss"), "{}", world.phase("bf16").message);
}

#[test]
fn quality_launches_may_train_epochs() {
    for (analysis, budget) in [
        (json!({}), (Some(200_000), None)),
        (json!({"qualityItems": 7_000}), (Some(7_000), None)),
        (json!({"qualityEpochs": 20}), (None, Some(20))),
    ] {
        let mut world = changed(json!({"analysis": analysis}), factors(&[("bf16", 1.3)]));
        world.run();
        let launches = world.ran.iter().filter(|plan| plan.kind == LaunchKind::Quality);
        let budgets: Vec<_> = launches.map(|plan| (plan.budget.items, plan.budget.epochs)).collect();
        assert!(budgets.len() == 6 && budgets.iter().all(|found| *found == budget), "{budgets:?}");
    }
}
