//! Model FLOP utilization (MFU): the model's operations of a step divided by the device's peak in that time.

use crate::session::Lineup;
use pawl_contract::settings::{Precision, Settings};
use pawl_graph::graph::{AttentionSpec, Graph, Node, Op, Program, Stage};
use pawl_workloads::{At, Job};

/// Dense peak in TFLOP/s of 8-bit floats (0: it has none), 16-bit floats and TensorFloat-32 on tensor cores, and of
/// float32 without them, by a part of the device's name; from NVIDIA's data sheets.
const PEAKS: [(&str, [f64; 4]); 9] = [
    ("B200", [4500.0, 2250.0, 1125.0, 75.0]),
    ("GH200", [1978.9, 989.4, 494.7, 66.9]),
    ("H200", [1978.9, 989.4, 494.7, 66.9]),
    ("H100 PCIe", [1513.0, 756.0, 378.0, 51.2]),
    ("H100", [1978.9, 989.4, 494.7, 66.9]),
    ("A100", [0.0, 312.0, 156.0, 19.5]),
    ("L40S", [733.0, 362.0, 183.0, 91.6]),
    ("L4", [242.0, 121.0, 60.0, 30.3]),
    ("A10G", [0.0, 70.0, 35.0, 31.2]),
];

/// Peak of a device in FLOP/s for matrix products in the precision of `settings`; `None` for an unknown device,
/// and for one without these numbers.
pub fn peak(device: &str, settings: &Settings) -> Option<f64> {
    let words: Vec<&str> = device.split([' ', '-']).collect();
    let called = |name: &str| name.split(' ').all(|word| words.contains(&word));
    // Variants with a lower power limit and MIG slices have a lower peak.
    if called("NVL") || called("MIG") {
        return None;
    }
    let (_, [quarter, half, tf32, single]) = PEAKS.iter().find(|(name, _)| called(name))?;
    let teraflops = match settings.precision() {
        Precision::Fp8 => quarter,
        Precision::Bf16 | Precision::Fp16 => half,
        Precision::Tf32 => tf32,
        Precision::Fp32 => single,
    };
    (*teraflops > 0.0).then_some(teraflops * 1e12)
}

/// Steps over which [`per_item`] averages.
const STEPS: u64 = 1000;

/// [`of_micro_step`] for an item, on average over a run's first thousand steps: not every micro-step has the same
/// losses. A step takes `step_items` in `accumulation` micro-steps.
pub fn per_item(job: &dyn Job, lineup: &Lineup, step_items: u64, accumulation: u32) -> f64 {
    let variants = 0..job.programs().train.len();
    let costs: Vec<f64> = variants.map(|variant| of_micro_step(lineup.micro_program(variant)) as f64).collect();
    let micro_steps = |step| (0..accumulation).map(move |micro| At { items: step * step_items, micro });
    let sum: f64 = (0..STEPS).flat_map(micro_steps).map(|at| costs[job.variant(at)]).sum();
    sum / (STEPS * u64::from(accumulation)) as f64 / f64::from(job.items_per_batch())
}

/// Floating point operations of the matrix products in the forward and backward pass of `micro_step`, without
/// recomputation, masked attention scores and the optimizer.
pub fn of_micro_step(micro_step: &Program) -> u64 {
    let graph = &micro_step.graph;
    graph.nodes().iter().map(|node| of_node(graph, node)).sum()
}

fn of_node(graph: &Graph, node: &Node) -> u64 {
    if !matches!(node.stage, Stage::Forward | Stage::Backward) {
        return 0;
    }
    let shape = |operand: usize| &graph.meta(node.operands[operand]).shape;
    // Scores, and their products with the values.
    let attention = |spec: &AttentionSpec| {
        let (queries, keys) = (shape(0), shape(1));
        let all = 4 * (queries.elements() * keys[2]) as u64;
        if spec.causal { all / 2 } else { all }
    };
    match &node.op {
        Op::MatMul { transpose_a, .. } | Op::ScaledMatMul { transpose_a, .. } => {
            let a = shape(0);
            let depth = a[a.rank() - if *transpose_a { 2 } else { 1 }];
            2 * (node.meta.shape.elements() * depth) as u64
        }
        Op::Attention(spec) => attention(spec),
        Op::NormedAttention(spec) => attention(&spec.attention),
        Op::AttentionGrad(spec) => 2 * attention(spec),
        Op::NormedAttentionGrad(spec) => 2 * attention(&spec.attention),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::recipe;
    use crate::session::Lineup;
    use pawl_contract::settings::ActivationCheckpointing;
    use pawl_workloads::Request;
    use pawl_workloads::slm::{SlmJob, learning_parameters};
    use pawl_workloads::ups::UpsJob;
    use serde_json::json;

    /// FLOPs per token by the language model's specification.
    #[test]
    fn a_micro_step_costs_what_the_formula_says() {
        for (config, checkpointing) in [
            (json!({"size": "tiny"}), ActivationCheckpointing::None),
            (json!({"size": "tiny"}), ActivationCheckpointing::Full),
            (json!({"size": "tiny", "method": "Lora"}), ActivationCheckpointing::None),
            (json!({"size": "125m"}), ActivationCheckpointing::None),
        ] {
            let settings = Settings {
                batch_per_gpu: Some(4),
                precision: Some(Precision::Bf16),
                attention: Some(pawl_contract::settings::Attention::Flash),
                activation_checkpointing: Some(checkpointing),
                ..Settings::default()
            };
            let config = config.as_object().unwrap().clone();
            let job = SlmJob::new(&Request { config, settings: settings.clone(), seed: 1, rank: 0, world: 1 }).unwrap();
            let lineup = Lineup::new(&recipe(&settings, &job, (0, 1)).unwrap(), job.programs()).unwrap();
            let of = job.config();
            let adapters = learning_parameters(&job.programs().train[0]);
            let tokens = 4 * of.sequence as u64;
            let expected = (tokens * of.architecture.flops_per_token(of.method, of.sequence, adapters)) as f64;
            let counted = of_micro_step(lineup.micro_program(0)) as f64;
            // The formula counts gains as if they were multiplied with, and adapters in the input's gradient of the
            // first block.
            assert!((counted / expected - 1.0).abs() < 0.04, "{counted} of {expected}: {:?}", of.method);
        }
    }

    #[test]
    fn losses_of_one_micro_step_in_four_are_a_quarter_of_each() {
        let settings = Settings {
            batch_per_gpu: Some(2),
            accumulation_steps: Some(4),
            loss_frequency: Some(4),
            ..Settings::default()
        };
        let config = json!({"preset": "smoke", "loss": {"auxiliary": "Live"}}).as_object().unwrap().clone();
        let job = UpsJob::new(&Request { config, settings: settings.clone(), seed: 1, rank: 0, world: 1 }).unwrap();
        let lineup = Lineup::new(&recipe(&settings, &job, (0, 1)).unwrap(), job.programs()).unwrap();
        let [with, without] = [0, 1].map(|variant| of_micro_step(lineup.micro_program(variant)) as f64);
        assert!(with > 1.1 * without, "{with} {without}");
        let expected = (with + 3.0 * without) / 4.0 / 2.0;
        assert!((per_item(&job, &lineup, 8, 4) / expected - 1.0).abs() < 1e-9);
    }

    #[test]
    fn peaks_are_by_device_and_precision() {
        let settings = |precision| Settings { precision: Some(precision), ..Settings::default() };
        assert_eq!(peak("NVIDIA H200", &settings(Precision::Bf16)), Some(989.4e12));
        assert_eq!(peak("NVIDIA H200", &settings(Precision::Fp8)), Some(1978.9e12));
        assert_eq!(peak("NVIDIA A100-SXM4-80GB", &settings(Precision::Fp8)), None, "it has no such numbers");
        assert_eq!(peak("NVIDIA H100 PCIe", &settings(Precision::Tf32)), Some(378e12));
        assert_eq!(peak("NVIDIA A100-SXM4-80GB", &settings(Precision::Fp32)), Some(19.5e12));
        for unknown in
            ["Tesla T4", "NVIDIA L40", "NVIDIA GB200", "NVIDIA H100 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"]
        {
            assert_eq!(
                peak(unknown, &settings(Precision::Fp16)),
                None,
                "no number is better than a wrong one: {unknown}"
            );
        }
    }
}
