//! Memory, offload, loader, equivalence, quality.

use crate::world::{Trainer, World, done, ended, factors, noise, speed};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::{Measured, Validation};
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn candidate(plan: &LaunchPlan) -> bool {
    plan.settings.compile.is_some() || plan.settings.precision.is_some()
}

/// A metric of the newest evaluation.
fn metric<'a>(result: &'a mut LaunchResult, name: &str) -> &'a mut f64 {
    result.measured.validation.as_mut().and_then(|validation| validation.metrics.get_mut(name)).unwrap()
}

/// A trainer whose candidate is 1.3 times faster and then what `change` makes of it.
fn candidate_is(change: impl Fn(&mut LaunchResult, &LaunchPlan) + 'static) -> Trainer {
    Box::new(move |plan, _| {
        let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3), ("bf16", 1.3)]) * noise(plan, 0.002));
        if candidate(plan) {
            change(&mut result, plan);
        }
        result
    })
}

fn one_phase(rest: Value, trainer: Trainer) -> World {
    let mut spec = json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}]});
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    World::new(spec, trainer)
}

fn changed(rest: Value, trainer: Trainer) -> World {
    let mut spec = json!({"phases": [{"name": "bf16", "numerics": "Changed", "settings": {"precision": "bf16"}}]});
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    World::new(spec, trainer)
}

#[test]
fn predicted_memory_above_the_gate_costs_no_device_time() {
    let mut world = one_phase(
        json!({"gates": {"gpuMemory": "50Gi"}}),
        candidate_is(|result, _| result.measured.predicted_memory_bytes = Some(60 << 30)),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "MemoryAboveGate", 0));
    assert_eq!(world.launches(LaunchKind::Measure, ""), 0);
    let message = &world.phase("fuse").message;
    assert!(message.contains("60.00Gi") && message.contains("50Gi"), "{message}");
}

#[test]
fn measured_memory_above_the_gate_ends_the_trial_after_one_launch() {
    let mut world = one_phase(
        json!({"gates": {"gpuMemory": "50Gi"}}),
        candidate_is(|result, _| result.measured.peak_memory_bytes = Some(51 << 30)),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "MemoryAboveGate", 0));
    assert!(world.launches(LaunchKind::Measure, "") <= 3);
    assert_eq!(world.phase("fuse").measured.peak_memory_bytes, Some(51 << 30));
}

#[test]
fn offload_that_costs_too_much_is_rolled_back_even_if_faster() {
    let mut world = one_phase(
        json!({"gates": {"maxOffloadOverhead": "0.1"}}),
        candidate_is(|result, _| result.measured.offload_share = Some(0.15)),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "OffloadOverhead", 0));
}

#[test]
fn a_phase_whose_numbers_do_not_fit_8_bits_says_so_and_later_ones_do_not() {
    let messages = |fp8: Value, shares: (f64, f64)| {
        let phases = json!([{"name": "fp8", "numerics": "Changed", "settings": fp8}, {"name": "fuse", "settings": {"compile": "Fuse"}}]);
        let mut world = World::new(
            json!({"phases": phases, "gates": {"validationLossDelta": "1"}}),
            Box::new(move |plan, _| {
                let faster = f64::from(plan.settings.precision.is_some()) + f64::from(plan.settings.compile.is_some());
                let mut result = done(plan, 100.0 * (1.0 + 0.3 * faster) * noise(plan, 0.002));
                if plan.settings.precision.is_some() {
                    (result.measured.float8_overflow_share, result.measured.float8_underflow_share) =
                        (Some(shares.0), Some(shares.1));
                }
                result
            }),
        );
        world.run();
        assert_eq!(world.verdict("fp8").0, PhaseState::Accepted, "the gates judge its quality");
        assert!(!world.phase("fuse").message.contains("8-bit"), "{}", world.phase("fuse").message);
        world.phase("fp8").message.clone()
    };
    let row = json!({"precision": "fp8"});
    let delayed = json!({"precision": "fp8", "float8Scaling": "Delayed"});
    assert!(!messages(row.clone(), (0.0, 0.009)).contains("8-bit"));
    let overflow = messages(delayed, (0.025, 0.5));
    assert!(overflow.ends_with(
        "; 2.50 % of the numbers in 8-bit floats overflow: try float8Scaling: Row or float8Gradients: e5m2"
    ));
    assert!(
        messages(row, (0.0, 0.5))
            .ends_with("50.00 % of the numbers in 8-bit floats underflow: try float8Gradients: e5m2")
    );
}

#[test]
fn a_slow_loader_is_answered_by_its_rung() {
    let mut world = World::new(
        json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"},
            "fallbacks": [{"when": ["SpeedBelowThreshold"], "settings": {"compile": "Graph"}},
                          {"when": ["LoaderBound"], "settings": {"loaderWorkers": 4}}]}]}),
        Box::new(|plan, _| {
            let starved = plan.settings.compile.is_some() && plan.settings.loader_workers.is_none();
            let speed = if starved { 99.0 } else { speed(&plan.settings, &[("Fuse", 1.3)]) };
            let mut result = done(plan, speed * noise(plan, 0.002));
            result.measured.loader_wait_share = Some(if starved { 0.4 } else { 0.01 });
            result
        }),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SpeedAboveThreshold", 2));
    assert_eq!(world.count_events("LoaderBound"), 1);
}

#[test]
fn the_declaration_of_equivalent_numerics_is_verified() {
    let mut world = one_phase(
        json!({}),
        candidate_is(|result, _| result.measured.loss = result.measured.loss.map(|loss| loss * 1.05)),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "LossDiverged", 0));
    assert!(world.phase("fuse").message.contains("numerics: Changed"));
    // Rounding is no divergence.
    let mut world = one_phase(
        json!({}),
        candidate_is(|result, _| result.measured.loss = result.measured.loss.map(|loss| loss * 1.0005)),
    );
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
}

/// Trained by a script: its loss after a quarter of the launch and so on, which the seed moves.
fn with_curve(result: &mut LaunchResult, plan: &LaunchPlan, factor: f64) {
    if plan.kind == LaunchKind::Measure {
        let by_seed = 1.0 + 0.1 * f64::from(plan.seed as u32 % 3);
        result.curve = [10.0, 9.0, 8.5, 8.2].map(|loss| loss * by_seed * factor).to_vec();
        result.measured.loss = result.curve.last().copied();
    }
}

/// A trainer whose candidate is 1.3 times faster and has training losses that differ by the factor of its seed.
fn losses_are(factors: [f64; 3], change: impl Fn(&mut LaunchResult, &LaunchPlan) + 'static) -> Trainer {
    Box::new(move |plan, _| {
        let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3)]) * noise(plan, 0.002));
        with_curve(&mut result, plan, if candidate(plan) { factors[plan.seed as usize % 3] } else { 1.0 });
        change(&mut result, plan);
        result
    })
}

#[test]
fn a_phase_that_is_worse_in_every_pair_is_no_equivalent_one() {
    let mut world = one_phase(json!({"seeds": [42, 43, 44]}), losses_are([1.1, 1.09, 1.11], |_, _| ()));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "LossDiverged", 0));
    assert_eq!(world.launches(LaunchKind::Quality, ""), 0);
}

#[test]
fn losses_that_do_not_decide_lead_to_the_quality_gates() {
    for seeds in [json!([42]), json!([42, 43, 44])] {
        let worse = |by: f64| {
            move |result: &mut LaunchResult, plan: &LaunchPlan| {
                if candidate(plan) && plan.kind == LaunchKind::Quality {
                    *metric(result, "loss") += by;
                }
            }
        };
        let rounding = [1.007, 0.99, 1.012];
        let mut world = one_phase(json!({"seeds": seeds.clone()}), losses_are(rounding, worse(0.0)));
        world.run();
        assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "{}", world.phase("fuse").message);
        let phase = world.phase("fuse");
        assert!(
            phase.message.contains("judged as numerics: Changed, because training losses differ"),
            "{}",
            phase.message
        );
        assert!(phase.quality.is_some() && world.count_events("NumericsUnclear") == 1);

        let mut world = one_phase(json!({"seeds": seeds}), losses_are(rounding, worse(0.5)));
        world.run();
        assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "QualityBelowThreshold", 0));
        assert!(world.phase("fuse").message.contains("judged as numerics: Changed"), "{}", world.phase("fuse").message);
    }
}

#[test]
fn losses_of_launches_ended_by_time_must_agree_so_closely_that_they_would_at_the_end() {
    // A difference that grows steadily to 2 %: 0.25 % in the first quarter of the steps, and 1.5 % in the second half.
    let grown = |ended_by_time: bool| {
        losses_are([1.0; 3], move |result, plan| {
            if plan.kind == LaunchKind::Measure {
                let by = if candidate(plan) { 0.02 } else { 0.0 };
                let quarters = if ended_by_time { 1 } else { 4 };
                let loss = |quarter: usize| 8.0 * (1.0 + by * (quarter as f64 + 0.5) / 4.0);
                result.curve = (0..quarters).map(loss).collect();
                result.measured.steps = if ended_by_time { 17 } else { 70 };
            }
        })
    };
    let mut whole = one_phase(json!({"seeds": [42, 43, 44]}), grown(false));
    whole.run();
    assert_eq!(whole.verdict("fuse"), (PhaseState::RolledBack, "LossDiverged", 0));
    let mut early = one_phase(json!({"seeds": [42, 43, 44]}), grown(true));
    early.run();
    assert!(early.phase("fuse").message.contains("judged as numerics: Changed"), "{}", early.phase("fuse").message);
    // Rounding does not reach a sixth of what is allowed.
    let rounding = losses_are([1.0001, 0.9999, 1.0], |result, _| {
        result.curve.truncate(1);
        result.measured.steps = 17;
    });
    let mut same = one_phase(json!({"seeds": [42, 43, 44]}), rounding);
    same.run();
    assert!(!same.phase("fuse").message.contains("judged as"), "{}", same.phase("fuse").message);
}

#[test]
fn the_quality_gates_are_inputs_of_a_phase_that_they_have_judged_only() {
    let reopened = |factors: [f64; 3]| {
        let mut world = one_phase(json!({"seeds": [42]}), losses_are(factors, |_, _| ()));
        world.job.metadata.generation = Some(1);
        world.run();
        assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "{}", world.phase("fuse").message);
        world.edit(|spec| spec["gates"] = json!({"validationLossDelta": "0.5"}));
        world.run();
        assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "{}", world.phase("fuse").message);
        world.count_events("Superseded")
    };
    assert_eq!((reopened([1.0; 3]), reopened([1.01; 3])), (0, 1));
}

#[test]
fn losses_that_do_not_decide_are_inconclusive_where_no_quality_is_measured() {
    let monitored = json!({"seeds": [42], "workload": {"name": "gpt", "command": ["python", "train.py"],
        "monitor": {"training": "step (?<step>\\d+) loss (?<loss>\\S+)"}}});
    let mut world = one_phase(monitored, losses_are([1.01; 3], |_, _| ()));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Inconclusive, "NumericsUnclear", 0));
    assert!(
        world.phase("fuse").message.ends_with("set workload.monitor.validation"),
        "{}",
        world.phase("fuse").message
    );
    assert_eq!(world.launches(LaunchKind::Quality, ""), 0);

    // Scripts that do not validate: the job has done without, and goes on.
    for outcome in [Outcome::Done, Outcome::Unsupported, Outcome::InvalidPlan] {
        let silent = move |result: &mut LaunchResult, plan: &LaunchPlan| {
            if plan.kind == LaunchKind::Quality {
                (result.outcome, result.measured.validation) = (outcome, None);
                result.message = "no validation was reported".to_owned();
            }
        };
        let mut world = one_phase(json!({"seeds": [42]}), losses_are([1.01; 3], silent));
        world.run();
        let phase = world.phase("fuse");
        assert_eq!(
            (phase.state, phase.reason.as_str()),
            (PhaseState::Inconclusive, "NumericsUnclear"),
            "{}",
            phase.message
        );
        assert!(phase.message.contains("the quality gates cannot decide"), "{}", phase.message);
        assert_eq!(world.status.stage, Stage::Complete);
    }
}

#[test]
fn a_fallback_is_compared_anew() {
    let mut world = World::new(
        json!({"seeds": [42], "phases": [{"name": "fuse", "settings": {"compile": "Fuse"},
            "fallbacks": [{"when": ["QualityBelowThreshold"], "settings": {"compile": "Graph"}}]}]}),
        Box::new(|plan, _| {
            let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3), ("Graph", 1.3)]) * noise(plan, 0.002));
            let fused = serde_json::to_string(&plan.settings).unwrap().contains("Fuse");
            with_curve(&mut result, plan, if fused { 1.01 } else { 1.0 });
            if fused && plan.kind == LaunchKind::Quality {
                *metric(&mut result, "loss") += 0.5;
            }
            result
        }),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SpeedAboveThreshold", 1));
    assert!(!world.phase("fuse").message.contains("judged as"), "{}", world.phase("fuse").message);
}

#[test]
fn another_batch_is_other_mathematics_and_is_not_measured() {
    let mut world = World::new(json!({"phases": [{"name": "batch", "settings": {"batchPerGpu": 16}}]}), factors(&[]));
    world.run();
    assert_eq!(world.verdict("batch"), (PhaseState::RolledBack, "NumericsMisdeclared", 0));
    assert_eq!(world.launches(LaunchKind::Measure, ""), 0);
}

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
                    + f64::from(u8::from(plan.settings.batch() == 16)));
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

/// A baseline whose validation loss was `first` before its first step and is 1 at its end, and the verdict on a phase of equal quality.
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
        // With a limit on either side, a phase that learns nothing differs by as much if the metric has become worse at first.
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
fn memory_may_increase_over_the_baseline_by_as_much_as_the_gate_allows() {
    let memory = |predicted: u64, peak: u64| -> Trainer {
        Box::new(move |plan, _| {
            let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3)]) * noise(plan, 0.002));
            if candidate(plan) {
                (result.measured.predicted_memory_bytes, result.measured.peak_memory_bytes) =
                    (Some(predicted << 30), Some(peak << 30));
            }
            result
        })
    };
    // The baseline's predicted and peak memory are 10 GiB.
    let gate = json!({"gates": {"gpuMemoryIncrease": "0.2"}});
    for (predicted, peak, state, measured) in
        [(12, 12, ACCEPTED, true), (13, 12, PhaseState::RolledBack, false), (12, 13, PhaseState::RolledBack, true)]
    {
        let mut world = one_phase(gate.clone(), memory(predicted, peak));
        world.run();
        assert_eq!(world.verdict("fuse").0, state, "{predicted} {peak}: {}", world.phase("fuse").message);
        assert_eq!(world.launches(LaunchKind::Measure, "") > 0, measured, "{predicted} {peak}");
        if state == PhaseState::RolledBack {
            assert_eq!(world.verdict("fuse").1, "MemoryAboveGate");
            assert!(world.phase("fuse").message.contains("gpuMemoryIncrease"), "{}", world.phase("fuse").message);
        }
    }
}

#[test]
fn all_phases_together_must_reach_utilization_throughput_and_epoch_time() {
    // 130 items/s and 10,000 items an epoch: 76.9 s. Utilization is 0.9.
    for (gates, met) in [
        (json!({"minGpuUtilization": "0.85"}), true),
        (json!({"minGpuUtilization": "0.95"}), false),
        (json!({"minItemsPerSecond": "125"}), true),
        (json!({"minItemsPerSecond": "140"}), false),
        (json!({"maxEpochSeconds": "80"}), true),
        (json!({"maxEpochSeconds": "70"}), false),
    ] {
        let gate = gates.as_object().unwrap().keys().next().unwrap().clone();
        let mut world = one_phase(json!({"gates": gates}), factors(&[("Fuse", 1.3)]));
        world.run();
        assert_eq!(world.verdict("fuse").0, ACCEPTED, "a goal of the job is no gate of a phase");
        let bundle = world.status.bundle.as_ref().unwrap();
        assert_eq!(bundle.reason, if met { "GoalMet" } else { "GoalMissed" }, "{gates}: {}", bundle.message);
        assert!(met || bundle.message.contains(&gate), "{}", bundle.message);
        let degraded = world.status.conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
        assert_eq!(degraded.status, if met { "False" } else { "True" });
    }
}

#[test]
fn a_gate_for_which_nothing_is_measured_is_not_passed() {
    for gates in [json!({"minGpuUtilization": "0.5"}), json!({"maxEpochSeconds": "1000"})] {
        let mut world = one_phase(
            json!({"gates": gates, "rollback": {"onGoalMissed": "RollBackAll"}}),
            Box::new(|plan, _| {
                let result = done(plan, speed(&plan.settings, &[("Fuse", 1.3)]) * noise(plan, 0.002));
                {
                    let measured = Measured { utilization: None, ..result.measured };
                    LaunchResult { measured, items_per_epoch: None, ..result }
                }
            }),
        );
        world.run();
        let bundle = world.status.bundle.as_ref().unwrap();
        assert_eq!(bundle.reason, "GoalMissed");
        assert!(bundle.message.contains("GateUnmeasured"), "{}", bundle.message);
        assert_eq!(world.verdict("fuse").0, PhaseState::RolledBack);
    }
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

#[test]
fn a_compile_error_is_answered_by_its_rung() {
    let mut world = one_phase(
        json!({"phases": [{"name": "fuse", "settings": {"compile": "Graph"},
            "fallbacks": [{"when": ["CompileFailed"], "settings": {"compile": "Fuse"}}]}]}),
        Box::new(|plan, _| {
            let text = serde_json::to_string(&plan.settings).unwrap();
            match plan.kind == LaunchKind::Measure && text.contains("Graph") {
                true => ended(plan, Outcome::CompileFailed),
                false => done(plan, speed(&plan.settings, &[("Fuse", 1.3)]) * noise(plan, 0.002)),
            }
        }),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SpeedAboveThreshold", 1));
    assert_eq!((world.count_events("CompileFailed"), world.count_events("AttemptFailed")), (1, 0), "it is not retried");
}
