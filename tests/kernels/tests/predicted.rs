//! What a program will take on a GPU is predicted without one.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use pawl_contract::settings::Settings;
use pawl_cuda::{Choices, predict};
use pawl_graph::{
    graph::Role,
    optim::OptimizerKernel,
    passes::{Float8, Pattern, Scaling},
    recipe::{AttentionKernel, Precision, Recipe},
};
use pawl_kernels::{SlmStep, UpsStep};
use pawl_lower::LowerOptions;
use pawl_workloads::Request;
use serde_json::json;

const GIB: f64 = (1_u64 << 30) as f64;

#[test]
fn memory_of_ups_follows_batch_recomputation_and_offload() {
    let fused = LowerOptions::default();
    let bytes = |recompute, items, offload| {
        let step = UpsStep {
            preset: "full".into(),
            items,
            pairs: None,
            auxiliary: false,
            precision: Precision::BF16,
            attention: AttentionKernel::Flash,
            recompute,
        };
        let program = step.program().unwrap();
        let memory =
            predict(std::slice::from_ref(&program), Choices { lowering: &fused, tf32: false, offload }).unwrap();
        (memory, program)
    };
    let (kept, program) = bytes(false, 28, false);
    let (recomputed, _) = bytes(true, 28, false);
    println!("planned: {:.2} and {:.2} GiB", kept.planned as f64 / GIB, recomputed.planned as f64 / GIB);
    assert!(2 * recomputed.planned < kept.planned);
    let (half, _) = bytes(false, 14, false);
    let values = |memory: pawl_graph::executor::MemoryReport| (memory.planned - memory.states) as f64;
    assert!((values(kept) / values(half) - 2.0).abs() < 0.1, "values grow with the batch");

    // What lies in host memory is not on the GPU, and nothing else moves.
    let (offloaded, _) = bytes(false, 28, true);
    let optimizer = program.states.iter().filter(|state| state.role == Role::Optimizer);
    let optimizer: usize = optimizer.map(|state| state.meta.bytes()).sum();
    let saved = kept.planned - offloaded.planned;
    assert!(saved >= optimizer && saved < optimizer + optimizer / 100 + 65_536, "{saved} of {optimizer}");
    assert_eq!(values(offloaded), values(kept));
}

/// The base of an adapted model is held in half the bytes of bfloat16; what is kept for the backward pass stays.
#[test]
fn frozen_weights_in_fp8_take_half_the_memory() {
    let fused = LowerOptions::default();
    let memory = |size: &str, windows, precision| {
        let step =
            SlmStep { size: size.into(), windows, precision, float8: Float8::default(), int8: false, recompute: false };
        let program = step.program().unwrap();
        let choices = Choices { lowering: &fused, tf32: false, offload: false };
        let memory = predict(std::slice::from_ref(&program), choices).unwrap();
        let gib = |bytes: usize| bytes as f64 / GIB;
        println!(
            "{size} x {windows} {precision:?}: states {:.2}, planned {:.2} GiB",
            gib(memory.states),
            gib(memory.planned)
        );
        memory
    };
    // Matrices of blocks: 16 of 60.8 and 32 of 218.1 million weights.
    for (size, windows, weights) in [("1b", 32, 16.0 * 60.8e6), ("8b", 32, 32.0 * 218.1e6)] {
        let [bfloat, eight] = [Precision::BF16, Precision::FP8].map(|precision| memory(size, windows, precision));
        let saved = (bfloat.states - eight.states) as f64;
        assert!((saved / weights - 1.0).abs() < 0.01, "{size}: {saved} of {weights}");
        let values = |memory: pawl_graph::executor::MemoryReport| (memory.planned - memory.states) as f64;
        assert!(values(eight) < 1.02 * values(bfloat), "{size}: {} and {}", values(eight), values(bfloat));
    }
}

/// The program that counts numbers out of the range of 8-bit floats runs in the memory of a step.
#[test]
fn counting_numbers_out_of_range_needs_no_more_memory() {
    let fused = LowerOptions::default();
    let choices = Choices { lowering: &fused, tf32: false, offload: false };
    for scaling in [Scaling::Row, Scaling::Delayed] {
        let float8 = Float8 { scaling, ..Float8::default() };
        let step = SlmStep {
            size: "1b".into(),
            windows: 32,
            precision: Precision::FP8,
            float8,
            int8: false,
            recompute: false,
        };
        let programs = [step.program().unwrap(), step.float8_out_of_range().unwrap()];
        let planned = |programs| predict(programs, choices).unwrap().planned;
        let (alone, counted) = (planned(&programs[..1]), planned(&programs[..]));
        assert!(counted <= alone + alone / 100, "{scaling:?}: {counted} and {alone}");
    }
}

/// One update of all parameters reads their gradients as one array, which is not held while activations are alive. (The
/// phase `fused-optimizer` of examples/forex.yaml has the gate `gpuMemoryIncrease: "0"`.)
#[test]
fn a_fused_optimizer_needs_no_more_memory_than_one_update_a_parameter() {
    let planned = |(name, config, batch): &(&str, serde_json::Value, u32), kernel, unfused: &[&str]| {
        let workload = pawl_workloads::workload(name).unwrap();
        let settings = Settings { batch_per_gpu: Some(*batch), ..Settings::default() };
        let config = config.as_object().cloned().unwrap();
        let job = workload.prepare(&Request { config, settings, seed: 42, rank: 0, world: 1 }).unwrap();
        let (optimization, programs) = (job.optimization(), job.programs());
        let patterns = |scopes: &[&str]| scopes.iter().map(|scope| Pattern::new(scope)).collect::<Vec<_>>();
        let recipe = Recipe {
            full_precision: patterns(programs.regions.float32),
            rematerialize: patterns(programs.regions.rematerialized),
            kernel,
            groups: optimization.groups.clone(),
            average: optimization.average,
            clip: Some(1.0),
            ..Recipe::new(optimization.optimizer.clone())
        };
        let program = recipe.step(programs.train.first().unwrap()).unwrap();
        let lowering = LowerOptions { unfused: unfused.iter().map(|scope| (*scope).to_owned()).collect() };
        predict(&[program], Choices { lowering: &lowering, tf32: false, offload: false }).unwrap().planned
    };
    for case in [
        ("forex", json!({"preset": "medium"}), 64),
        ("vision-bdh", json!({"preset": "medium"}), 64),
        ("atft-gat-fan", json!({"preset": "medium"}), 2048),
        ("slm", json!({"size": "125m", "method": "Full", "sequence": 1024}), 8),
        ("ups", json!({"preset": "full", "loss": {"auxiliary": "None"}}), 8),
    ] {
        for unfused in [&[LowerOptions::EVERYTHING][..], &[]] {
            let [each, all] =
                [OptimizerKernel::PerTensor, OptimizerKernel::Fused].map(|kernel| planned(&case, kernel, unfused));
            let increase = all as f64 / each as f64 - 1.0;
            println!("{}, unfused {unfused:?}: {each} and {all} bytes, {:+.3} %", case.0, increase * 100.0);
            assert!(all <= each, "{}, unfused {unfused:?}: {each} and {all}", case.0);
        }
    }
}
