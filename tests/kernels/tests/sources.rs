//! Every kernel that programs lead to compiles, for every architecture: no GPU is needed.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::collections::HashSet;
use std::path::Path;

use pawl_cuda::{
    attention,
    compile::{Architecture, Compiler, Source},
    source,
};
use pawl_engine_tests::{feature_networks, operators, random_case, transformer};
use pawl_graph::{
    graph::{Builder, DType, Init, Program, Role, StateDecl},
    optim::{AdamW, Optimizer},
    passes::Pattern,
    recipe::{AttentionKernel, Precision, Recipe},
};
use pawl_kernels::{ForexStep, SlmStep, UpsStep, VisionStep};
use pawl_lower::{Body, LowerOptions, Lowered};

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

/// Compiles them; what this NVRTC compiled before in this target folder is not compiled again.
fn compile(found: &HashSet<Source>) {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let sources: Vec<&Source> = found.iter().collect();
    for (major, minor) in [(8, 0), (9, 0), (10, 0)] {
        let compiler = Compiler::new(Architecture::new(major, minor), Some(&cache)).unwrap();
        if let Err(error) = compiler.compile_all(&sources, &|| ()) {
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

/// Segments and recurrences of odd sizes, in both dtypes; and networks of single features, whose dropout draws under another key in each chunk.
#[test]
fn kernels_of_segments_recurrences_and_features() {
    let mut found = HashSet::new();
    for case in [operators::segments().unwrap(), operators::recurrences().unwrap()].into_iter().flatten() {
        sources(&case.case.program, &mut found);
    }
    let recipe = Recipe {
        precision: Precision::BF16,
        rematerialize: vec![Pattern::new("features/chunk.*")],
        ..Recipe::new(Optimizer { matrices: None, others: AdamW::default() })
    };
    sources(&recipe.step(&feature_networks([245_760, 8, 48, 256], 4, 0.1)).unwrap(), &mut found);
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

fn full_ups(precision: Precision) -> Program {
    let step = UpsStep {
        preset: "full".into(),
        items: 30,
        pairs: None,
        auxiliary: false,
        precision,
        attention: AttentionKernel::Flash,
        recompute: true,
    };
    step.program().unwrap()
}

#[test]
fn kernels_of_ups_at_full_size() {
    let mut found = HashSet::new();
    for precision in [Precision::BF16, Precision::F32] {
        sources(&full_ups(precision), &mut found);
    }
    compile(&found);
}

/// A block of every width of head, adapters, 8-bit weights, vocabularies longer than a row that fits in registers.
#[test]
fn kernels_of_the_language_model() {
    let step = |size: &str, windows, precision, int8| {
        let step = SlmStep { size: size.into(), windows, precision, int8, recompute: int8 };
        step.program().unwrap()
    };
    let mut found = HashSet::new();
    for program in [
        step("tiny", 4, Precision::F32, false),
        step("125m", 32, Precision::BF16, false),
        step("125m", 8, Precision::F32, false),
        step("1b", 32, Precision::BF16, false),
        step("8b", 32, Precision::BF16, false),
        step("8b", 16, Precision::BF16, true),
    ] {
        sources(&program, &mut found);
    }
    compile(&found);
}

#[test]
fn kernels_of_vision_bdh_at_full_size() {
    let mut found = HashSet::new();
    for (images, precision, recompute, resident) in
        [(128, Precision::BF16, false, false), (64, Precision::F32, true, false), (128, Precision::BF16, false, true)]
    {
        let step = VisionStep { preset: "medium".into(), images, precision, recompute, resident };
        sources(&step.program().unwrap(), &mut found);
    }
    compile(&found);
}

#[test]
fn kernels_of_forex_at_full_size() {
    let mut found = HashSet::new();
    for (windows, precision) in [(64, Precision::F32), (512, Precision::BF16)] {
        let step = ForexStep { preset: "medium".into(), windows, precision };
        for program in step.programs().unwrap() {
            sources(&program, &mut found);
        }
    }
    compile(&found);
}

/// Twelve blocks at other addresses are one block's code: what is compiled, and cached, stays small.
#[test]
fn blocks_of_a_model_share_their_code() {
    let program = full_ups(Precision::BF16);
    let lowered = Lowered::new(&program, &LowerOptions::default());
    let mut found = HashSet::new();
    sources(&program, &mut found);
    assert!(found.len() * 4 < lowered.kernels.len(), "{} sources of {} kernels", found.len(), lowered.kernels.len());
}

/// What a kernel writes it may not read past the first-level cache, which would not see the writes; and every buffer is a parameter, so
/// that sources hold no addresses.
#[test]
fn updates_in_place_read_what_they_write() {
    let b = Builder::new("in place");
    let state = b.state(StateDecl::f32("x", [64, 128], Role::Optimizer, Init::Fill(1.0)));
    b.update(state, state * 0.5 + b.input("y", DType::F32, [64, 128]));
    let lowered = Lowered::new(&b.finish().unwrap(), &LowerOptions::default());
    let [kernel] = &lowered.kernels[..] else { panic!("one kernel: {}", lowered.dump_kernels()) };
    let generated = source::generate(&kernel.body, &lowered.buffers, H200.0).unwrap();
    let (_, own) = generated.source.text.split_once("main_kernel").unwrap();
    assert_eq!(own.matches("load_written<").count(), 1, "{own}");
    assert_eq!(own.matches("load_once<").count(), 1, "{own}");
    assert_eq!(generated.arguments.len(), 3);
}

/// Guards against code that halved the memory throughput of kernels: conversions of single numbers, remainders of 64 bits for each element, and sums of
/// columns that do not prefetch the next rows.
#[test]
fn memory_is_what_kernels_wait_for() {
    let mut found = HashSet::new();
    sources(&full_ups(Precision::BF16), &mut found);
    let ups = found.len();
    let step = SlmStep { size: "125m".into(), windows: 32, precision: Precision::BF16, int8: false, recompute: false };
    sources(&step.program().unwrap(), &mut found);
    assert!(found.len() > ups);
    for text in found.iter().filter(|source| source.name.starts_with("fused_")).map(|source| &source.text) {
        assert!(!text.contains("cvt.rn.bf16.f32"));
        assert!(!text.contains("number + j"), "{text}");
        let sums_columns = (0..8).any(|fold| text.contains(&format!(" f{fold}[H][V];")));
        assert_eq!(text.contains("Step next = fetch("), sums_columns, "{text}");
    }
}
