//! The inputs of a verdict: what is edited later is judged as if it had been written from the start.

use crate::world::{Trainer, World, done, noise, speed};
use pawl_api::spec::{Analysis, Gates, MetricGate};
use pawl_contract::plan::Better;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Every gate, at a value that the candidate of this world does not meet. Without `..`: a new gate needs a value here.
pub fn unmet() -> Gates {
    let text = |text: &str| Some(text.parse().unwrap());
    Gates {
        overall_speedup: text("9"),
        validation_loss_delta: text("0.001"),
        validation_loss_within: text("0.001"),
        training_loss_within: text("0.001"),
        validation_metrics: vec![MetricGate {
            name: "nrmse".to_owned(),
            better: Better::Smaller,
            max_relative_regression: text("0.001"),
            max_relative_difference: None,
            max_regression: None,
            min: None,
            max: None,
        }],
        gpu_memory: Some("1Gi".parse().unwrap()),
        gpu_memory_increase: text("0.01"),
        min_gpu_utilization: text("0.99"),
        min_items_per_second: text("9000"),
        max_epoch_seconds: text("0.001"),
        max_offload_overhead: text("0.01"),
    }
}

/// A candidate that is faster, and a little worse in all that gates bound.
fn worse() -> Trainer {
    Box::new(|plan, _| {
        let candidate = plan.settings.precision.is_some() || plan.settings.compile.is_some();
        let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3), ("bf16", 1.3)]) * noise(plan, 0.002));
        if candidate {
            let measured = &mut result.measured;
            measured.offload_share = Some(0.05);
            measured.peak_memory_bytes = measured.peak_memory_bytes.map(|bytes| bytes / 10 * 11);
            measured.loss = measured.loss.map(|loss| loss * 1.003);
            let metrics = measured.validation.iter_mut().flat_map(|validation| validation.metrics.values_mut());
            metrics.for_each(|value| *value *= 1.02);
        }
        result
    })
}

#[test]
fn a_gate_that_is_edited_later_is_judged_as_if_it_had_been_written_from_the_start() {
    let Value::Object(unmet) = serde_json::to_value(unmet()).unwrap() else { panic!() };
    let kinds =
        [json!({"settings": {"compile": "Fuse"}}), json!({"numerics": "Changed", "settings": {"precision": "bf16"}})];
    let mut judged = BTreeMap::new();
    let mut unread: BTreeSet<&str> = unmet.keys().map(String::as_str).collect();
    for (kind, phase) in kinds.into_iter().enumerate() {
        let world = |gates: Value| {
            let mut phase = phase.clone();
            phase["name"] = json!("p");
            World::new(json!({"phases": [phase], "gates": gates}), worse())
        };
        // With a margin that is met, as a phase with changed numerics needs one.
        let met = json!({"validationLossDelta": "5"});
        for (name, value) in &unmet {
            let mut gates = met.clone();
            gates[name] = value.clone();
            let mut fresh = world(gates.clone());
            fresh.run();
            let mut edited = world(met.clone());
            edited.run();
            let bundle =
                |world: &World| world.status.bundle.as_ref().map(|bundle| (bundle.state, bundle.reason.clone()));
            let (before, together) = (edited.verdict("p").0, bundle(&edited));
            edited.edit(|spec| spec["gates"] = gates);
            edited.run();
            assert_eq!(edited.verdict("p"), fresh.verdict("p"), "{name}, {phase}");
            assert_eq!(bundle(&edited), bundle(&fresh), "{name}, {phase}");
            if fresh.verdict("p").0 != before {
                judged.entry(kind).or_insert_with(Vec::new).push(name.as_str());
            }
            if fresh.verdict("p").0 != before || bundle(&fresh) != together {
                unread.remove(name.as_str());
            }
        }
    }
    assert!(unread.is_empty(), "no verdict depends on {unread:?}: let `worse` report what these gates bound");
    // The world is one in which the gates of a phase matter.
    let of_every_phase = ["gpuMemory", "gpuMemoryIncrease", "maxOffloadOverhead"];
    assert_eq!(judged[&0], of_every_phase, "add a gate that judges every phase to this list");
    let of_quality = ["trainingLossWithin", "validationLossDelta", "validationLossWithin", "validationMetrics"];
    assert!(of_quality.iter().all(|gate| judged[&1].contains(gate)), "{judged:?}");
}

/// Every field of the analysis that is an input of verdicts, at another value. Without `..`: a new field needs a value
/// here, or a reason.
fn other_analysis() -> Vec<(&'static str, Value)> {
    let Analysis {
        warmup_steps: _,
        window_steps: _,
        max_window_seconds: _,
        min_pairs: _,
        max_pairs: _,
        alpha_percent: _,
        on_inconclusive: _,
        quality_items: _,
        quality_epochs: _,
        quality_looks: _,
        // An accepted phase stays so under a smaller budget.
        budget_percent: _,
        // Which launches are evidence, not what is required of them.
        reuse_control: _,
    } = Analysis::default();
    vec![
        ("warmupSteps", json!(7)),
        ("windowSteps", json!(90)),
        ("maxWindowSeconds", json!(77)),
        ("minPairs", json!(4)),
        ("maxPairs", json!(5)),
        ("alphaPercent", json!("1")),
        ("onInconclusive", json!("Accept")),
        ("qualityItems", json!(4096)),
        ("qualityEpochs", json!(1)),
        ("qualityLooks", json!(3)),
    ]
}

#[test]
fn verdicts_and_all_together_are_measured_as_the_edited_analysis_asks() {
    let phases = json!([{"name": "p", "numerics": "Changed", "settings": {"precision": "bf16"}},
        {"name": "q", "settings": {"compile": "Fuse"}}]);
    let world = |analysis: Value| {
        let spec = json!({"phases": phases, "gates": {"validationLossDelta": "5"}, "analysis": analysis});
        World::new(spec, worse())
    };
    for (name, value) in other_analysis() {
        let analysis = json!({name: value});
        let mut fresh = world(analysis.clone());
        fresh.run();
        let mut edited = world(json!({}));
        edited.run();
        let before = edited.status.bundle.as_ref().map(|bundle| bundle.input_hash.clone());
        edited.edit(|spec| spec["analysis"] = analysis);
        edited.run();
        assert_eq!(edited.verdict("p"), fresh.verdict("p"), "{name}");
        let speedup = |world: &World| world.status.bundle.as_ref().and_then(|bundle| bundle.speedup.clone());
        let pairs = |world: &World| speedup(world).map(|speedup| speedup.pairs);
        assert_eq!(pairs(&edited), pairs(&fresh), "{name}");
        let after = edited.status.bundle.as_ref().map(|bundle| bundle.input_hash.clone());
        assert_ne!(before, after, "{name} is an input of all together");
    }
}

#[test]
fn other_devices_are_measured_again_phase_by_phase_and_together() {
    let phases =
        json!([{"name": "p", "settings": {"precision": "bf16"}}, {"name": "q", "settings": {"compile": "Fuse"}}]);
    let mut world = World::new(json!({"phases": phases}), crate::world::factors(&[("Fuse", 1.3), ("bf16", 1.3)]));
    world.run();
    let names = |world: &World| {
        let launches = world.status.bundle.iter().flat_map(|bundle| &bundle.launches);
        launches.map(|launch| launch.name.clone()).collect::<BTreeSet<_>>()
    };
    let before = names(&world);
    assert!(!before.is_empty());
    world.edit(|spec| spec["trainer"]["gpuResource"] = json!("example.com/gpu"));
    world.run();
    let after = names(&world);
    assert!(!after.is_empty() && after.is_disjoint(&before), "{before:?} {after:?}");
}
