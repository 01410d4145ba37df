//! Every gate of every example can pass and can fail: for each, a run that passes and one that fails are planted, and
//! judged by that gate with the value that the example has.
//!
//! The reports are of the example's workload at smoke size, on the CPU of this machine: see [`smoke`]. Speeds, the
//! memory of GPUs, their utilization and the cost of offloading cannot be measured here; there the value in such a
//! report is replaced ([`Plant::Reported`]). Quality is trained: a harmless change and a learning rate with which
//! nothing is learnt ([`Plant::Trained`]).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod decided;
mod smoke;

use pawl_api::TrainingJob;
use pawl_api::spec::{Gates, JudgingBudget, MetricGate};
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use pawl_contract::settings::OptimizerKernel;
use serde_json::{Value, json};
use smoke::{Run, Smoke};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// How a gate is exercised.
#[derive(Clone, Copy, Debug)]
enum Plant {
    /// By trainings with these seeds; `None`: those of the example.
    Trained(Option<u64>),
    /// By the memory that the workload takes on this CPU, in the settings of both phases.
    Measured(fn() -> (Smoke, Value, Value)),
    /// By a value in the reports of the measurements: what the phase reports that passes, and the one that fails.
    Reported(fn(&mut LaunchResult, &Gates, Arm)),
}

/// Which launch a value is planted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Control,
    Passes,
    Fails,
}

const TRAINED: Plant = Plant::Trained(None);

/// Examples, their gates, and how each is exercised. A gate that is not here fails the test.
const PLANTED: &[(&str, &str, Plant)] = &[
    // RankIC is noise around 0 before training: with this seed it is below the gate.
    ("atft-search.yaml", "validationMetrics.rankic_1d.min", Plant::Trained(Some(43))),
    ("atft-search.yaml", "maxEpochSeconds", Plant::Reported(epoch)),
    ("atft-search.yaml", "minGpuUtilization", Plant::Reported(utilization)),
    ("atft-search.yaml", "minItemsPerSecond", Plant::Reported(throughput)),
    ("atft-tiny.yaml", "validationMetrics.rankic_1d.min", Plant::Trained(Some(43))),
    ("atft.yaml", "maxEpochSeconds", Plant::Reported(epoch)),
    ("atft.yaml", "minGpuUtilization", Plant::Reported(utilization)),
    ("atft.yaml", "minItemsPerSecond", Plant::Reported(throughput)),
    ("atft.yaml", "validationLossDelta", TRAINED),
    ("atft.yaml", "validationMetrics.rankic_1d.min", TRAINED),
    ("forex.yaml", "gpuMemoryIncrease", Plant::Measured(forex_memory)),
    ("forex.yaml", "maxEpochSeconds", Plant::Reported(epoch)),
    ("forex.yaml", "overallSpeedup", Plant::Reported(speedup)),
    ("forex.yaml", "trainingLossWithin", TRAINED),
    ("forex.yaml", "validationLossWithin", TRAINED),
    ("forex.yaml", "validationMetrics.crps_60m.maxRelativeDifference", TRAINED),
    ("forex.yaml", "validationMetrics.rmse_60m.maxRelativeDifference", TRAINED),
    ("quickstart.yaml", "gpuMemory", Plant::Measured(quickstart_memory)),
    ("quickstart.yaml", "validationLossDelta", TRAINED),
    ("quickstart.yaml", "validationMetrics.nrmse.maxRelativeRegression", TRAINED),
    ("slm-8b-1gpu.yaml", "gpuMemory", Plant::Reported(memory)),
    ("slm-8b-1gpu.yaml", "overallSpeedup", Plant::Reported(speedup)),
    ("slm-8b-1gpu.yaml", "validationLossDelta", TRAINED),
    ("slm-8b-32gb.yaml", "gpuMemory", Plant::Reported(memory)),
    ("slm-8b-32gb.yaml", "overallSpeedup", Plant::Reported(speedup)),
    ("slm-8b-32gb.yaml", "validationLossDelta", TRAINED),
    ("slm-fp8.yaml", "validationLossDelta", TRAINED),
    ("ups-1gpu.yaml", "gpuMemory", Plant::Reported(memory)),
    ("ups-1gpu.yaml", "overallSpeedup", Plant::Reported(speedup)),
    ("ups-1gpu.yaml", "validationLossDelta", TRAINED),
    ("ups-1gpu.yaml", "validationMetrics.nrmse.maxRelativeRegression", TRAINED),
    ("ups-2gpu.yaml", "gpuMemory", Plant::Reported(memory)),
    ("ups-2gpu.yaml", "maxOffloadOverhead", Plant::Reported(offload)),
    ("ups-2gpu.yaml", "overallSpeedup", Plant::Reported(speedup)),
    ("ups-2gpu.yaml", "validationLossDelta", TRAINED),
    ("ups-2gpu.yaml", "validationMetrics.nrmse.maxRelativeRegression", TRAINED),
    ("ups-4gpu.yaml", "gpuMemory", Plant::Reported(memory)),
    ("ups-4gpu.yaml", "maxOffloadOverhead", Plant::Reported(offload)),
    ("ups-4gpu.yaml", "overallSpeedup", Plant::Reported(speedup)),
    ("ups-4gpu.yaml", "validationLossDelta", TRAINED),
    ("ups-4gpu.yaml", "validationMetrics.nrmse.maxRelativeRegression", TRAINED),
    ("ups-fp8.yaml", "gpuMemory", Plant::Reported(memory)),
    ("ups-fp8.yaml", "validationLossDelta", TRAINED),
    ("ups-fp8.yaml", "validationMetrics.nrmse.maxRelativeRegression", TRAINED),
    ("vision-bdh-tiny.yaml", "validationMetrics.accuracy.maxRegression", TRAINED),
    ("vision-bdh.yaml", "gpuMemory", Plant::Reported(memory)),
    ("vision-bdh.yaml", "minGpuUtilization", Plant::Reported(utilization)),
    ("vision-bdh.yaml", "validationMetrics.accuracy.maxRegression", TRAINED),
];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn job(example: &str) -> TrainingJob {
    let text = std::fs::read_to_string(examples().join(example)).unwrap();
    pawl_manifest::parse(&text, example).unwrap()
}

/// The gates that are set, by name; each bound on a metric is one. Destructured without `..`: a new gate is added here.
fn gates(gates: &Gates) -> Vec<String> {
    let Gates {
        overall_speedup,
        validation_loss_delta,
        validation_loss_within,
        training_loss_within,
        validation_metrics,
        gpu_memory,
        gpu_memory_increase,
        min_gpu_utilization,
        min_items_per_second,
        max_epoch_seconds,
        max_offload_overhead,
    } = gates;
    let single = [
        ("overallSpeedup", overall_speedup.is_some()),
        ("validationLossDelta", validation_loss_delta.is_some()),
        ("validationLossWithin", validation_loss_within.is_some()),
        ("trainingLossWithin", training_loss_within.is_some()),
        ("gpuMemory", gpu_memory.is_some()),
        ("gpuMemoryIncrease", gpu_memory_increase.is_some()),
        ("minGpuUtilization", min_gpu_utilization.is_some()),
        ("minItemsPerSecond", min_items_per_second.is_some()),
        ("maxEpochSeconds", max_epoch_seconds.is_some()),
        ("maxOffloadOverhead", max_offload_overhead.is_some()),
    ];
    let mut found: Vec<String> = single.iter().filter(|(_, set)| *set).map(|(name, _)| (*name).to_owned()).collect();
    for metric in validation_metrics {
        let MetricGate { name, better: _, max_relative_regression, max_relative_difference, max_regression, min, max } =
            metric;
        let bounds = [
            ("maxRelativeRegression", max_relative_regression.is_some()),
            ("maxRelativeDifference", max_relative_difference.is_some()),
            ("maxRegression", max_regression.is_some()),
            ("min", min.is_some()),
            ("max", max.is_some()),
        ];
        let set = bounds.iter().filter(|(_, set)| *set);
        found.extend(set.map(|(bound, _)| format!("validationMetrics.{name}.{bound}")));
    }
    found
}

/// The gates without all but the one with this name.
fn only(all: &Gates, gate: &str) -> Gates {
    let value = serde_json::to_value(all).unwrap();
    let mut path = gate.split('.');
    let field = path.next().unwrap();
    let kept = match (path.next(), path.next()) {
        (Some(name), Some(bound)) => {
            let metrics = value[field].as_array().unwrap();
            let metric = metrics.iter().find(|metric| metric["name"] == name).unwrap();
            json!([{"name": name, "better": metric["better"], bound: metric[bound]}])
        }
        _ => value[field].clone(),
    };
    serde_json::from_value(json!({field: kept})).unwrap()
}

#[test]
fn every_gate_of_every_example_has_a_planted_pair() {
    let files = std::fs::read_dir(examples()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found = BTreeSet::new();
    for file in files.filter(|file| file.ends_with(".yaml")) {
        found.extend(gates(&job(&file).spec.gates).into_iter().map(|gate| (file.clone(), gate)));
    }
    let planted: BTreeSet<_> = PLANTED.iter().map(|(file, gate, _)| ((*file).to_owned(), (*gate).to_owned())).collect();
    assert_eq!(planted.len(), PLANTED.len(), "a gate is planted twice");
    let missing: Vec<_> = found.difference(&planted).collect();
    assert!(missing.is_empty(), "gates without a planted pair: add a row to PLANTED for each of {missing:?}");
    let gone: Vec<_> = planted.difference(&found).collect();
    assert!(gone.is_empty(), "no example has these gates any more: {gone:?}");
}

#[test]
fn every_gate_of_every_example_passes_and_fails() {
    let mut wrong = Vec::new();
    for (file, gate, plant) in PLANTED {
        for arm in [Arm::Passes, Arm::Fails] {
            let (accepted, text) = judged(file, gate, *plant, arm);
            println!("{file} {gate}, {arm:?}: {text}");
            let named = gate.split('.').take(2).all(|word| text.contains(word));
            if accepted != (arm == Arm::Passes) || arm == Arm::Fails && !named {
                wrong.push(format!("{file} {gate}, {arm:?}: {text}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether the planted run is accepted by the gate, and what is said about it.
fn judged(file: &str, gate: &str, plant: Plant, arm: Arm) -> (bool, String) {
    let mut job = job(file);
    let spec = &mut job.spec;
    spec.gates = only(&spec.gates, gate);
    let name = spec.workload.name.clone().unwrap();
    let (smoke, patches) = match plant {
        Plant::Measured(memory) => {
            let (smoke, passes, fails) = memory();
            (smoke, [passes, fails])
        }
        Plant::Trained(_) | Plant::Reported(_) => {
            let smoke = if file == "quickstart.yaml" { quickstart() } else { smoke::of(&name) };
            (smoke, patches(gate, spec.settings.optimizer_kernel, plant))
        }
    };
    if let Plant::Trained(Some(seed)) = plant {
        spec.seeds = vec![u32::try_from(seed).unwrap()];
    }
    let patch = patches[usize::from(arm == Arm::Fails)].clone();
    let quality = matches!(plant, Plant::Trained(_));
    (spec.analysis.quality_items, spec.analysis.quality_epochs, spec.analysis.quality_looks) =
        (Some(smoke.items), None, 1);
    // The gate decides, also where the training does not pay for that.
    spec.analysis.budget_percent = Some(JudgingBudget::Unlimited);
    let searches = !spec.search.is_empty();
    if searches {
        // The first stage is a dry run of the settings, which the gates are for.
        spec.search.truncate(1);
        assert!(spec.search[0].dry_run, "{file}: the gates of a search are those of its dry run");
        spec.settings = spec.settings.with(&serde_json::from_value(patch.clone()).unwrap());
    } else {
        let numerics =
            if quality || arm == Arm::Fails && matches!(plant, Plant::Measured(_)) { "Changed" } else { "Equivalent" };
        let phase = json!({"name": "planted", "minSpeedup": "0.1", "numerics": numerics, "settings": patch});
        spec.phases = vec![serde_json::from_value(phase).unwrap()];
    }
    let baseline = job.spec.settings.clone();
    let kernel = serde_json::to_value(&baseline).unwrap()["optimizerKernel"].clone();
    let gates = job.spec.gates.clone();
    let status = decided::judged(&job, &|plan: &LaunchPlan| {
        let is_candidate = searches || plan.settings != baseline;
        // The settings of the example that matter at smoke size, and those of the phase.
        let mut settings = if is_candidate { patch.clone() } else { json!({}) };
        if !kernel.is_null() && settings.get("optimizerKernel").is_none() {
            settings["optimizerKernel"] = kernel.clone();
        }
        settings.as_object_mut().unwrap().remove("optimizerOffload");
        let kind = if matches!(plan.kind, LaunchKind::Quality | LaunchKind::Search) {
            LaunchKind::Quality
        } else {
            LaunchKind::Measure
        };
        let seed = if kind == LaunchKind::Quality { plan.seed } else { 42 };
        let report = smoke::report(&smoke, &Run { kind, settings, seed });
        let mut result = smoke::result(&report, plan);
        let arm = if is_candidate { arm } else { Arm::Control };
        planted(&mut result, plan, &gates, (plant, arm));
        result
    });
    decided::verdict(&status)
}

/// The settings of the phase that passes and of the one that fails.
fn patches(gate: &str, kernel: Option<OptimizerKernel>, plant: Plant) -> [Value; 2] {
    let other = if kernel == Some(OptimizerKernel::Fused) { "PerTensor" } else { "Fused" };
    let harmless = json!({"optimizerKernel": other});
    match plant {
        Plant::Trained(_) => [harmless, json!({"learningRate": "1e-9"})],
        _ if gate == "maxOffloadOverhead" => [json!({"optimizerOffload": "Cpu"}), json!({"optimizerOffload": "Cpu"})],
        _ => [harmless.clone(), harmless],
    }
}

/// Items per second of a launch without a planted speed.
const SPEED: f64 = 1000.0;

/// Replaces what this machine does not measure, or not reliably.
fn planted(result: &mut LaunchResult, plan: &LaunchPlan, gates: &Gates, (plant, arm): (Plant, Arm)) {
    let measured = &mut result.measured;
    if plan.kind != LaunchKind::Measure {
        if plan.kind == LaunchKind::Search {
            // As many items as the epochs of the dry run have here.
            measured.items = measured.items.max(plan.budget.items.unwrap_or_default());
        }
        return;
    }
    measured.steady = None;
    // A speed of its own, which launches repeat within a thousandth.
    let noise = 1.0
        + 1e-3 * f64::from(plan.launch.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte))) / 255.0;
    measured.items_per_second = Some(SPEED * noise);
    measured.step_seconds = None;
    if let Plant::Reported(change) = plant {
        change(result, gates, arm);
    }
    let measured = &mut result.measured;
    // As many steps as the window has to last.
    let step_items = measured.items / measured.steps.max(1);
    let warmup = plan.budget.warmup_steps.unwrap_or_default();
    let lasting =
        plan.budget.min_window_seconds.unwrap_or_default() * measured.items_per_second.unwrap() / step_items as f64;
    measured.steps = warmup + plan.budget.window_steps.unwrap_or_default().max(lasting.ceil() as u64);
    measured.items = measured.steps * step_items;
}

/// The value of a gate, times one factor in the arm that fails, and the other one in all others.
fn around(gate: Option<f64>, arm: Arm, (passes, fails): (f64, f64)) -> f64 {
    gate.unwrap() * if arm == Arm::Fails { fails } else { passes }
}

fn speedup(LaunchResult { measured, .. }: &mut LaunchResult, gates: &Gates, arm: Arm) {
    if arm != Arm::Control {
        let factor = around(gates.overall_speedup.as_ref().map(|gate| gate.value()), arm, (1.05, 0.95));
        measured.items_per_second = measured.items_per_second.map(|speed| speed * factor);
    }
}

fn throughput(LaunchResult { measured, .. }: &mut LaunchResult, gates: &Gates, arm: Arm) {
    let speed = around(gates.min_items_per_second.as_ref().map(|gate| gate.value()), arm, (1.05, 0.95));
    measured.items_per_second = measured.items_per_second.map(|noise| noise / SPEED * speed);
}

fn epoch(result: &mut LaunchResult, gates: &Gates, arm: Arm) {
    let seconds = around(gates.max_epoch_seconds.as_ref().map(|gate| gate.value()), arm, (0.95, 1.05));
    let speed = result.items_per_epoch.unwrap() as f64 / seconds;
    result.measured.items_per_second = result.measured.items_per_second.map(|noise| noise / SPEED * speed);
}

fn utilization(LaunchResult { measured, .. }: &mut LaunchResult, gates: &Gates, arm: Arm) {
    let gate = gates.min_gpu_utilization.as_ref().map(|gate| gate.value());
    measured.utilization = Some(around(gate, arm, (1.05, 0.95)));
}

fn offload(LaunchResult { measured, .. }: &mut LaunchResult, gates: &Gates, arm: Arm) {
    let gate = gates.max_offload_overhead.as_ref().map(|gate| gate.value());
    measured.offload_share = (arm != Arm::Control).then(|| around(gate, arm, (0.95, 1.05)));
}

fn memory(LaunchResult { measured, .. }: &mut LaunchResult, gates: &Gates, arm: Arm) {
    let gate = gates.gpu_memory.as_ref().map(|gate| gate.get() as f64);
    measured.peak_memory_bytes = Some(around(gate, arm, (0.95, 1.05)) as u64);
}

/// Recomputing activations takes less memory, twice as many windows more.
fn forex_memory() -> (Smoke, Value, Value) {
    (smoke::of("forex"), json!({"activationCheckpointing": "Full"}), json!({"batchPerGpu": 32}))
}

/// The quickstart, which is of smoke size.
fn quickstart() -> Smoke {
    let spec = job("quickstart.yaml").spec;
    let settings = serde_json::to_value(spec.settings).unwrap();
    Smoke {
        workload: "ups",
        config: Value::Object(spec.workload.config),
        settings,
        items: spec.analysis.quality_items.unwrap(),
    }
}

/// Its phases `compile` and `larger-batch`.
fn quickstart_memory() -> (Smoke, Value, Value) {
    (quickstart(), json!({"compile": "Graph"}), json!({"compile": "Graph", "batchPerGpu": 4}))
}
