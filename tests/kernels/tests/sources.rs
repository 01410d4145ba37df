//! Every kernel that programs lead to compiles, for every architecture: no GPU is needed.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::collections::HashSet;
use std::path::Path;

use pawl_cuda::{
    Card, attention,
    compile::{Architecture, Compiler, Source},
    source, specialize,
};
use pawl_engine_tests::{feature_networks, operators, random_case, transformer};
use pawl_graph::{
    executor::ExecError,
    graph::{Builder, DType, Init, Program, Role, StateDecl},
    optim::{AdamW, Optimizer},
    passes::{Float8, Pattern, Scaling},
    recipe::{AttentionKernel, Precision, Recipe},
};
use pawl_kernels::{ForexStep, SlmStep, UpsStep, VisionStep};
use pawl_lower::{Body, LowerOptions, Lowered};

/// A card of every architecture for which kernels are compiled: T4, A100, RTX 3080, RTX 4090, H200, B200, RTX 5090.
const CARDS: [Card; 7] = [
    Card { capability: (7, 5), multiprocessors: 40, shared: 64 << 10 },
    Card { capability: (8, 0), multiprocessors: 108, shared: 163 << 10 },
    Card { capability: (8, 6), multiprocessors: 68, shared: 99 << 10 },
    Card { capability: (8, 9), multiprocessors: 128, shared: 99 << 10 },
    Card::H200,
    Card { capability: (10, 0), multiprocessors: 148, shared: 227 << 10 },
    Card { capability: (12, 0), multiprocessors: 170, shared: 99 << 10 },
];

/// `tests/kernels/run --all`. Otherwise models are compiled for fewer cards, which takes minutes less: what differs
/// between architectures is in the small programs as well, and those are compiled for all.
fn all() -> bool {
    std::env::var_os("PAWL_ALL_KERNELS").is_some()
}

/// Cards for which models of full size are compiled: an H200; with `--all` an A100 too.
fn large_cards() -> &'static [Card] {
    if all() { &[CARDS[1], CARDS[4]] } else { &[CARDS[4]] }
}

/// Cards for which small models are compiled: a T4, an H200, an RTX 5090; with `--all` every one.
fn model_cards() -> &'static [Card] {
    if all() { &CARDS } else { &[CARDS[0], CARDS[4], CARDS[6]] }
}

/// Sources of all kernels of a program on a card, each once.
fn sources(program: &Program, card: Card, found: &mut HashSet<Source>) {
    let program = specialize(program, card, &LowerOptions::default()).unwrap();
    let lowered = Lowered::new(&program, &LowerOptions::default());
    for kernel in &lowered.kernels {
        let generated = source::generate(&kernel.body, &lowered.buffers, card.multiprocessors);
        found.extend(generated.map(|generated| generated.source));
        let plan = match &kernel.body {
            Body::Attention(kernel) => attention::forward(kernel, &lowered.buffers, card).unwrap(),
            Body::AttentionGrad(kernel) => attention::backward(kernel, &lowered.buffers, card).unwrap(),
            Body::MatMul(kernel) => {
                found.insert(source::product(kernel, &lowered.buffers).source);
                let scaling = source::scaling(kernel, &lowered.buffers, card.multiprocessors);
                found.extend(scaling.map(|scaling| scaling.source));
                continue;
            }
            _ => continue,
        };
        found.extend(plan.launches.into_iter().map(|launch| launch.source));
    }
}

/// Compiles all kernels of the programs that a card has the number formats for, for these cards; what this NVRTC
/// compiled before in this target folder is not compiled again.
fn compile(programs: &[Program], cards: &[Card]) {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    for &card in cards {
        let mut found = HashSet::new();
        let supported = programs.iter().filter(|program| card.check(std::slice::from_ref(program), false).is_ok());
        supported.for_each(|program| sources(program, card, &mut found));
        assert!(!card.is_ampere() || !found.is_empty());
        let (major, minor) = card.capability;
        let compiler = Compiler::new(Architecture::new(major, minor), Some(&cache)).unwrap();
        let sources: Vec<&Source> = found.iter().collect();
        if let Err(error) = compiler.compile_all(&sources, &|| ()) {
            panic!("sm_{major}{minor}, one of {} sources: {error}", sources.len());
        }
    }
}

#[test]
fn a_kernel_that_does_not_compile_is_named_with_the_log_of_the_compiler() {
    let compiler = Compiler::new(Architecture::new(9, 0), None).unwrap();
    let text = "extern \"C\" __global__ void broken(float* x) { x[0] = undeclared; }".to_owned();
    let error = compiler.compile(&Source { name: "broken".to_owned(), text, options: Vec::new() }).unwrap_err();
    assert!(matches!(&error, ExecError::Compile { kernel, log } if kernel == "broken" && log.contains("undeclared")));
}

#[test]
fn the_kernel_that_does_nothing() {
    for Card { capability: (major, minor), .. } in CARDS {
        Compiler::new(Architecture::new(major, minor), None).unwrap().compile(&pawl_kernels::idle::source()).unwrap();
    }
}

#[test]
fn kernels_of_random_programs() {
    let mut programs: Vec<Program> =
        (0..6).map(|seed| random_case(seed, 12 + (seed as usize * 7) % 60).program).collect();
    programs.push(random_case(3, 40).widened().unwrap().program);
    compile(&programs, &CARDS);
}

/// Segments and recurrences of odd sizes, in both dtypes; and networks of single features, whose dropout draws under
/// another key in each chunk.
#[test]
fn kernels_of_segments_recurrences_and_features() {
    let cases = [operators::segments().unwrap(), operators::recurrences().unwrap()].into_iter().flatten();
    let mut programs: Vec<Program> = cases.map(|case| case.case.program).collect();
    let recipe = Recipe {
        precision: Precision::BF16,
        rematerialize: vec![Pattern::new("features/chunk.*")],
        ..Recipe::new(Optimizer { matrices: None, others: AdamW::default() })
    };
    programs.push(recipe.step(&feature_networks([245_760, 8, 48, 256], 4, 0.1)).unwrap());
    compile(&programs, large_cards());
}

/// On cards that have 8-bit floats: conversions, operands turned for tensor cores, products with scales.
#[test]
fn kernels_of_scaled_products() {
    let cases: Vec<Program> = operators::scaled_products().unwrap().into_iter().map(|case| case.case.program).collect();
    compile(&cases, &CARDS[3..]);
    let mut found = HashSet::new();
    cases.iter().for_each(|program| sources(program, Card::H200, &mut found));
    assert!(found.iter().any(|source| source.name.starts_with("transpose_")), "operands of 48 x 160 x 400 are turned");
}

#[test]
fn kernels_of_a_transformer_in_every_precision() {
    let step = |precision| {
        let recipe = Recipe { precision, ..Recipe::new(Optimizer { matrices: None, others: AdamW::default() }) };
        recipe.step(&transformer(3)).unwrap()
    };
    compile(&[Precision::F32, Precision::BF16, Precision::F16].map(step), &CARDS);
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
    compile(&[Precision::BF16, Precision::F32, Precision::FP8].map(full_ups), large_cards());
}

/// A block of every width of head, adapters, 8-bit weights, vocabularies longer than a row that fits in registers.
#[test]
fn kernels_of_the_language_model() {
    let step = |size: &str, windows, precision, int8| {
        let step = SlmStep { size: size.into(), windows, precision, float8: Float8::default(), int8, recompute: int8 };
        step.program().unwrap()
    };
    let delayed = SlmStep {
        size: "tiny".into(),
        windows: 4,
        precision: Precision::FP8,
        float8: Float8 { scaling: Scaling::Delayed, gradients: DType::E5M2 },
        int8: false,
        recompute: false,
    };
    compile(
        &[
            step("tiny", 4, Precision::F32, false),
            step("125m", 32, Precision::BF16, false),
            step("125m", 8, Precision::F32, false),
            step("1b", 32, Precision::BF16, false),
            step("8b", 32, Precision::BF16, false),
            step("8b", 16, Precision::BF16, true),
            step("tiny", 4, Precision::FP8, false),
            step("8b", 32, Precision::FP8, false),
            delayed.program().unwrap(),
            delayed.float8_out_of_range().unwrap(),
        ],
        large_cards(),
    );
}

#[test]
fn kernels_of_vision_bdh_at_full_size() {
    let step = |(images, precision, recompute, resident)| {
        let step = VisionStep { preset: "medium".into(), images, precision, recompute, resident };
        step.program().unwrap()
    };
    let steps =
        [(128, Precision::BF16, false, false), (64, Precision::F32, true, false), (128, Precision::BF16, false, true)];
    compile(&steps.map(step), large_cards());
}

fn forex(preset: &str, steps: [(u32, Precision); 2]) -> Vec<Program> {
    let step = |(windows, precision)| ForexStep { preset: preset.into(), windows, precision }.programs().unwrap();
    steps.into_iter().flat_map(step).collect()
}

#[test]
fn kernels_of_forex() {
    compile(&forex("smoke", [(16, Precision::F32), (16, Precision::BF16)]), model_cards());
}

#[test]
fn kernels_of_forex_at_full_size() {
    compile(&forex("medium", [(64, Precision::F32), (512, Precision::BF16)]), large_cards());
}

/// Twelve blocks at other addresses are one block's code: what is compiled, and cached, stays small.
#[test]
fn blocks_of_a_model_share_their_code() {
    let program = full_ups(Precision::BF16);
    let lowered = Lowered::new(&program, &LowerOptions::default());
    let mut found = HashSet::new();
    sources(&program, Card::H200, &mut found);
    assert!(found.len() * 4 < lowered.kernels.len(), "{} sources of {} kernels", found.len(), lowered.kernels.len());
}

/// What a kernel writes it may not read past the first-level cache, which would not see the writes; and every buffer is
/// a parameter, so that sources hold no addresses.
#[test]
fn updates_in_place_read_what_they_write() {
    let b = Builder::new("in place");
    let state = b.state(StateDecl::f32("x", [64, 128], Role::Optimizer, Init::Fill(1.0)));
    b.update(state, state * 0.5 + b.input("y", DType::F32, [64, 128]));
    let lowered = Lowered::new(&b.finish().unwrap(), &LowerOptions::default());
    let [kernel] = &lowered.kernels[..] else { panic!("one kernel: {}", lowered.dump_kernels()) };
    let generated = source::generate(&kernel.body, &lowered.buffers, Card::H200.multiprocessors).unwrap();
    let (_, own) = generated.source.text.split_once("main_kernel").unwrap();
    assert_eq!(own.matches("load_written<").count(), 1, "{own}");
    assert_eq!(own.matches("load_once<").count(), 1, "{own}");
    assert_eq!(generated.arguments.len(), 3);
}

/// Guards against code that halved the memory throughput of kernels: conversions of single numbers, remainders of 64
/// bits for each element, and sums of columns that do not prefetch the next rows.
#[test]
fn memory_is_what_kernels_wait_for() {
    let mut found = HashSet::new();
    sources(&full_ups(Precision::BF16), Card::H200, &mut found);
    let ups = found.len();
    let step = SlmStep {
        size: "125m".into(),
        windows: 32,
        precision: Precision::BF16,
        float8: Float8::default(),
        int8: false,
        recompute: false,
    };
    sources(&step.program().unwrap(), Card::H200, &mut found);
    assert!(found.len() > ups);
    for text in found.iter().filter(|source| source.name.starts_with("fused_")).map(|source| &source.text) {
        assert!(!text.contains("cvt.rn.bf16.f32"));
        assert!(!text.contains("number + j"), "{text}");
        let sums_columns = (0..8).any(|fold| text.contains(&format!(" f{fold}[H][V];")));
        assert_eq!(text.contains("Step next = fetch("), sums_columns, "{text}");
    }
}
