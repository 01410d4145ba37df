//! What large models need: losses that make their own gradient, 8-bit weights, values that are not kept, weights from
//! files.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::sync::Arc;

use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_engine_tests::{Case, Outcome};
use pawl_graph::{
    array::{Array, Data, View},
    executor::{ExecOptions, Executor},
    graph::{
        Builder, DType, FileSlice, Init, Meta, Program, Role, Stage, StateDecl, Var, concat, initial_values, quantize,
    },
    optim::{AdamW, Optimizer},
    passes::Pattern,
    recipe::{Precision, Recipe},
};

fn recipe() -> Recipe {
    Recipe::new(Optimizer { matrices: None, others: AdamW::default() })
}

fn executors() -> [Box<dyn Executor>; 2] {
    [Box::new(Eager::cpu()), Box::new(GraphCpu::default())]
}

/// Cross-entropy of a linear classifier, in `chunks` chunks of rows; with one gradient made beside it, or by
/// differentiation.
fn classifier(chunks: usize, given: bool) -> Program {
    let b = Builder::new("classifier");
    let (rows, width, classes) = (12, 5, 7);
    let hidden = b.parameter("h", [rows, width], Init::Normal { deviation: 1.0 });
    let weight = b.parameter("w", [classes, width], Init::Normal { deviation: 1.0 });
    let x = hidden.tanh();
    let target = b.input("target", DType::U32, [rows, 1]);
    let size = rows / chunks;
    let (mut total, mut dx, mut dw): (Option<Var<'_>>, Vec<Var<'_>>, Option<Var<'_>>) = (None, Vec::new(), None);
    for chunk in 0..chunks {
        let x = x.slice(0, chunk * size, size);
        let target = target.slice(0, chunk * size, size);
        let logits = x.matmul_t(weight);
        let shifted = logits - logits.max([1]).stop_gradient();
        let sum = shifted.exp().sum([1]);
        let hit = b.iota(1, [size, classes]).equal(target.broadcast([size, classes]));
        let loss = (sum.log() - hit.select(shifted, 0.0).sum([1])).sum_all();
        total = Some(total.map_or(loss, |t| t + loss));
        let d = shifted.exp() / sum - hit.cast(DType::F32);
        dx.push(d.matmul(weight));
        let part = d.t_matmul(x);
        dw = Some(dw.map_or(part, |sum| sum + part));
    }
    let total = total.unwrap();
    let loss = if given { total.with_gradients(&[(x, concat(&dx, 0)), (weight, dw.unwrap())]) } else { total };
    b.output("loss", loss * (1.0 / rows as f64));
    b.finish().unwrap()
}

fn run(program: Program, executor: &dyn Executor) -> Outcome {
    let inputs = program
        .inputs
        .iter()
        .map(|decl| match decl.name.as_str() {
            "target" => Array::new(&decl.meta.shape, Data::U32((0..12).map(|i| i * 3 % 7).collect())).unwrap(),
            _ => Array::scalar(1e-2),
        })
        .collect();
    Case { program, inputs }.run(executor, &ExecOptions::default(), 3).unwrap()
}

fn assert_near(a: &Outcome, b: &Outcome, bound: f64) {
    for ((name, x), (_, y)) in a.states.iter().zip(&b.states) {
        for (x, y) in x.to_f64().iter().zip(y.to_f64()) {
            assert!((x - y).abs() <= bound * (1.0 + y.abs()), "{name}: {x} is not {y}");
        }
    }
}

#[test]
fn a_given_gradient_trains_like_the_derived_one() {
    for executor in executors() {
        let derived = run(recipe().step(&classifier(1, false)).unwrap(), executor.as_ref());
        for chunks in [1, 3, 4] {
            let given = run(recipe().step(&classifier(chunks, true)).unwrap(), executor.as_ref());
            assert_near(&given, &derived, 1e-6);
        }
        let raw = run(classifier(3, true), executor.as_ref());
        assert!((raw.outputs[0][0].1.item() - derived.outputs[0][0].1.item()).abs() < 1e-6);
    }
}

#[test]
fn evaluation_does_not_compute_a_given_gradient() {
    let evaluated = |given| recipe().evaluate(&classifier(3, given), false).unwrap().graph.len();
    assert_eq!(evaluated(true), evaluated(false));
}

fn matrix(name: &str, role: Role) -> StateDecl {
    StateDecl::f32(name, [8, 6], role, Init::Normal { deviation: 0.3 })
}

/// `y = x W^T` with a frozen 8-bit W and a bias that learns, in scope `layer/dequantized`.
fn quantized() -> Program {
    let b = Builder::new("quantized");
    let base = matrix("w", Role::Frozen);
    let state = |name: &str, dtype: DType, shape: [usize; 2], init: Init| {
        b.state(StateDecl { name: name.into(), meta: Meta::new(dtype, shape), role: Role::Frozen, init })
    };
    let words = state("w.words", DType::U32, [2, 6], Init::Quantized(Box::new(base.clone())));
    let scales = state("w.scales", DType::F32, [8, 1], Init::QuantizationScales(Box::new(base.clone())));
    let w = b.scope("layer", || b.scope("dequantized", || quantize::dequantize(words, scales, DType::F32)));
    let x = b.parameter("x", [3, 6], Init::Normal { deviation: 1.0 });
    b.output("error", (w - b.state(base)).abs().max([0, 1]).reshape([]));
    b.output("loss", x.tanh().matmul_t(w).square().mean_all());
    b.finish().unwrap()
}

#[test]
fn eight_bits_keep_a_matrix_within_half_a_step() {
    for executor in executors() {
        let outcome = run(quantized(), executor.as_ref());
        let error = outcome.outputs[0][0].1.item();
        // Largest values of this seed are below 1: a step is 1/127.
        assert!(error > 0.0 && error < 0.5 / 127.0, "{}: {error}", executor.name());
    }
}

#[test]
fn rematerialized_values_change_no_bit_and_are_read_forward_only() {
    let plain = recipe().step(&quantized()).unwrap();
    let again = Recipe { rematerialize: vec![Pattern::new("*/dequantized")], ..recipe() };
    let again = again.step(&quantized()).unwrap();
    let made = |p: &Program| p.graph.nodes().iter().filter(|n| n.stage == Stage::Recompute).count();
    assert!(made(&plain) == 0 && made(&again) > 4);
    for (id, node) in again.graph.iter() {
        for &operand in &node.operands {
            let of = again.graph.node(operand);
            let region = again.graph.scope(of.scope) == "layer/dequantized" && !of.op.is_leaf();
            assert!(!(region && of.stage == Stage::Forward && node.stage == Stage::Backward), "node {}", id.0);
        }
    }
    for executor in executors() {
        assert_eq!(run(plain.clone(), executor.as_ref()), run(again.clone(), executor.as_ref()));
    }
}

#[test]
fn states_start_from_files_in_any_dtype() {
    let file = std::env::temp_dir().join(format!("pawl-engine-{}.bin", std::process::id()));
    let values = [0.5f32, -1.25, 3.0, 1.0 / 3.0];
    let narrow: Vec<u8> = values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect();
    let wide: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(&file, [narrow, wide].concat()).unwrap();
    let slice = |offset, dtype| Init::File(FileSlice { path: Arc::from(file.as_path()), offset, dtype });
    let b = Builder::new("files");
    for (name, init) in [("narrow", slice(0, DType::BF16)), ("wide", slice(8, DType::F32))] {
        let state = b.state(StateDecl::f32(name, [2, 2], Role::Frozen, init));
        b.output(&format!("{name}.out"), state * 1.0);
    }
    let same = StateDecl::f32("same", [4], Role::Parameter, Init::SameAs("wide".into()));
    b.output("same.out", b.state(same) * 1.0);
    let outcome = run(b.finish().unwrap(), &Eager::cpu());
    let got = |at: usize| outcome.outputs[0][at].1.to_f64();
    assert_eq!(got(1), values.map(f64::from).to_vec());
    assert_eq!(got(2), got(1));
    assert_eq!(got(0)[..3], got(1)[..3]);
    assert!(got(0)[3] != got(1)[3] && (got(0)[3] - got(1)[3]).abs() < 1e-3);
    std::fs::remove_file(&file).unwrap();

    let b = Builder::new("missing");
    b.output("x", b.state(StateDecl::f32("x", [4], Role::Frozen, slice(0, DType::F32))) * 1.0);
    let error = Eager::cpu().compile(&[b.finish().unwrap()], &ExecOptions::default()).err().unwrap().to_string();
    assert!(error.contains("pawl-engine-") && error.contains("`x`"), "{error}");
}

/// Large enough for several threads, of which some begin inside an element.
#[test]
fn parts_are_read_from_their_places_in_a_large_file() {
    let file = std::env::temp_dir().join(format!("pawl-engine-large-{}.bin", std::process::id()));
    let values: Vec<f32> = (0..700_001u32).map(|i| i as f32).collect();
    std::fs::write(&file, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    let part = |name: &str, first: usize, elements: usize| {
        let slice = FileSlice { path: Arc::from(file.as_path()), offset: first as u64 * 4, dtype: DType::F32 };
        StateDecl::f32(name, [elements], Role::Frozen, Init::File(slice))
    };
    let parts = Init::Parts(vec![part("last", 400_000, 300_001), part("first", 0, 400_000)]);
    let both = StateDecl::f32("both", [700_001], Role::Frozen, parts);
    let expected: Vec<f32> = values[400_000..].iter().chain(&values[..400_000]).copied().collect();
    assert_eq!(initial_values(&[&both], 1).unwrap()[0].data(), &Data::F32(expected));
    let short = part("short", 400_000, 300_002);
    let error = initial_values(&[&short], 1).unwrap_err().to_string();
    assert!(error.contains("pawl-engine-large-") && error.contains("`short`"), "{error}");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn frozen_weights_of_sixteen_bits_are_read_as_they_are() {
    let b = Builder::new("frozen");
    let decl = StateDecl { meta: Meta::new(DType::BF16, [4, 3]), ..matrix("w", Role::Frozen) };
    let x = b.parameter("x", [2, 3], Init::Normal { deviation: 1.0 });
    b.output("loss", x.matmul_t(b.state(decl).cast(DType::F32)).square().mean_all());
    let program = Recipe { precision: Precision::BF16, ..recipe() }.step(&b.finish().unwrap()).unwrap();
    let casts = program.graph.nodes().iter().filter(|node| {
        let of_weight = |o: &pawl_graph::graph::NodeId| program.graph.meta(*o).shape.dims() == [4, 3];
        matches!(node.op, pawl_graph::graph::Op::Cast(_)) && node.operands.iter().any(of_weight)
    });
    assert_eq!(casts.count(), 0, "{program}");
    let mut exe = GraphCpu::default().compile(&[program], &ExecOptions::default()).unwrap();
    exe.run(0, &[View::F32(&[1e-2])]).unwrap();
    assert!(exe.output(0, 0).unwrap().item() > 0.0);
}
