//! Memory, offload, loader, equivalence, quality.

use crate::world::{Trainer, World, done, ended, factors, noise, speed};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use serde_json::{Value, json};

fn candidate(plan: &LaunchPlan) -> bool {
    plan.settings.compile.is_some() || plan.settings.precision.is_some()
}

/// A trainer whose candidate is 1.3 times faster and then what `change` makes of it.
fn candidate_is(change: fn(&mut LaunchResult, &LaunchPlan)) -> Trainer {
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
        candidate_is(|result, _| result.predicted_memory_bytes = Some(60 << 30)),
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
        candidate_is(|result, _| result.peak_memory_bytes = Some(51 << 30)),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "MemoryAboveGate", 0));
    assert!(world.launches(LaunchKind::Measure, "") <= 3);
    assert_eq!(world.phase("fuse").peak_memory, Some(51 << 30));
}

#[test]
fn offload_that_costs_too_much_is_rolled_back_even_if_faster() {
    let mut world = one_phase(
        json!({"gates": {"maxOffloadOverhead": "0.1"}}),
        candidate_is(|result, _| result.offload_share = Some(0.15)),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "OffloadOverhead", 0));
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
            LaunchResult {
                loader_wait_share: Some(if starved { 0.4 } else { 0.01 }),
                ..done(plan, speed * noise(plan, 0.002))
            }
        }),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SpeedAboveThreshold", 2));
    assert_eq!(world.told("LoaderBound"), 1);
}

#[test]
fn equivalent_numerics_are_held_to_their_word() {
    let mut world =
        one_phase(json!({}), candidate_is(|result, _| result.final_loss = result.final_loss.map(|loss| loss * 1.05)));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "LossDiverged", 0));
    assert!(world.phase("fuse").message.contains("numerics: Changed"));
    // Rounding is no divergence.
    let mut world =
        one_phase(json!({}), candidate_is(|result, _| result.final_loss = result.final_loss.map(|loss| loss * 1.0005)));
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
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
            let loss = result.validation.get_mut("loss").unwrap();
            *loss += 0.0008
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

#[test]
fn quality_that_noise_hides_is_inconclusive_and_never_passes() {
    let mut world = changed(
        json!({"gates": {"validationLossDelta": "0.001"}, "analysis": {"onInconclusive": "Accept"}}),
        candidate_is(|result, plan| {
            *result.validation.get_mut("loss").unwrap() += [-0.05, 0.05, 0.0][plan.seed as usize % 3];
        }),
    );
    world.run();
    assert_eq!(world.verdict("bf16"), (PhaseState::Inconclusive, "GateUnderpowered", 0));
}

#[test]
fn a_single_seed_is_judged_by_its_estimate_and_a_gated_metric_counts() {
    let gates =
        json!({"seeds": [1], "gates": {"validationMetrics": [{"name": "nrmse", "maxRelativeIncrease": "0.03"}]}});
    let mut world = changed(gates.clone(), candidate_is(|_, _| {}));
    world.run();
    assert_eq!(world.verdict("bf16").0, PhaseState::Accepted);
    let mut world = changed(gates, candidate_is(|result, _| *result.validation.get_mut("nrmse").unwrap() *= 1.04));
    world.run();
    assert_eq!(world.verdict("bf16"), (PhaseState::RolledBack, "QualityBelowThreshold", 0));
    assert!(world.phase("bf16").message.contains("SingleSeed"), "{}", world.phase("bf16").message);
}

#[test]
fn without_a_quality_gate_one_percent_is_the_margin() {
    for (factor, state) in [(1.005, PhaseState::Accepted), (1.02, PhaseState::RolledBack)] {
        let mut world = changed(
            json!({}),
            Box::new(move |plan, _| {
                let mut result = done(plan, speed(&plan.settings, &[("bf16", 1.3)]) * noise(plan, 0.002));
                if candidate(plan) {
                    *result.validation.get_mut("loss").unwrap() *= factor;
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
