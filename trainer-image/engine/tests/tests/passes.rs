//! Each setting is a pass: what it may change, and what it must not.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::{sync::Arc, thread};

use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_engine_tests::{Case, normed_heads, random_case, read_outputs, transformer};
use pawl_graph::{
    array::{Array, View},
    collective,
    executor::{ExecOptions, Executable, Executor, read_named, write_named},
    graph::{Builder, DType, Init, Op, Program, Stage, concat},
    optim::{AdamW, Muon, Optimizer, OptimizerKernel},
    passes::{self, Pattern},
    recipe::{AttentionKernel, LossScale, Precision, Recipe},
};

const BATCH: usize = 4;

fn optimizer() -> Optimizer {
    let muon = Muon { weight_decay: 0.03, ..Muon::default() };
    Optimizer { matrices: Some(muon), others: AdamW { weight_decay: 0.03, ..AdamW::default() } }
}

fn adamw() -> Optimizer {
    Optimizer { matrices: None, others: AdamW::default() }
}

fn compile(programs: &[Program]) -> Box<dyn Executable> {
    Eager::cpu().compile(programs, &ExecOptions { seed: 7, ..ExecOptions::default() }).unwrap()
}

/// Data of micro-step `counter`: x, target, counter; and a learning rate where the program wants one.
fn inputs(program: &Program, counter: u32) -> Vec<Array> {
    let mut inputs = Case::new(program.clone(), u64::from(counter)).inputs;
    for (decl, array) in program.inputs.iter().zip(&mut inputs) {
        match decl.name.as_str() {
            "counter" => *array.data_mut() = pawl_graph::array::Data::U32(vec![counter]),
            "learning_rate" => *array = Array::scalar(1e-2),
            _ => {}
        }
    }
    inputs
}

fn run(exe: &mut dyn Executable, index: usize, program: &Program, counter: u32) -> Vec<(String, Array)> {
    let inputs = inputs(program, counter);
    let views: Vec<View<'_>> = inputs.iter().map(Array::view).collect();
    exe.run(index, &views).unwrap();
    read_outputs(exe, index, program).unwrap()
}

/// Outputs of `steps` steps and all states after them.
type Trace = (Vec<Vec<(String, Array)>>, Vec<(String, Array)>);

fn train(recipe: &Recipe, steps: u32) -> Trace {
    let program = recipe.step(&transformer(BATCH)).unwrap();
    let mut exe = compile(std::slice::from_ref(&program));
    let outputs = (0..steps).map(|step| run(exe.as_mut(), 0, &program, step)).collect();
    let mut states = read_named(exe.as_mut()).unwrap();
    states.sort_by(|a, b| a.0.cmp(&b.0));
    (outputs, states)
}

fn losses(trace: &Trace) -> Vec<f64> {
    trace.0.iter().map(|outputs| outputs.iter().find(|(name, _)| name == "loss").unwrap().1.item()).collect()
}

fn assert_near(a: &Trace, b: &Trace, bound: f64) {
    for ((name, x), (other, y)) in a.1.iter().zip(&b.1) {
        assert_eq!(name, other);
        let worst = x.to_f64().iter().zip(y.to_f64()).fold(0.0f64, |w, (p, q)| w.max((p - q).abs()));
        assert!(worst < bound, "{name} differs by {worst}");
    }
}

fn names(patterns: &[&str]) -> Vec<Pattern> {
    patterns.iter().map(|p| Pattern::new(p)).collect()
}

#[test]
fn training_lowers_the_loss() {
    let program = Recipe::new(optimizer()).step(&transformer(BATCH)).unwrap();
    let mut exe = compile(std::slice::from_ref(&program));
    let loss = |exe: &mut dyn Executable| run(exe, 0, &program, 0)[0].1.item();
    let first = loss(exe.as_mut());
    let last = (0..60).map(|_| loss(exe.as_mut())).last().unwrap();
    assert!(last < 0.5 * first, "{first} -> {last}");
}

#[test]
fn recomputation_changes_no_bit_and_lowers_the_peak() {
    let forward = transformer(64);
    for attention in [AttentionKernel::Math, AttentionKernel::Flash] {
        let kept = Recipe { attention, ..Recipe::new(optimizer()) };
        for regions in [&["blocks.*"][..], &["blocks.*/attn", "blocks.*/mlp"]] {
            let recomputed = Recipe { recompute: names(regions), ..kept.clone() };
            assert_eq!(train(&kept, 3), train(&recomputed, 3), "{regions:?}");
            let peak = |recipe: &Recipe| {
                let program = recipe.step(&forward).unwrap();
                let mut exe = compile(std::slice::from_ref(&program));
                run(exe.as_mut(), 0, &program, 0);
                (exe.memory().peak, exe.memory().planned)
            };
            let ((before, _), (after, planned)) = (peak(&kept), peak(&recomputed));
            assert!((after as f64) < 0.8 * before as f64, "{regions:?}: {before} -> {after} bytes");
            let off = (planned as f64 - after as f64).abs() / after as f64;
            assert!(off < 0.1, "planned {planned}, measured {after}");
        }
    }
}

#[test]
fn recomputed_nodes_wait_for_the_gradient() {
    let recipe = Recipe { recompute: names(&["blocks.*"]), ..Recipe::new(adamw()) };
    let program = recipe.step(&transformer(BATCH)).unwrap();
    let again = passes::simplify(&program).unwrap();
    let copies = |p: &Program| p.graph.nodes().iter().filter(|n| n.stage == Stage::Recompute).count();
    assert!(copies(&program) > 20);
    assert_eq!(copies(&again), copies(&program), "other passes do not undo it");
}

#[test]
fn fused_kernels_train_the_same_model() {
    for optimizer in [adamw(), optimizer()] {
        let each = Recipe { average: Some(0.9), groups: vec!["out.".into()], ..Recipe::new(optimizer) };
        let fused = Recipe { kernel: OptimizerKernel::Fused, ..each.clone() };
        // Sums of squares for the norm are taken in another order, and nothing else.
        let (a, b) = (train(&each, 3), train(&fused, 3));
        assert_eq!(losses(&a), losses(&b));
        assert_eq!(a.1, b.1, "states have the same names and bits in both layouts");
    }
}

#[test]
fn a_checkpoint_moves_between_layouts() {
    let each = Recipe::new(optimizer());
    let fused = Recipe { kernel: OptimizerKernel::Fused, ..each.clone() };
    let forward = transformer(BATCH);
    let programs = [each.step(&forward).unwrap(), fused.step(&forward).unwrap()];
    let mut from = compile(&programs[..1]);
    let mut to = Eager::cpu().compile(&programs[1..], &ExecOptions { seed: 99, ..ExecOptions::default() }).unwrap();
    run(from.as_mut(), 0, &programs[0], 0);
    let mut checkpoint = read_named(from.as_mut()).unwrap();
    checkpoint.push(("stranger".into(), Array::scalar(0.0)));
    assert_eq!(write_named(to.as_mut(), &checkpoint).unwrap(), ["stranger"]);
    let expected = run(from.as_mut(), 0, &programs[0], 1);
    assert_eq!(run(to.as_mut(), 0, &programs[1], 1)[0], expected[0]);
}

/// Accumulates over `counters`, applies, and gives the states.
fn accumulate(recipe: &Recipe, steps: &[&[u32]]) -> Vec<(String, Array)> {
    let forward = transformer(BATCH);
    let programs = [recipe.micro_step(&forward).unwrap(), recipe.apply(&[&forward]).unwrap()];
    let mut exe = compile(&programs);
    for counters in steps {
        for &counter in *counters {
            run(exe.as_mut(), 0, &programs[0], counter);
        }
        run(exe.as_mut(), 1, &programs[1], 0);
    }
    parameters(exe.as_mut())
}

fn parameters(exe: &mut dyn Executable) -> Vec<(String, Array)> {
    let mut states = read_named(exe).unwrap();
    states.retain(|(name, _)| !name.starts_with("gradient/"));
    states.sort_by(|a, b| a.0.cmp(&b.0));
    states
}

#[test]
fn one_micro_step_and_apply_are_one_step() {
    for kernel in [OptimizerKernel::PerTensor, OptimizerKernel::Fused] {
        let recipe = Recipe { kernel, ..Recipe::new(optimizer()) };
        let mut whole = train(&recipe, 2).1;
        whole.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(accumulate(&recipe, &[&[0], &[1]]), whole);
    }
}

#[test]
fn ranks_give_what_micro_steps_give_whatever_the_bucket() {
    for kernel in [OptimizerKernel::PerTensor, OptimizerKernel::Fused] {
        let alone = Recipe { accumulation: 2, kernel, ..Recipe::new(optimizer()) };
        let expected = accumulate(&alone, &[&[0, 1], &[2, 3]]);
        for bucket_bytes in [1, 3000, 1 << 20] {
            let gang = Recipe { accumulation: 1, world: 2, bucket_bytes, ..alone.clone() };
            let program = gang.step(&transformer(BATCH)).unwrap();
            let ranks: Vec<_> = collective::threads(2)
                .into_iter()
                .enumerate()
                .map(|(rank, seat)| {
                    let program = program.clone();
                    thread::spawn(move || {
                        let options = ExecOptions { seed: 7, collective: Arc::new(seat), ..ExecOptions::default() };
                        let mut exe = Eager::cpu().compile(std::slice::from_ref(&program), &options).unwrap();
                        for step in 0..2 {
                            run(exe.as_mut(), 0, &program, 2 * step + rank as u32);
                        }
                        parameters(exe.as_mut())
                    })
                })
                .collect();
            for rank in ranks {
                assert_eq!(rank.join().unwrap(), expected, "bit for bit, buckets of {bucket_bytes} bytes");
            }
        }
    }
}

#[test]
fn buckets_are_reduced_while_the_backward_pass_runs() {
    let gang = Recipe { world: 2, bucket_bytes: 2000, ..Recipe::new(adamw()) };
    let program = gang.step(&transformer(BATCH)).unwrap();
    let place = |f: &dyn Fn(&pawl_graph::graph::Node) -> bool| program.graph.nodes().iter().rposition(f).unwrap();
    let first = program.graph.nodes().iter().position(|n| n.op == Op::AllReduce).unwrap();
    assert!(first < place(&|n| n.stage == Stage::Backward));
}

#[test]
fn flash_and_math_attention_agree() {
    let math = Recipe::new(adamw());
    let flash = Recipe { attention: AttentionKernel::Flash, ..math.clone() };
    assert_near(&train(&math, 1), &train(&flash, 1), 2e-4);
    let count = |recipe: &Recipe| {
        let program = recipe.step(&transformer(BATCH)).unwrap();
        program.graph.nodes().iter().filter(|n| matches!(n.op, Op::Attention(_))).count()
    };
    assert_eq!([count(&math), count(&flash)], [0, 2]);
}

/// Micro-steps, whose updates are the gradients, with and without the norms joined to attention.
fn norms(causal: bool) -> [Program; 2] {
    let forward = normed_heads([2, 3, 5, 8], causal).unwrap();
    let plain = Recipe { attention: AttentionKernel::Flash, ..Recipe::new(adamw()) };
    let joined = Recipe { precision: Precision::BF16, ..plain.clone() };
    [joined, plain].map(|recipe| recipe.micro_step(&forward).unwrap())
}

#[test]
fn norms_join_attention_and_no_value_changes() {
    for causal in [false, true] {
        let [joined, plain] = norms(causal);
        let count = |program: &Program| {
            let of = |n: &&pawl_graph::graph::Node| matches!(n.op, Op::NormedAttention(_) | Op::NormedAttentionGrad(_));
            program.graph.nodes().iter().filter(of).count()
        };
        assert_eq!([count(&joined), count(&plain)], [2, 0]);
        let [joined, plain] = [joined, plain].map(|program| {
            let case = Case::new(program, 3).widened().unwrap();
            case.run(&Eager::cpu(), &ExecOptions::default(), 2).unwrap()
        });
        assert!(
            joined.states.iter().any(|(name, sum)| name == "gradient/gain_k" && sum.to_f64().iter().all(|&g| g != 0.0))
        );
        let (distance, place) = joined.distance(&plain);
        // The smallest number added is rounded to float32 in one of them.
        assert!(distance < 1e-9, "{place} is off by {distance}");
    }
}

#[test]
fn joined_norms_run_on_every_executor_and_recompute_bit_for_bit() {
    let [joined, _] = norms(true);
    let case = Case::new(joined.clone(), 3);
    let eager = case.run(&Eager::cpu(), &ExecOptions::default(), 1).unwrap();
    let graph = case.run(&GraphCpu::default(), &ExecOptions::default(), 1).unwrap();
    let (distance, place) = graph.distance(&eager);
    assert!(distance < 2e-2, "{place} is off by {distance}");
    let again = Case { program: passes::recompute(&joined, &names(&["*"])).unwrap(), ..case };
    assert!(again.run(&Eager::cpu(), &ExecOptions::default(), 1).unwrap() == eager);
}

#[test]
fn attention_that_is_not_joined_keeps_its_statistics() {
    let exact = losses(&train(&Recipe::new(adamw()), 3));
    let (attention, full_precision) = (AttentionKernel::Flash, names(&["*"]));
    let recipe = Recipe { attention, precision: Precision::BF16, full_precision, ..Recipe::new(adamw()) };
    for (a, b) in exact.iter().zip(&losses(&train(&recipe, 3))) {
        assert!((a - b).abs() < 1e-4 * a, "{a} {b}");
    }
}

#[test]
fn low_precision_is_near_and_really_rounds() {
    let exact = losses(&train(&Recipe::new(adamw()), 3));
    for (precision, dtype, bound) in [(Precision::BF16, DType::BF16, 3e-2), (Precision::F16, DType::F16, 4e-3)] {
        let recipe = Recipe { precision, full_precision: names(&["loss"]), ..Recipe::new(adamw()) };
        let rounded = losses(&train(&recipe, 3));
        assert_ne!(exact, rounded);
        for (a, b) in exact.iter().zip(&rounded) {
            assert!((a - b).abs() < bound * a, "{precision:?}: {exact:?} {rounded:?}");
        }
        let program = recipe.step(&transformer(BATCH)).unwrap();
        for (_, node) in program.graph.iter().filter(|(_, n)| matches!(n.op, Op::MatMul { .. })) {
            let narrow = program.graph.meta(node.operands[0]).dtype;
            let in_loss = program.graph.scope(node.scope).starts_with("loss");
            assert_eq!(narrow, if in_loss { DType::F32 } else { dtype });
        }
        let wide_sums =
            program.graph.nodes().iter().any(|n| matches!(n.op, Op::Reduce { .. }) && n.meta.dtype == dtype);
        assert!(!wide_sums, "norms, softmax and losses are float32");
    }
}

#[test]
fn a_step_that_overflows_is_skipped_and_the_scale_halves() {
    let recipe = Recipe {
        precision: Precision::F16,
        loss_scale: LossScale::Dynamic,
        average: Some(0.9),
        kernel: OptimizerKernel::Fused,
        ..Recipe::new(optimizer())
    };
    let program = recipe.step(&transformer(BATCH)).unwrap();
    let mut exe = compile(std::slice::from_ref(&program));
    let number = |outputs: &[(String, Array)], name: &str| outputs.iter().find(|(n, _)| n == name).unwrap().1.item();
    let scale = ("loss_scale".to_owned(), Array::scalar(f32::MAX / 4.0));
    write_named(exe.as_mut(), &[scale]).unwrap();
    let before = read_named(exe.as_mut()).unwrap();
    let outputs = run(exe.as_mut(), 0, &program, 0);
    assert_eq!(number(&outputs, "skipped"), 1.0);
    for ((name, old), (_, new)) in before.iter().zip(&read_named(exe.as_mut()).unwrap()) {
        match name.as_str() {
            "loss_scale" => assert_eq!(new.item(), old.item() / 2.0),
            _ => assert_eq!(old, new, "{name} is untouched"),
        }
    }
    write_named(exe.as_mut(), &[("loss_scale".into(), Array::scalar(1024.0))]).unwrap();
    assert_eq!(number(&run(exe.as_mut(), 0, &program, 1), "skipped"), 0.0);
    assert_ne!(before, read_named(exe.as_mut()).unwrap());
}

/// Without a loss scale: a step of a batch with a NaN leaves everything as it was, and steps that count change no bit.
#[test]
fn a_step_that_is_not_finite_is_skipped_in_bfloat16() {
    for kernel in [OptimizerKernel::PerTensor, OptimizerKernel::Fused] {
        let precision = Precision::BF16;
        let plain = Recipe { precision, kernel, clip: Some(0.1), average: Some(0.9), ..Recipe::new(optimizer()) };
        let skipping = Recipe { skip_non_finite: true, ..plain.clone() };
        assert_eq!(train(&plain, 3).1, train(&skipping, 3).1);
        let program = skipping.step(&transformer(BATCH)).unwrap();
        let mut exe = compile(std::slice::from_ref(&program));
        let before = read_named(exe.as_mut()).unwrap();
        let mut broken = inputs(&program, 0);
        *broken[0].data_mut() = pawl_graph::array::Data::F32(vec![f32::NAN; broken[0].shape().elements()]);
        exe.run(0, &broken.iter().map(Array::view).collect::<Vec<_>>()).unwrap();
        let skipped = |exe: &mut dyn Executable| {
            let outputs = read_outputs(exe, 0, &program).unwrap();
            outputs.iter().find(|(name, _)| name == "skipped").unwrap().1.item()
        };
        assert_eq!((skipped(exe.as_mut()), &read_named(exe.as_mut()).unwrap()), (1.0, &before));
        run(exe.as_mut(), 0, &program, 1);
        assert!(skipped(exe.as_mut()) == 0.0 && read_named(exe.as_mut()).unwrap() != before);
    }
}

#[test]
fn a_loss_scale_that_is_a_power_of_two_changes_no_bit_in_float32() {
    let plain = Recipe { clip: Some(0.1), ..Recipe::new(optimizer()) };
    let scaled = Recipe { loss_scale: LossScale::Static(1024.0), ..plain.clone() };
    assert_eq!(train(&plain, 3).1, train(&scaled, 3).1);
}

#[test]
fn gradients_are_clipped_to_the_norm() {
    let b = Builder::new("clip");
    let p = b.parameter("p", [2], Init::Fill(1.0));
    b.output("loss", (p * 30.0).sum_all());
    // AdamW hides the scale of gradients; its mean of them does not.
    let recipe = Recipe { clip: Some(3.0), ..Recipe::new(adamw()) };
    let program = recipe.step(&b.finish().unwrap()).unwrap();
    let mut exe = compile(std::slice::from_ref(&program));
    let outputs = run(exe.as_mut(), 0, &program, 0);
    let norm = outputs.iter().find(|(n, _)| n == "gradient_norm").unwrap().1.item();
    assert!((norm - 1800f64.sqrt()).abs() < 1e-3);
    let m = exe.read_state("adamw.m/p").unwrap().to_f64();
    assert!((m[0] - 0.1 * 3.0 / 2f64.sqrt()).abs() < 1e-5, "{m:?}");
}

#[test]
fn evaluation_over_averages_lags_behind() {
    let forward = transformer(BATCH);
    for kernel in [OptimizerKernel::PerTensor, OptimizerKernel::Fused] {
        let recipe = Recipe { average: Some(0.5), kernel, ..Recipe::new(optimizer()) };
        let programs = [
            recipe.step(&forward).unwrap(),
            recipe.evaluate(&forward, false).unwrap(),
            recipe.evaluate(&forward, true).unwrap(),
        ];
        let mut exe = compile(&programs);
        let evaluate = |exe: &mut dyn Executable, index: usize| run(exe, index, &programs[index], 0)[0].1.item();
        assert_eq!(evaluate(exe.as_mut(), 1), evaluate(exe.as_mut(), 2), "averages start at the weights");
        for _ in 0..8 {
            run(exe.as_mut(), 0, &programs[0], 0);
        }
        assert!(evaluate(exe.as_mut(), 1) < evaluate(exe.as_mut(), 2));
    }
}

#[test]
fn a_group_without_gradients_is_left_alone() {
    let forward = |with_head: bool| {
        let b = Builder::new("forward");
        let [trunk, head] = ["trunk", "head.w"].map(|name| b.parameter(name, [3], Init::Fill(1.0)));
        let loss = if with_head { trunk * head } else { trunk * 1.0 };
        b.output("loss", loss.square().sum_all());
        b.finish().unwrap()
    };
    for kernel in [OptimizerKernel::PerTensor, OptimizerKernel::Fused] {
        let decay = Optimizer { matrices: None, others: AdamW { weight_decay: 0.5, ..AdamW::default() } };
        let recipe = Recipe { kernel, groups: vec!["head.".into()], ..Recipe::new(decay) };
        let programs = [recipe.step(&forward(true)).unwrap(), recipe.step(&forward(false)).unwrap()];
        let mut exe = compile(&programs);
        let head = |exe: &mut dyn Executable| {
            read_named(exe).unwrap().into_iter().find(|(name, _)| name == "head.w").unwrap().1
        };
        let start = head(exe.as_mut());
        run(exe.as_mut(), 1, &programs[1], 0);
        assert_eq!(head(exe.as_mut()), start, "not even its weights decay");
        run(exe.as_mut(), 0, &programs[0], 0);
        assert_ne!(head(exe.as_mut()), start);
    }
}

#[test]
fn simplification_changes_no_value_and_removes_what_is_dead() {
    for seed in 0..40 {
        let case = random_case(seed, 25);
        let simple = Case { program: passes::simplify(&case.program).unwrap(), ..case.clone() };
        assert!(simple.program.graph.len() < case.program.graph.len());
        let run = |case: &Case| case.run(&Eager::cpu(), &ExecOptions::default(), 2).unwrap();
        assert!(run(&case) == run(&simple), "seed {seed}");
        assert!(passes::simplify(&simple.program).unwrap() == simple.program, "once is enough, seed {seed}");
    }
}

#[test]
fn random_programs_are_near_the_oracle() {
    for seed in 0..60 {
        let case = random_case(seed, 20);
        let outcome = case.run(&Eager::cpu(), &ExecOptions::default(), 2).unwrap();
        // Float64 states keep the digits that the float32 run rounds away between runs.
        let oracle = case.widened().unwrap().run(&Eager::cpu(), &ExecOptions::default(), 2).unwrap();
        let (distance, place) = outcome.distance(&oracle);
        assert!(distance < 3e-4, "seed {seed}: {place} is off by {distance}");
    }
}

#[test]
fn parts_that_lie_side_by_side_already_are_not_joined_again() {
    let b = Builder::new("parts");
    let x = b.input("x", DType::F32, [6, 4]);
    let part = |first: usize, len: usize| x.slice(0, first, len).reshape([len * 4]);
    b.output("whole", concat(&[part(0, 2), part(2, 3), part(5, 1)], 0));
    b.output("middle", concat(&[part(1, 2), part(3, 2)], 0));
    b.output("swapped", concat(&[part(2, 3), part(0, 2)], 0));
    // Along another axis rows alternate.
    b.output("columns", concat(&[x.slice(1, 0, 2), x.slice(1, 2, 2)], 1));
    let program = b.finish().unwrap();
    let simpler = passes::simplify(&program).unwrap();
    let joins = simpler.graph.nodes().iter().filter(|node| matches!(node.op, Op::Concat { .. })).count();
    assert_eq!(joins, 2, "what is swapped, and columns");
    let run = |program: &Program| {
        let mut exe = compile(std::slice::from_ref(program));
        run(exe.as_mut(), 0, program, 1)
    };
    assert_eq!(run(&simpler), run(&program));
}

/// A layer and its adapter of 16-bit products, summed in float32 and rounded; with `factor` 1, either could be added to
/// the other. `again`: the adapter's product is read once more.
fn adapted(dtype: DType, factor: f64, again: bool) -> Program {
    let b = Builder::new("adapted");
    let x = b.input("x", dtype, [32, 48]);
    let [w, down, up] = [("w", [64, 48]), ("down", [16, 48]), ("up", [64, 16])]
        .map(|(name, shape)| b.parameter(name, shape, Init::Uniform { bound: 0.3 }).cast(dtype));
    let layer = x.matmul_t(w).cast(DType::F32);
    let product = x.matmul_t(down).matmul_t(up);
    let scaled = if factor == 1.0 { product.cast(DType::F32) } else { product.cast(DType::F32) * factor };
    let sum = b.scope("sum", || (layer + scaled).cast(dtype));
    b.output("y", sum.cast(DType::F32).square());
    b.output("z", sum.cast(DType::F32) + 1.0);
    if again {
        b.output("product", product.cast(DType::F32));
    }
    b.finish().unwrap()
}

#[test]
fn a_product_is_added_where_the_sum_is_written() {
    let added = |program: &Program| -> Vec<(f64, usize)> {
        let needed = program.needed();
        let depth = |of: &pawl_graph::graph::Node| program.graph.meta(of.operands[0]).shape[1];
        let all = program.graph.iter().filter(|(id, _)| needed[id.index()]);
        all.filter_map(|(_, node)| match node.op {
            Op::MatMulAdd { factor, .. } => Some((factor, depth(node))),
            _ => None,
        })
        .collect()
    };
    for (dtype, factor) in [(DType::BF16, 2.0), (DType::BF16, 1.0), (DType::F16, 0.3)] {
        let plain = adapted(dtype, factor, false);
        let joined = passes::join_sums(&plain, |_| false).unwrap();
        assert_eq!(added(&joined), [(factor, 16)], "the product over fewer numbers is added: {joined}");
        for executor in [Box::new(Eager::cpu()) as Box<dyn Executor>, Box::new(GraphCpu::default())] {
            let [expected, got] = [&plain, &joined].map(|program| {
                Case::new(program.clone(), 3).run(executor.as_ref(), &ExecOptions::default(), 1).unwrap()
            });
            let (distance, place) = got.distance(&expected);
            // The product is not rounded before it is added.
            assert!(distance > 0.0 && distance < 3e-2, "{}: {distance} at {place}", executor.name());
        }
        assert_eq!(added(&passes::join_sums(&plain, |scope| scope == "sum").unwrap()), [], "the scope is excluded");
    }
    let read = adapted(DType::BF16, 2.0, true);
    assert_eq!(added(&passes::join_sums(&read, |_| false).unwrap()), [], "what is read elsewhere stays a value");
}
