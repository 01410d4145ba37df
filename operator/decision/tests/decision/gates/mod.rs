//! Memory, offload, the loader, the batch, and what all phases together must reach.

mod equivalence;
mod quality;

use crate::world::{Trainer, World, done, ended, factors, noise, speed};
use pawl_api::status::PhaseState;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Measured;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use serde_json::{Value, json};

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
fn measured_memory_above_the_gate_ends_the_measurement_after_one_launch() {
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
fn a_slow_loader_is_answered_by_its_fallback() {
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
fn another_batch_is_other_mathematics_and_is_not_measured() {
    let mut world = World::new(json!({"phases": [{"name": "batch", "settings": {"batchPerGpu": 16}}]}), factors(&[]));
    world.run();
    assert_eq!(world.verdict("batch"), (PhaseState::RolledBack, "NumericsMisdeclared", 0));
    assert_eq!(world.launches(LaunchKind::Measure, ""), 0);
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
    for (predicted, peak, state, measured) in [
        (12, 12, PhaseState::Accepted, true),
        (13, 12, PhaseState::RolledBack, false),
        (12, 13, PhaseState::RolledBack, true),
    ] {
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
        assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "a goal of the job is no gate of a phase");
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
fn a_compile_error_is_answered_by_its_fallback() {
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
