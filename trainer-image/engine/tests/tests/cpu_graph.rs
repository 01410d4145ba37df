//! The graph executor on the CPU against the eager one: same numbers, same states, whatever the threads.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::sync::Arc;

use pawl_cpu::{Buffers, GraphCpu};
use pawl_eager::Eager;
use pawl_engine_tests::{Case, OperatorCase, operator_cases, random_case, recipes, training};
use pawl_graph::{
    array::{Data, View},
    executor::{ExecOptions, Executor},
    graph::{Builder, DType, Init, Op, Program, Role, StateDecl, concat},
    optim::{AdamW, Optimizer},
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
    for case in (0..20).map(|seed| random_case(seed, 50)).chain([training(&recipes()[0], 6).unwrap()]) {
        let one = case.run(&graph(1), &options(), 3).unwrap();
        for threads in [2, 3, 5] {
            assert_eq!(case.run(&graph(threads), &options(), 3).unwrap(), one, "{threads} threads");
        }
    }
}

#[test]
fn a_transformer_trains_as_it_does_eagerly_under_every_setting() {
    for (index, recipe) in recipes().iter().enumerate() {
        let case = training(recipe, 3).unwrap();
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
            let case = training(&Recipe { precision, attention, ..Recipe::new(adamw.clone()) }, 3).unwrap();
            let eager = case.run(&Eager::cpu(), &options(), 1).unwrap();
            let graph = case.run(&graph(2), &options(), 1).unwrap();
            let loss = |outcome: &pawl_engine_tests::Outcome| outcome.outputs[0][0].1.item();
            assert!((loss(&eager) - loss(&graph)).abs() <= bound, "{precision:?} {attention:?}");
        }
    }
}

#[test]
fn operators_give_what_eager_gives() {
    for OperatorCase { name, case, runs, bound } in operator_cases().unwrap() {
        let eager = case.run(&Eager::cpu(), &options(), runs).unwrap();
        let (distance, at) = case.run(&graph(2), &options(), runs).unwrap().distance(&eager);
        assert!(distance <= bound, "{name}: {at} differs by {distance:e}");
    }
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
fn offsets_that_do_not_fit_are_an_error() {
    for executor in [&graph(1) as &dyn Executor, &Eager::cpu()] {
        let b = Builder::new("segments");
        let (x, offsets) = (b.input("x", DType::F32, [4, 3]), b.input("offsets", DType::U32, [3]));
        b.output("y", x.segment_sum(offsets));
        let mut exe = executor.compile(&[b.finish().unwrap()], &options()).unwrap();
        let x = [1.0; 12];
        exe.run(0, &[View::F32(&x), View::U32(&[0, 3, 4])]).unwrap();
        assert_eq!(exe.output(0, 0).unwrap().to_f64(), [3.0, 3.0, 3.0, 1.0, 1.0, 1.0]);
        for (offsets, message) in
            [([0, 3, 2], "offset 2 at segment_sum is not between 3 and 4"), ([0, 3, 5], "offset 5 at")]
        {
            let error = exe.run(0, &[View::F32(&x), View::U32(&offsets)]).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
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
