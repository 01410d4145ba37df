//! The graph executor on the CPU against the eager one: same numbers, same states, whatever the threads.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::sync::Arc;

use pawl_cpu::{Buffers, GraphCpu};
use pawl_eager::Eager;
use pawl_engine_tests::{Case, random_case, transformer};
use pawl_graph::{
    array::{Array, Data, View},
    autodiff::gradients,
    executor::{ExecOptions, Executor},
    graph::{AttentionSpec, Builder, DType, Init, Op, Program, Role, StateDecl, concat},
    optim::{AdamW, Muon, Optimizer, OptimizerKernel},
    recipe::{AttentionKernel, Precision, Recipe},
};
use pawl_lower::{LowerOptions, Lowered};

fn options() -> ExecOptions {
    ExecOptions { seed: 5, ..ExecOptions::default() }
}

fn graph(threads: usize) -> GraphCpu {
    GraphCpu { threads, ..GraphCpu::default() }
}

fn close(case: &Case, executor: &GraphCpu, runs: usize, bound: f64) {
    let eager = case.run(&Eager::cpu(), &options(), runs).unwrap();
    let graph = case.run(executor, &options(), runs).unwrap();
    let (distance, name) = graph.distance(&eager);
    assert!(distance <= bound, "{name} of {} differs by {distance:e}", case.program.name);
}

#[test]
fn random_programs_give_what_eager_gives() {
    for seed in 0..150 {
        let case = random_case(seed, 12 + (seed as usize * 7) % 60);
        let eager = case.run(&Eager::cpu(), &options(), 2).unwrap();
        for executor in [graph(2), GraphCpu { buffers: Buffers::Pooled, ..graph(1) }] {
            let (distance, name) = case.run(&executor, &options(), 2).unwrap().distance(&eager);
            assert!(distance <= 2e-4, "seed {seed}: {name} differs by {distance:e}");
        }
    }
}

#[test]
fn every_program_has_an_order_of_kernels() {
    for seed in 0..300 {
        for size in [12, 40, 80] {
            let case = random_case(seed, size);
            let lowered = Lowered::new(&case.program, &LowerOptions::default());
            assert!(!lowered.kernels.is_empty(), "seed {seed}, size {size}");
        }
    }
}

#[test]
fn random_programs_in_float64_equal_the_oracle() {
    for seed in 0..40 {
        let Ok(case) = random_case(seed, 40).widened() else { continue };
        let attention = |n: &pawl_graph::graph::Node| matches!(n.op, Op::Attention(_) | Op::AttentionGrad(_));
        if case.program.graph.nodes().iter().any(attention) {
            continue;
        }
        close(&case, &graph(2), 2, 1e-11);
    }
}

#[test]
fn results_are_bit_equal_for_any_number_of_threads() {
    for case in (0..20).map(|seed| random_case(seed, 50)).chain([training(&recipe(), 6)]) {
        let one = case.run(&graph(1), &options(), 3).unwrap();
        for threads in [2, 3, 5] {
            assert_eq!(case.run(&graph(threads), &options(), 3).unwrap(), one, "{threads} threads");
        }
    }
}

fn recipe() -> Recipe {
    let muon = Muon { weight_decay: 0.03, ..Muon::default() };
    Recipe {
        clip: Some(1.0),
        average: Some(0.99),
        ..Recipe::new(Optimizer { matrices: Some(muon), others: AdamW::default() })
    }
}

fn training(recipe: &Recipe, batch: usize) -> Case {
    let program = recipe.step(&transformer(batch)).unwrap();
    let mut case = Case::new(program, 3);
    for (decl, array) in case.program.inputs.iter().zip(&mut case.inputs) {
        if decl.name == "learning_rate" {
            *array = Array::scalar(1e-3);
        }
    }
    case
}

#[test]
fn a_transformer_trains_as_it_does_eagerly_under_every_setting() {
    let adamw = Optimizer { matrices: None, others: AdamW::default() };
    let base = Recipe::new(adamw);
    let settings = [
        recipe(),
        base.clone(),
        Recipe { attention: AttentionKernel::Flash, kernel: OptimizerKernel::Fused, ..base.clone() },
        Recipe { recompute: vec![pawl_graph::passes::Pattern::new("blocks.*")], ..base.clone() },
    ];
    for (index, recipe) in settings.iter().enumerate() {
        let case = training(recipe, 3);
        let eager = case.run(&Eager::cpu(), &options(), 4).unwrap();
        for executor in [
            graph(2),
            GraphCpu { buffers: Buffers::Pooled, ..graph(2) },
            GraphCpu { lowering: LowerOptions { unfused: vec!["blocks.0".into()] }, ..graph(2) },
        ] {
            let (distance, name) = case.run(&executor, &options(), 4).unwrap().distance(&eager);
            assert!(distance <= 3e-3, "setting {index}: {name} differs by {distance:e}");
        }
    }
}

#[test]
fn sixteen_bit_products_agree_within_their_precision() {
    let adamw = Optimizer { matrices: None, others: AdamW::default() };
    for (precision, bound) in [(Precision::BF16, 0.06), (Precision::F16, 0.01)] {
        for attention in [AttentionKernel::Math, AttentionKernel::Flash] {
            let case = training(&Recipe { precision, attention, ..Recipe::new(adamw.clone()) }, 3);
            let eager = case.run(&Eager::cpu(), &options(), 1).unwrap();
            let graph = case.run(&graph(2), &options(), 1).unwrap();
            let loss = |outcome: &pawl_engine_tests::Outcome| outcome.outputs[0][0].1.item();
            assert!((loss(&eager) - loss(&graph)).abs() <= bound, "{precision:?} {attention:?}");
        }
    }
}

/// Every matmul form over odd sizes and views, around the edges of tiles and blocks.
#[test]
fn products_of_odd_sizes_and_strided_views() {
    for (m, n, k) in [(1, 1, 1), (13, 33, 385), (97, 5, 64), (48, 64, 800), (5, 129, 3), (200, 96, 40)] {
        let b = Builder::new("products");
        let x = b.input("x", DType::F32, [m, k]);
        let w = b.input("w", DType::F32, [n, k]);
        let heads = b.input("heads", DType::F32, [3, m, 2, k]);
        let keys = b.input("keys", DType::F32, [3, n, 2, k]);
        b.output("nt", x.matmul_t(w));
        b.output("nn", x.matmul(w.transpose()));
        b.output("tn", x.transpose().t_matmul(w.transpose()));
        let scores = heads.permute([0, 2, 1, 3]).matmul_t(keys.permute([0, 2, 1, 3]));
        b.output("batched", scores);
        b.output("part", (scores.permute([0, 2, 1, 3]) + 1.0).slice(2, 1, 1));
        let half = x.cast(DType::BF16).matmul_t(w.cast(DType::BF16));
        b.output("half", half.cast(DType::F32));
        close(&Case::new(b.finish().unwrap(), 1), &graph(2), 1, 5e-5 * (k as f64).sqrt().max(8.0) * 20.0);
    }
}

#[test]
fn attention_with_grouped_heads_masks_and_odd_lengths() {
    for (t, s, h, g, causal) in [(5, 5, 4, 2, true), (1, 7, 2, 1, true), (150, 33, 2, 2, false), (130, 130, 3, 1, true)]
    {
        let b = Builder::new("attention");
        let q = b.parameter("q", [2, h, t, 6], Init::Uniform { bound: 1.0 });
        let k = b.parameter("k", [2, g, s, 6], Init::Uniform { bound: 1.0 });
        let v = b.parameter("v", [2, g, s, 6], Init::Uniform { bound: 1.0 });
        let o = q.attention(k, v, AttentionSpec { scale: 0.7, causal });
        let loss = o.permute([0, 2, 1, 3]).reshape([2, t, h * 6]).square().mean_all();
        b.output("loss", loss);
        for (name, gradient) in ["dq", "dk", "dv"].iter().zip(gradients(loss, &[q, k, v])) {
            b.output(name, gradient.unwrap() * 100.0);
        }
        close(&Case::new(b.finish().unwrap(), 1), &graph(2), 1, 2e-5);
    }
}

#[test]
fn updates_see_the_states_of_the_start_of_the_run() {
    let state = |name: &str, value: f64| StateDecl::f32(name, [70], Role::Optimizer, Init::Fill(value));
    let b = Builder::new("updates");
    let (p, q, r) = (b.state(state("p", 1.0)), b.state(state("q", 2.0)), b.state(state("r", 3.0)));
    // Exchanged; and one that reads what another overwrites, shifted.
    b.update(p, q);
    b.update(q, p);
    let shifted = concat(&[r.slice(0, 1, 69), r.slice(0, 0, 1)], 0);
    b.update(r, shifted + p + b.iota(0, [70]).cast(DType::F32));
    b.output("old", r.sum_all() + p.sum_all());
    b.output("view", q.reshape([7, 10]));
    close(&Case::new(b.finish().unwrap(), 1), &graph(2), 4, 1e-5);
}

#[test]
fn slices_are_joined_where_they_are_written() {
    let b = Builder::new("joined");
    let x = b.input("x", DType::F32, [6, 5]);
    let w = b.input("w", DType::F32, [4, 5]);
    let y = x.matmul_t(w);
    let parts = [y.exp(), y, (x.slice(1, 1, 4)).tanh(), b.fill(2.5, DType::F32, [6, 1])];
    let joined = concat(&parts, 1);
    b.output("joined", joined);
    b.output("rows", concat(&[joined, joined.slice(0, 2, 1)], 0));
    b.output("again", y.pad(1, 1, 2) + y.pad(1, 3, 0));
    let arena = b.state(StateDecl::f32("arena", [24 + 30], Role::Gradient, Init::Fill(0.0)));
    let flat = concat(&[y.reshape([24]), (x * 2.0).reshape([30])], 0);
    b.update(arena, arena + flat);
    close(&Case::new(b.finish().unwrap(), 2), &graph(2), 3, 1e-5);
}

#[test]
fn reductions_over_every_choice_of_axes() {
    for axes in [vec![0], vec![1], vec![2], vec![0, 1], vec![1, 2], vec![0, 2], vec![0, 1, 2]] {
        for shape in [[3, 4, 5], [1, 70, 33], [40, 1, 2100], [2, 3, 20_000]] {
            let b = Builder::new("reductions");
            let x = b.input("x", DType::F32, shape);
            let e = (x * 0.5).exp();
            b.output("sum", e.sum(&axes));
            b.output("max", x.max(&axes));
            b.output("centred", (e - e.mean(&axes)).square().mean_all());
            close(&Case::new(b.finish().unwrap(), 4), &graph(2), 1, 3e-5);
        }
    }
}

#[test]
fn integers_truth_values_and_casts() {
    let b = Builder::new("integers");
    let i = b.iota(1, [5, 37]);
    let x = b.input("x", DType::F32, [5, 37]);
    let counter = b.input("counter", DType::U32, []);
    let odd = (i * 3.0 + 4_294_967_290.0).cast(DType::F32);
    let chosen = x.less(0.25).select(odd, x.cast(DType::F16).cast(DType::F32));
    b.output("chosen", chosen);
    b.output("truth", x.greater_equal(0.0));
    b.output("count", x.greater(0.0).cast(DType::U32).sum([0]));
    b.output("draw", b.random("draw", counter, [5, 37]));
    b.output("finite", (x / (x - x)).is_finite());
    b.output("back", (x * 10.0).abs().cast(DType::U32));
    b.output("wide", x.cast(DType::F64).exp().cast(DType::BF16));
    close(&Case::new(b.finish().unwrap(), 9), &graph(2), 1, 1e-6);
}

#[test]
fn an_index_out_of_range_is_an_error() {
    let b = Builder::new("gather");
    let (x, i) = (b.input("x", DType::F32, [4, 3]), b.input("i", DType::U32, [2]));
    b.output("y", x.gather(0, i));
    let mut exe = graph(1).compile(&[b.finish().unwrap()], &options()).unwrap();
    let x = [0.0; 12];
    assert!(exe.run(0, &[View::F32(&x), View::U32(&[0, 3])]).is_ok());
    let error = exe.run(0, &[View::F32(&x), View::U32(&[0, 4])]).unwrap_err();
    assert_eq!(error.to_string(), "index 4 at gather is not below 4");
    assert!(exe.output(0, 0).is_err(), "a failed run has no outputs");
}

#[test]
fn outputs_of_one_program_outlast_runs_of_another() {
    let program = |name: &str, factor: f64| -> Program {
        let b = Builder::new(name);
        let x = b.input("x", DType::F32, [300]);
        b.output("y", (x * factor).exp());
        b.finish().unwrap()
    };
    let mut exe = graph(2).compile(&[program("a", 1.0), program("b", 2.0)], &options()).unwrap();
    let x = [0.5f32; 300];
    exe.run(0, &[View::F32(&x)]).unwrap();
    exe.run(1, &[View::F32(&x)]).unwrap();
    let Data::F32(a) = exe.output(0, 0).unwrap().data().clone() else { panic!("float32") };
    assert!((a[299] - 0.5f32.exp()).abs() < 1e-6);
}

/// Collectives run beside the kernels on a thread of their own; what they give is what one rank gets from the sum.
#[test]
fn ranks_sum_scatter_and_gather() {
    let b = Builder::new("collectives");
    let x = b.input("x", DType::F32, [64]);
    let (p, q) = (b.state(StateDecl::f32("p", [64], Role::Gradient, Init::Fill(1.0))), (x * 3.0).exp());
    let sum = b.push(Op::AllReduce, &[q]);
    let part = b.push(Op::ReduceScatter { world: 2 }, &[x * 2.0]);
    let whole = b.push(Op::AllGather { world: 2 }, &[part + 1.0]);
    b.update(p, p + sum);
    b.output("meanwhile", (x.square() + 1.0).sqrt());
    b.output("whole", whole);
    b.output("own", q.sum_all());
    let program = b.finish().unwrap();
    let inputs: Vec<Vec<f32>> =
        (0..2).map(|rank| (0..64).map(|i| (i * 7 % 11 + rank) as f32 * 0.1).collect()).collect();
    let ranks = pawl_graph::collective::threads(2);
    let results: Vec<[Vec<f64>; 2]> = std::thread::scope(|scope| {
        let run = |(rank, x): (pawl_graph::collective::ThreadRank, &Vec<f32>)| {
            let (program, x) = (program.clone(), x.clone());
            scope.spawn(move || {
                let options = ExecOptions { collective: Arc::new(rank), ..options() };
                let mut exe = graph(2).compile(&[program], &options).unwrap();
                for _ in 0..3 {
                    exe.run(0, &[View::F32(&x)]).unwrap();
                }
                [exe.read_state("p").unwrap().to_f64(), exe.output(0, 1).unwrap().to_f64()]
            })
        };
        let threads: Vec<_> = ranks.into_iter().zip(&inputs).map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(results[0], results[1], "ranks agree bit for bit");
    for i in 0..64 {
        let [a, b] = [0, 1].map(|rank| f64::from(inputs[rank][i]));
        let sum = 1.0 + 3.0 * ((3.0 * a).exp() + (3.0 * b).exp());
        assert!((results[0][0][i] / sum - 1.0).abs() < 1e-6);
        assert!((results[0][1][i] - (2.0 * (a + b) + 1.0)).abs() < 1e-5);
    }
}
