//! Every kernel that programs lead to compiles, for every architecture: no GPU is needed.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::collections::HashSet;

use pawl_engine::{
    cuda::{
        attention,
        compile::{Architecture, Compiler, Source},
        source,
    },
    graph::Program,
    lower::{Body, LowerOptions, Lowered},
    optim::{AdamW, Optimizer},
    recipe::{AttentionKernel, Precision, Recipe},
    testing::{random_case, transformer},
};
use pawl_kernels::UpsStep;

/// Multiprocessors of the GPU that kernels are made for, and its shared memory.
const H200: (usize, usize) = (132, 227 * 1024);

/// Sources of all kernels of a program, each once.
fn sources(program: &Program, found: &mut HashSet<Source>) {
    let lowered = Lowered::new(program, &LowerOptions::default());
    for kernel in &lowered.kernels {
        let generated = source::generate(&kernel.body, &lowered.buffers, H200.0);
        found.extend(generated.map(|generated| generated.source));
        let plan = match &kernel.body {
            Body::Attention(kernel) => attention::forward(kernel, &lowered.buffers, H200.1).unwrap(),
            Body::AttentionGrad(kernel) => attention::backward(kernel, &lowered.buffers, H200.1).unwrap(),
            Body::MatMul(kernel) => {
                found.insert(source::product(kernel, &lowered.buffers).source);
                continue;
            }
            _ => continue,
        };
        found.extend(plan.launches.into_iter().map(|launch| launch.source));
    }
}

fn compile(found: &HashSet<Source>) {
    let sources: Vec<&Source> = found.iter().collect();
    for (major, minor) in [(8, 0), (9, 0), (10, 0)] {
        let compiler = Compiler::new(Architecture::new(major, minor), None).unwrap();
        if let Err(error) = compiler.compile_all(&sources) {
            panic!("sm_{major}{minor}, one of {} sources: {error}", sources.len());
        }
    }
}

#[test]
fn kernels_of_random_programs() {
    let mut found = HashSet::new();
    for seed in 0..6 {
        sources(&random_case(seed, 12 + (seed as usize * 7) % 60).program, &mut found);
    }
    sources(&random_case(3, 40).widened().unwrap().program, &mut found);
    compile(&found);
}

#[test]
fn kernels_of_a_transformer_in_every_precision() {
    let mut found = HashSet::new();
    for precision in [Precision::F32, Precision::BF16, Precision::F16] {
        let recipe = Recipe { precision, ..Recipe::new(Optimizer { matrices: None, others: AdamW::default() }) };
        sources(&recipe.step(&transformer(3)).unwrap(), &mut found);
    }
    compile(&found);
}

#[test]
fn kernels_of_ups_at_full_size() {
    let mut found = HashSet::new();
    for precision in [Precision::BF16, Precision::F32] {
        let step = UpsStep {
            preset: "full".into(),
            items: 30,
            pairs: None,
            auxiliary: false,
            precision,
            attention: AttentionKernel::Flash,
            recompute: true,
        };
        sources(&step.program().unwrap(), &mut found);
    }
    compile(&found);
}
