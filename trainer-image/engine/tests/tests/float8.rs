//! Products over 8-bit floats, emulated on the CPU: conversions bit for bit, products beside float64, gradients and
//! training.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::sync::Arc;

use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_engine_tests::{Case, OperatorCase, Outcome, operators};
use pawl_graph::{
    array::{Array, Data, View},
    collective,
    executor::{ExecOptions, Executable, Executor},
    float8::{E4M3, E5M2},
    graph::{Builder, DType, Init, Meta, Op, Program, Role, StateDecl, float8::Scaled},
    optim::{AdamW, Optimizer, OptimizerKernel},
    passes::{self, Float8, HISTORY, Pattern, Scaling},
    random,
    recipe::{Precision, Recipe},
};

fn executors() -> [Box<dyn Executor>; 2] {
    [Box::new(Eager::cpu()), Box::new(GraphCpu { threads: 2, ..GraphCpu::default() })]
}

fn run(case: &Case, executor: &dyn Executor) -> Outcome {
    case.run(executor, &ExecOptions { seed: 5, ..ExecOptions::default() }, 1).unwrap()
}

fn recipe() -> Recipe {
    Recipe::new(Optimizer { matrices: None, others: AdamW::default() })
}

/// [`recipe`] over 8-bit floats in the layers of blocks.
fn eight_bits() -> Recipe {
    Recipe { precision: Precision::FP8, float8_scopes: vec![Pattern::new("blocks.*/*")], ..recipe() }
}

#[test]
fn executors_convert_as_the_formats_say() {
    // Of every exponent, what cannot be held, and NaN.
    let mut values: Vec<f32> = (0..6000).map(|i| f32::from_bits((random::bits(3, i) >> 32) as u32)).collect();
    values.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::from_bits(1), 448.0, 464.0, 57_344.0]);
    values.extend((0..256).flat_map(|code| [E4M3(code as u8).to_f32(), E5M2(code as u8).to_f32()]));
    let b = Builder::new("conversions");
    let x = b.input("x", DType::F32, [values.len()]);
    for (name, dtype) in [("e4m3", DType::E4M3), ("e5m2", DType::E5M2)] {
        let codes = x.cast(dtype);
        b.output(name, codes);
        b.output(&format!("{name} back"), codes.cast(DType::F32));
    }
    let program = b.finish().unwrap();
    for executor in executors() {
        let mut exe = executor.compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
        exe.run(0, &[View::F32(&values)]).unwrap();
        let outputs: Vec<Array> = (0..4).map(|output| exe.output(0, output).unwrap()).collect();
        let (Data::E4M3(four), Data::E5M2(five)) = (outputs[0].data(), outputs[2].data()) else { panic!("codes") };
        let (four_back, five_back) = (outputs[1].to_f64(), outputs[3].to_f64());
        for (i, &x) in values.iter().enumerate() {
            assert_eq!((four[i], five[i]), (E4M3::from_f32(x), E5M2::from_f32(x)), "{}: {x:e}", executor.name());
            let same = |a: f64, b: f32| a == f64::from(b) || a.is_nan() && b.is_nan();
            assert!(same(four_back[i], four[i].to_f32()) && same(five_back[i], five[i].to_f32()), "{x:e}");
        }
    }
}

/// In float64 only sums and scales are wider: codes stay.
#[test]
fn scaled_products_are_sums_of_the_products_of_codes() {
    for OperatorCase { name, case, .. } in operators::scaled_products().unwrap() {
        let exact = run(&case.widened().unwrap(), &Eager::cpu());
        for executor in executors() {
            let outcome = run(&case, executor.as_ref());
            for ((output, got), (_, exact)) in outcome.outputs[0].iter().zip(&exact.outputs[0]) {
                let (got, exact) = (got.to_f64(), exact.to_f64());
                let largest = exact.iter().fold(0f64, |max, x| max.max(x.abs()));
                // One rounding to bfloat16, or sums in float32. Scales in float64 differ in their last bit of float32,
                // and with them a few codes.
                let bound = if output == "nt" { 1.0 / 256.0 } else { 2e-3 };
                let worst = got.iter().zip(&exact).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f64::max);
                assert!(worst <= bound, "{name}, {}: {output} differs by {worst:e}", executor.name());
            }
        }
    }
}

/// A first layer, two blocks of two layers with a residual sum, and a last layer.
fn perceptron() -> Program {
    let b = Builder::new("perceptron");
    let (x, target) = (b.input("x", DType::F32, [64, 16]), b.input("target", DType::F32, [64, 16]));
    let weight = |name: &str, outputs: usize, inputs: usize| {
        b.parameter(name, [outputs, inputs], Init::Normal { deviation: 1.0 / (inputs as f64).sqrt() })
    };
    let mut h = b.scope("first", || x.matmul_t(weight("first", 32, 16)));
    for block in 0..2 {
        h = b.scope(&format!("blocks.{block}"), || {
            let normed = h.rms_norm(1e-5);
            let wide = b.scope("up", || normed.matmul_t(weight(&format!("up.{block}"), 96, 32)));
            h + b.scope("down", || wide.silu().matmul_t(weight(&format!("down.{block}"), 32, 96)))
        });
    }
    let out = b.scope("last", || h.matmul_t(weight("last", 16, 32)));
    b.output("loss", (out - target).square().mean_all());
    b.finish().unwrap()
}

/// Gradients by parameter.
fn gradients(program: Program, executor: &dyn Executor) -> Vec<(String, Vec<f64>)> {
    let states = run(&Case::new(program, 3), executor).states;
    let of = |(name, value): (String, Array)| Some((name.strip_prefix("gradient/")?.to_owned(), value.to_f64()));
    states.into_iter().filter_map(of).collect()
}

#[test]
fn gradients_are_within_the_precision_of_the_format() {
    let forward = perceptron();
    let exact = Case::new(recipe().micro_step(&forward).unwrap(), 3).widened().unwrap().program;
    let exact = gradients(exact, &Eager::cpu());
    let tensor = Float8 { scaling: Scaling::Tensor, ..Float8::default() };
    let coarse = Float8 { gradients: DType::E5M2, ..Float8::default() };
    // Rounding to 3 bits of significand moves a number by 2.6 % (root mean square), to 2 bits by twice that, and
    // gradients pass four layers.
    for (float8, most) in [(Float8::default(), 0.08), (tensor, 0.08), (coarse, 0.12)] {
        for executor in executors() {
            let program = Recipe { float8, ..eight_bits() }.micro_step(&forward).unwrap();
            for ((name, got), (_, exact)) in gradients(program, executor.as_ref()).iter().zip(&exact) {
                let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
                let distance = norm(&mut got.iter().zip(exact).map(|(a, b)| a - b)) / norm(&mut exact.iter().copied());
                assert!(distance > 0.01, "{name} is not of 8-bit products: {distance}");
                assert!(distance < most, "{name} by {}, {float8:?}: {distance}", executor.name());
            }
        }
    }
}

#[test]
fn layers_of_blocks_are_scaled_products_and_nothing_else_changes() {
    let forward = perceptron();
    let program = eight_bits().micro_step(&forward).unwrap();
    let scopes = |scaled: bool| -> Vec<&str> {
        let of = |op: &Op| if scaled { matches!(op, Op::ScaledMatMul { .. }) } else { matches!(op, Op::MatMul { .. }) };
        program.graph.iter().filter(|(_, node)| of(&node.op)).map(|(_, node)| program.graph.scope(node.scope)).collect()
    };
    let block = |n: usize| [format!("blocks.{n}/up"), format!("blocks.{n}/down")];
    let forwards = [block(0), block(1)].concat();
    let backwards = forwards.iter().rev().cloned();
    assert_eq!(scopes(true), forwards.iter().cloned().chain(backwards).collect::<Vec<_>>());
    // Forward through the first and the last layer, back through the last and to the weights of all.
    assert_eq!(scopes(false).len(), 2 + 2 + 1 + 4);
    // Each weight has its codes once, for both passes.
    let codes = program.graph.nodes().iter().filter(|node| node.meta.dtype == DType::E4M3);
    assert_eq!(codes.filter(|node| node.meta.shape[0] != 64).count(), 4, "{program}");
    let none = Recipe { float8_scopes: Vec::new(), ..eight_bits() }.micro_step(&forward).unwrap();
    let bfloat = Recipe { precision: Precision::BF16, ..recipe() }.micro_step(&forward).unwrap();
    assert_eq!(none.to_string(), bfloat.to_string());
}

#[test]
fn training_stays_beside_bfloat16_under_every_setting() {
    let losses = |recipe: &Recipe, executor: &dyn Executor| -> Vec<f64> {
        let program = recipe.step(&perceptron()).unwrap();
        let mut case = Case::new(program, 3);
        let rate = case.program.inputs.iter().position(|input| input.name == "learning_rate").unwrap();
        case.inputs[rate] = Array::scalar(3e-3);
        let outcome = case.run(executor, &ExecOptions { seed: 5, ..ExecOptions::default() }, 60).unwrap();
        outcome.outputs.iter().map(|outputs| outputs[0].1.item()).collect()
    };
    let bfloat = losses(&Recipe { precision: Precision::BF16, ..recipe() }, &GraphCpu::default());
    assert!(bfloat[59] < 0.5 * bfloat[0], "{bfloat:?}");
    let fused = Recipe { kernel: OptimizerKernel::Fused, ..eight_bits() };
    let recomputed = Recipe { recompute: vec![Pattern::new("blocks.*")], ..eight_bits() };
    let scaled = |scaling| Recipe { float8: Float8 { scaling, ..Float8::default() }, ..eight_bits() };
    let delayed = |executor| (scaled(Scaling::Delayed), executor);
    let again = Recipe { recompute: vec![Pattern::new("blocks.*")], ..scaled(Scaling::Delayed) };
    let all = [(eight_bits(), 0), (eight_bits(), 1), (fused, 1), (recomputed, 1), (scaled(Scaling::Tensor), 1)];
    for (recipe, executor) in all.into_iter().chain([delayed(0), delayed(1), (again, 1)]) {
        let eight = losses(&recipe, executors()[executor].as_ref());
        assert_ne!(eight, bfloat);
        for (step, (a, b)) in eight.iter().zip(&bfloat).enumerate() {
            assert!((a - b).abs() < 0.01 * bfloat[0], "step {step}: {a} beside {b}, from {}", bfloat[0]);
        }
    }
}

#[test]
fn recomputed_blocks_give_the_same_gradients_bit_for_bit() {
    let forward = perceptron();
    for scaling in [Scaling::Row, Scaling::Delayed] {
        let kept = Recipe { float8: Float8 { scaling, ..Float8::default() }, ..eight_bits() };
        let again = Recipe { recompute: vec![Pattern::new("blocks.*")], ..kept.clone() };
        let recipes = [kept, again];
        let [kept, recomputed] = recipes.each_ref().map(|recipe| recipe.micro_step(&forward).unwrap());
        for executor in executors() {
            let [kept, recomputed] = [&kept, &recomputed].map(|program| {
                let states = Case::new(program.clone(), 3).run(executor.as_ref(), &ExecOptions::default(), 3);
                states.unwrap().states.into_iter().map(|(name, value)| (name, value.to_f64())).collect::<Vec<_>>()
            });
            assert!(kept == recomputed, "{scaling:?}, {}", executor.name());
        }
        let shares = recipes.map(|recipe| {
            let counting = recipe.float8_out_of_range(&forward).unwrap().unwrap();
            run(&Case::new(counting, 3), &GraphCpu::default()).outputs[0]
                .iter()
                .map(|(_, x)| x.item())
                .collect::<Vec<_>>()
        });
        assert_eq!(shares[0], shares[1], "{scaling:?}: what is computed again is not counted again");
    }
}

/// `y = x W^T` with a frozen W that is stored as codes, and a first layer that learns.
fn frozen() -> Program {
    let b = Builder::new("frozen");
    let base = StateDecl::f32("w", [48, 32], Role::Frozen, Init::Normal { deviation: 0.3 });
    let state =
        |name: &str, meta: Meta, init: Init| b.state(StateDecl { name: name.into(), meta, role: Role::Frozen, init });
    let codes = state("w.e4m3", Meta::new(DType::E4M3, [48, 32]), Init::Float8(Box::new(base.clone())));
    let scale = Init::Float8Scales(Box::new(base.clone()), DType::E4M3);
    let stored = Scaled { codes, scale: state("w.scale", Meta::new(DType::F32, [48, 1]), scale) };
    let made = Scaled::new(b.state(base), &[1], DType::E4M3);
    b.output("codes differ", made.codes.cast(DType::F32).not_equal(codes.cast(DType::F32)).cast(DType::F32).sum_all());
    b.output("scales differ", made.scale.not_equal(stored.scale).cast(DType::F32).sum_all());
    let h = b.input("x", DType::F32, [16, 16]).matmul_t(b.parameter("v", [32, 16], Init::Uniform { bound: 0.5 }));
    let y = b.scope("blocks.0", || b.scope("w", || h.matmul_t(stored.value())));
    b.output("loss", y.square().mean_all());
    b.finish().unwrap()
}

/// The codes stored with a scale for each output are used whatever activations have.
#[test]
fn frozen_weights_are_multiplied_under_every_scaling() {
    let forward = frozen();
    let losses = |recipe: &Recipe| -> Vec<f64> {
        let program = recipe.step(&forward).unwrap();
        let scaled = |node: &&pawl_graph::graph::Node| matches!(node.op, Op::ScaledMatMul { .. });
        let count = program.graph.nodes().iter().filter(scaled).count();
        assert_eq!(count, if recipe.precision == Precision::FP8 { 2 } else { 0 });
        let mut case = Case::new(program, 3);
        let rate = case.program.inputs.iter().position(|input| input.name == "learning_rate").unwrap();
        case.inputs[rate] = Array::scalar(1e-3);
        let executor = GraphCpu { threads: 2, ..GraphCpu::default() };
        let outcome = case.run(&executor, &ExecOptions { seed: 5, ..ExecOptions::default() }, 3).unwrap();
        let loss = |outputs: &Vec<(String, Array)>| outputs.iter().find(|(name, _)| name == "loss").unwrap().1.item();
        outcome.outputs.iter().map(loss).collect()
    };
    let bfloat = losses(&Recipe { precision: Precision::BF16, ..recipe() });
    for scaling in [Scaling::Row, Scaling::Tensor, Scaling::Delayed] {
        let eight = losses(&Recipe { float8: Float8 { scaling, ..Float8::default() }, ..eight_bits() });
        for (a, b) in eight.iter().zip(&bfloat) {
            assert!((a / b - 1.0).abs() < 0.05, "{scaling:?}: {eight:?} beside {bfloat:?}");
        }
    }
}

#[test]
fn frozen_weights_are_quantized_once_and_used_as_they_are_stored() {
    let program = eight_bits().micro_step(&frozen()).unwrap();
    for executor in executors() {
        let outcome = run(&Case::new(program.clone(), 3), executor.as_ref());
        for name in ["codes differ", "scales differ"] {
            let value = outcome.outputs[0].iter().find(|(output, _)| output == name).unwrap().1.item();
            assert_eq!(value, 0.0, "{name} by {}", executor.name());
        }
    }
    let state = |name: &str| program.state(name).unwrap();
    for (_, node) in program.graph.iter().filter(|(_, node)| matches!(node.op, Op::ScaledMatMul { .. })) {
        assert_eq!(program.graph.node(node.operands[1]).op, Op::State(state("w.e4m3")));
    }
    let scaled = program.graph.nodes().iter().filter(|node| matches!(node.op, Op::ScaledMatMul { .. })).count();
    assert_eq!(scaled, 2, "forward, and the gradient of x");
}

/// Scales follow the numbers one micro-step later, and forget them after the history.
#[test]
fn delayed_scales_are_of_the_micro_steps_before() {
    let program = delayed(1);
    let decl = &program.states[program.state(OF_X).unwrap().0 as usize];
    assert_eq!(*decl.meta.shape, [HISTORY], "{program}");
    for executor in executors() {
        let mut exe = executor.compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
        let mut expected = [0.0; HISTORY];
        for step in 0..HISTORY + 3 {
            let magnitude = if step == 2 { 1000.0 } else { 1.0 + step as f32 };
            exe.run(0, &[View::F32(&[magnitude; 16 * 32])]).unwrap();
            let known = expected.iter().fold(0f32, |max, &x| max.max(x));
            let scale = if known > 0.0 { known / E4M3::MAX } else { 1.0 };
            let y = exe.output(0, 0).unwrap().item() as f32;
            let rounded = E4M3::from_f32(magnitude / scale).to_f32() * scale;
            assert!((y / rounded - 1.0).abs() < 0.02, "{}, step {step}: {y} beside {rounded}", executor.name());
            expected.rotate_right(1);
            expected[0] = magnitude;
            let history = exe.read_state(OF_X).unwrap().to_f64();
            assert_eq!(history, expected.map(f64::from), "{}", executor.name());
        }
        exe.run(0, &[View::F32(&[f32::INFINITY; 16 * 32])]).unwrap();
        assert_eq!(exe.read_state(OF_X).unwrap().to_f64()[0], 0.0, "what is not finite leaves no trace");
        // Rows of zeros, and magnitudes whose scale has no reciprocal.
        for magnitude in [0.0, 1e-38, 1e-38] {
            for _ in 0..=HISTORY {
                exe.run(0, &[View::F32(&[magnitude; 16 * 32])]).unwrap();
                assert!(exe.output(0, 0).unwrap().item().is_finite(), "{}: {magnitude}", executor.name());
            }
        }
    }
}

/// The histories of [`delayed`].
const OF_X: &str = "float8/blocks.0/w/value.1";
const OF_W: &str = "float8/blocks.0/w/value.0";

/// The mean of `x W^T / 16` for a W of 16 ones a row, with delayed scales over `world` ranks.
fn delayed(world: usize) -> Program {
    let b = Builder::new("delayed");
    let ones = |of: usize| if of % 32 < 16 { 1.0 } else { 0.0 };
    let weight = Array::new([16, 32], Data::F32((0..16 * 32).map(ones).collect())).unwrap();
    let x = b.input("x", DType::F32, [16, 32]);
    let w = b.parameter("w", [16, 32], Init::Array(weight));
    let y = b.scope("blocks.0", || b.scope("w", || x.cast(DType::BF16).matmul_t(w.cast(DType::BF16))));
    b.output("mean", y.cast(DType::F32).mean_all() * (1.0 / 16.0));
    let float8 = Float8 { scaling: Scaling::Delayed, ..Float8::default() };
    passes::scale_products(&b.finish().unwrap(), &[Pattern::new("blocks.*/*")], float8, world).unwrap()
}

#[test]
fn delayed_scales_are_of_all_ranks() {
    let program = delayed(2);
    let run = |(rank, largest): (collective::ThreadRank, f32)| {
        let options = ExecOptions { collective: Arc::new(rank), ..ExecOptions::default() };
        let mut exe = GraphCpu::default().compile(std::slice::from_ref(&program), &options).unwrap();
        exe.run(0, &[View::F32(&[largest; 16 * 32])]).unwrap();
        [OF_W, OF_X].map(|name| exe.read_state(name).unwrap().to_f64()[0])
    };
    let newest: Vec<[f64; 2]> = std::thread::scope(|scope| {
        let ranks = collective::threads(2).into_iter().zip([3.0, 7.0]);
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(|| run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(newest, [[1.0, 7.0]; 2], "of the weight and of the activation");
}

/// Programs with different products share the histories of those that they both have.
#[test]
fn programs_of_one_training_share_delayed_scales() {
    let forward = |blocks: std::ops::Range<usize>| {
        let b = Builder::new("part");
        let mut h = b.input("x", DType::F32, [16, 32]);
        for block in blocks {
            let weight = |name: &str| b.parameter(&format!("{name}.{block}"), [32, 32], Init::Uniform { bound: 0.3 });
            h = h + b.scope(&format!("blocks.{block}"), || b.scope("w", || h.matmul_t(weight("w"))));
        }
        b.output("loss", h.square().mean_all());
        b.finish().unwrap()
    };
    let recipe = Recipe { float8: Float8 { scaling: Scaling::Delayed, ..Float8::default() }, ..eight_bits() };
    let programs = [0..2, 0..3, 1..3].map(|blocks| recipe.micro_step(&forward(blocks)).unwrap());
    let mut exe = GraphCpu::default().compile(&programs, &ExecOptions::default()).unwrap();
    let x = [0.5; 16 * 32];
    exe.run(2, &[View::F32(&x)]).unwrap();
    let histories = |exe: &mut dyn Executable, block: usize| -> Vec<f64> {
        let of = format!("float8/blocks.{block}/w/value");
        let names = exe.states().iter().map(|decl| decl.name.clone()).filter(|name| name.starts_with(&of));
        names.collect::<Vec<_>>().iter().map(|name| exe.read_state(name).unwrap().to_f64()[0]).collect()
    };
    assert!(histories(exe.as_mut(), 0).iter().all(|&newest| newest == 0.0), "the third program has no block 0");
    for block in [1, 2] {
        let all = histories(exe.as_mut(), block);
        assert!(all.len() == 2 && all.iter().all(|&newest| newest > 0.0), "block {block}: {all:?}");
    }
}

#[test]
fn numbers_out_of_range_are_counted() {
    let b = Builder::new("rounding");
    let x = b.input("x", DType::F32, [10]);
    let y = b.input("y", DType::F32, [10]);
    b.output("codes", x.cast(DType::E4M3).cast(DType::F32));
    b.output("others", y.cast(DType::E5M2).cast(DType::F32));
    let program = passes::count_out_of_range(&b.finish().unwrap()).unwrap();
    let smallest = [2f32.powi(-9), 2f32.powi(-16)];
    let fours = [0.0, -0.0, 448.0, -465.0, 1e9, 1.0, smallest[0], 0.4 * smallest[0], -1e-20, 0.6 * smallest[0]];
    let fives = [0.0, 448.0, -61_440.0, 61_441.0, 1.0, 0.4 * smallest[1], smallest[1], 2.0, 3.0, 4.0];
    for executor in executors() {
        let mut exe = executor.compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
        exe.run(0, &[View::F32(&fours), View::F32(&fives)]).unwrap();
        let share = |exe: &mut dyn Executable, output| exe.output(0, output).unwrap().item();
        let shares = [0, 1].map(|output| share(exe.as_mut(), output));
        // -465, 1e9 and 61,441; 0.4 of the smallest number of both formats, and -1e-20.
        for share in shares {
            assert!((share - 3.0 / 20.0).abs() < 1e-6, "{}: {shares:?}", executor.name());
        }
    }
}

#[test]
fn only_delayed_scales_overflow_and_a_smaller_scale_loses_fewer_numbers() {
    let losses = |float8: Float8, factor: f32| -> [f64; 2] {
        let recipe = Recipe { float8, ..eight_bits() };
        let forward = perceptron();
        let programs = [recipe.micro_step(&forward).unwrap(), recipe.float8_out_of_range(&forward).unwrap().unwrap()];
        assert!(programs[1].updates.is_empty());
        let mut exe = GraphCpu::default().compile(&programs, &ExecOptions::default()).unwrap();
        let draw = |factor: f32| -> Vec<f32> {
            (0..64 * 16).map(|i| factor * (random::bits(7, i) as f32 / u64::MAX as f32 - 0.5)).collect()
        };
        let (x, target) = (draw(1.0), draw(1.0));
        exe.run(0, &[View::F32(&x), View::F32(&target)]).unwrap();
        // The second micro-step has the scales of the first.
        let target = draw(factor);
        exe.run(1, &[View::F32(&x), View::F32(&target)]).unwrap();
        [0, 1].map(|output| exe.output(1, output).unwrap().item())
    };
    let of = |scaling| Float8 { scaling, ..Float8::default() };
    let [row, tensor, delayed] = [Scaling::Row, Scaling::Tensor, Scaling::Delayed].map(|s| losses(of(s), 30.0));
    assert_eq!((row[0], tensor[0]), (0.0, 0.0));
    assert!(delayed[0] > 0.01, "gradients are 30 times as large as they were: {delayed:?}");
    assert!(row[1] < tensor[1], "{row:?} {tensor:?}");
    assert!(Recipe { precision: Precision::BF16, ..recipe() }.float8_out_of_range(&perceptron()).unwrap().is_none());
}
