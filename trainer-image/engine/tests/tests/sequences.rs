//! Recurrences, and networks of single features: what they compute, in which kernels, and with which memory.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_engine_tests::{Case, Outcome, feature_networks};
use pawl_graph::{
    array::{Array, Data},
    executor::{ExecOptions, Executor},
    graph::{Builder, DType, Init, Meta, Program, Role, StateDecl},
    optim::{AdamW, Optimizer},
    passes::Pattern,
    recipe::{Precision, Recipe},
};
use pawl_lower::{Body, LowerOptions, Lowered};

fn recipe() -> Recipe {
    Recipe::new(Optimizer { matrices: None, others: AdamW::default() })
}

/// PyTorch's equations, one number at a time. `gates` is `[batch, steps, 4 hidden]`, `weight` `[4 hidden, hidden]`.
fn reference([batch, steps, hidden]: [usize; 3], gates: &[f64], weight: &[f64]) -> Vec<f64> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut out = Vec::new();
    for row in 0..batch {
        let (mut h, mut c) = (vec![0.0; hidden], vec![0.0; hidden]);
        for step in 0..steps {
            let gate = |number: usize, unit: usize, h: &[f64]| {
                let at = number * hidden + unit;
                let recurrent: f64 = (0..hidden).map(|k| weight[at * hidden + k] * h[k]).sum();
                gates[(row * steps + step) * 4 * hidden + at] + recurrent
            };
            let before = h.clone();
            for unit in 0..hidden {
                let [i, f, g, o] = [0, 1, 2, 3].map(|number| gate(number, unit, &before));
                c[unit] = sigmoid(f) * c[unit] + sigmoid(i) * g.tanh();
                h[unit] = sigmoid(o) * c[unit].tanh();
            }
            out.extend_from_slice(&h);
        }
    }
    out
}

#[test]
fn an_lstm_follows_its_equations() {
    let sizes = [3, 7, 5];
    let [batch, steps, hidden] = sizes;
    let b = Builder::new("lstm");
    let wide = |name: &str, shape: &[usize]| {
        let meta = Meta::new(DType::F64, shape);
        b.state(StateDecl { name: name.into(), meta, role: Role::Parameter, init: Init::Normal { deviation: 1.0 } })
    };
    b.output("h", wide("gates", &[batch, steps, 4 * hidden]).lstm(wide("weight", &[4 * hidden, hidden])));
    let program = b.finish().unwrap();
    for executor in [&Eager::cpu() as &dyn Executor, &GraphCpu::default()] {
        let mut exe = executor.compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
        exe.run(0, &[]).unwrap();
        let [gates, weight] = ["gates", "weight"].map(|name| exe.read_state(name).unwrap().to_f64());
        let (got, expected) = (exe.output(0, 0).unwrap().to_f64(), reference(sizes, &gates, &weight));
        assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-13), "{}", executor.name());
    }
}

fn recurrent_step(precision: Precision, [batch, steps, inputs, hidden]: [usize; 4]) -> Program {
    let b = Builder::new("recurrent");
    let x = b.input("x", DType::F32, [batch, steps, inputs]);
    let weight =
        |name, inputs| b.parameter(name, [4 * hidden, inputs], Init::Uniform { bound: 1.0 / (hidden as f64).sqrt() });
    let bias = b.parameter("bias", [4 * hidden], Init::Fill(0.0));
    let driven = x.matmul_t(weight("input", inputs)) + bias;
    let h = b.scope("lstm", || driven.lstm(weight("recurrent", hidden)));
    b.output("loss", h.slice(1, steps - 1, 1).square().mean_all() + h.mean_all());
    Recipe { precision, ..recipe() }.step(&b.finish().unwrap()).unwrap()
}

/// A step forward is a product and an elementwise kernel, a step back two products (of the state and of the weight) and
/// an elementwise kernel; nothing is copied. What is left are sums over the steps, and in 16 bits the weight.
#[test]
fn steps_of_an_lstm_are_products_and_one_kernel_each() {
    let steps = 20;
    for precision in [Precision::F32, Precision::BF16] {
        let program = recurrent_step(precision, [64, steps, 24, 32]);
        let lowered = Lowered::new(&program, &LowerOptions::default());
        let of_lstm: Vec<_> = lowered.kernels.iter().filter(|kernel| kernel.scope == "lstm").collect();
        let count = |is: fn(&Body) -> bool| of_lstm.iter().filter(|kernel| is(&kernel.body)).count();
        let (products, all) = (count(|body| matches!(body, Body::MatMul(_))), of_lstm.len());
        let copies = count(|body| body.name() == "copy");
        assert_eq!((products, copies), (3 * (steps - 1), 0), "{precision:?}: {}", lowered.dump_kernels());
        assert!(all - products <= 2 * steps + 4, "{precision:?}: {}", lowered.dump_kernels());
    }
}

#[test]
fn an_lstm_trains_as_it_does_eagerly() {
    for (precision, bound) in [(Precision::F32, 1e-4), (Precision::BF16, 2e-2)] {
        let mut case = Case::new(recurrent_step(precision, [5, 9, 3, 7]), 4);
        *case.inputs.last_mut().unwrap() = Array::scalar(1e-2);
        let run = |executor: &dyn Executor| case.run(executor, &ExecOptions::default(), 4).unwrap();
        let (distance, name) = run(&GraphCpu::default()).distance(&run(&Eager::cpu()));
        assert!(distance <= bound, "{precision:?}: {name} differs by {distance:e}");
    }
}

fn trained(program: Program) -> Outcome {
    let mut case = Case::new(program, 8);
    *case.inputs.last_mut().unwrap() = Array::scalar(1e-2);
    case.run(&GraphCpu::default(), &ExecOptions { seed: 3, ..ExecOptions::default() }, 3).unwrap()
}

fn chunks() -> Vec<Pattern> {
    vec![Pattern::new("features/chunk.*")]
}

/// Whatever the number of features at a time, and whether values are kept or computed again: the same losses and
/// parameters, but for dropout, whose masks depend on the chunks.
#[test]
fn features_in_chunks_are_features_at_once() {
    let step = |chunk, dropout, again: bool| {
        let rematerialize = if again { chunks() } else { Vec::new() };
        Recipe { rematerialize, ..recipe() }.step(&feature_networks([11, 7, 6, 16], chunk, dropout)).unwrap()
    };
    let whole = trained(step(7, 0.0, false));
    for chunk in [1, 3] {
        let (distance, name) = trained(step(chunk, 0.0, true)).distance(&whole);
        assert!(distance <= 1e-5, "{chunk} features at a time: {name} differs by {distance:e}");
    }
    assert_eq!(trained(step(3, 0.2, true)), trained(step(3, 0.2, false)), "no bit changes");
    assert!(trained(step(3, 0.2, true)).distance(&whole).0 > 1e-3, "dropout acts");
}

#[test]
fn features_give_what_eager_gives() {
    let case = Case::new(feature_networks([11, 7, 6, 16], 3, 0.2), 8);
    let run = |executor: &dyn Executor| case.run(executor, &ExecOptions::default(), 1).unwrap();
    let (distance, name) = run(&GraphCpu::default()).distance(&run(&Eager::cpu()));
    assert!(distance <= 1e-5, "{name} differs by {distance:e}");
}

/// 245,760 rows (a batch of 12,288 windows of 20 days), 96 features, layers of 48 and 256: without recomputation the
/// backward pass reads several values of 6e9 elements; with it, none is stored.
#[test]
fn features_at_full_size_need_a_chunk_of_memory() {
    let (rows, features, hidden, chunk) = (245_760, 96, 256, 4);
    let forward = feature_networks([rows, features, 48, hidden], chunk, 0.1);
    let plan = |rematerialize| {
        let recipe = Recipe { precision: Precision::BF16, rematerialize, ..recipe() };
        Lowered::new(&recipe.step(&forward).unwrap(), &LowerOptions::default())
    };
    let (kept, again) = (plan(Vec::new()), plan(chunks()));
    println!(
        "kept {} bytes, computed again {} bytes, {} kernels",
        kept.plan.arena,
        again.plan.arena,
        again.kernels.len()
    );
    let largest = again.buffers.iter().map(|buffer| buffer.elements).max().unwrap();
    assert!(largest <= rows * chunk * hidden, "{largest} elements");
    assert!(again.plan.arena < 4 << 30, "{} bytes", again.plan.arena);
    assert!(kept.plan.arena > 10 * again.plan.arena, "{} bytes", kept.plan.arena);
}

/// `trunc_normal_` with a deviation far below the bounds is normal; with bounds within a deviation, its values stay
/// there and their variance is that of the truncated distribution.
#[test]
fn truncated_normals_are_normal_within_their_bounds() {
    let values = |init: Init| {
        let decl = StateDecl::f32("x", [20_000], Role::Parameter, init);
        pawl_graph::graph::initial_values(&[&decl], 3).unwrap().remove(0)
    };
    let narrow = values(Init::TruncatedNormal { deviation: 0.02, bound: 2.0 });
    assert_eq!(narrow.data(), values(Init::Normal { deviation: 0.02 }).data());
    let cut = values(Init::TruncatedNormal { deviation: 2.0, bound: 2.0 }).to_f64();
    assert!(cut.iter().all(|x| x.abs() <= 2.0));
    // Of a standard normal within one deviation: 1 - 2 phi(1) / (2 Phi(1) - 1) = 0.29113.
    let variance = cut.iter().map(|x| x * x).sum::<f64>() / cut.len() as f64 / 4.0;
    assert!((variance - 0.291_13).abs() < 0.006, "{variance}");
    let tight = values(Init::TruncatedNormal { deviation: 1.0, bound: 0.01 }).to_f64();
    assert!(tight.iter().all(|x| x.abs() <= 0.01) && tight.iter().any(|x| x.abs() > 0.0099));
    let Data::F32(again) = values(Init::TruncatedNormal { deviation: 2.0, bound: 2.0 }).data().clone() else {
        panic!()
    };
    assert!(again.iter().zip(&cut).all(|(a, b)| f64::from(*a) == *b), "a function of seed and name");
}
