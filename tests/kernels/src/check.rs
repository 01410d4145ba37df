//! The GPU against the CPU: same numbers, same states.

use pawl_cuda::CudaGraph;
use pawl_eager::Eager;
use pawl_engine_tests::{Case, normed_heads, random_case, transformer};
use pawl_graph::{
    array::Array,
    executor::{ExecError, ExecOptions, Executor},
    graph::{AttentionSpec, Builder, DType, Init, Role, StateDecl, concat},
    optim::{AdamW, Muon, Optimizer, OptimizerKernel},
    passes::Pattern,
    recipe::{AttentionKernel, Precision, Recipe},
};
use pawl_kernels::{UpsStep, inputs};

use crate::{device, executor};

/// Comparisons, and those that failed.
struct Tally {
    passed: usize,
    failed: Vec<String>,
}

impl Tally {
    /// Compares `runs` runs on each of `cuda` with those of the eager executor.
    fn close(&mut self, name: &str, case: &Case, cuda: &[&CudaGraph], runs: usize, bound: f64) {
        let options = ExecOptions { seed: 5, ..ExecOptions::default() };
        let eager = match case.run(&Eager::cpu(), &options, runs) {
            Ok(outcome) => outcome,
            Err(error) => return self.failed.push(format!("{name}, eager: {error}")),
        };
        for executor in cuda {
            let outcome =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.run(*executor, &options, runs)));
            match outcome {
                Ok(Ok(outcome)) => {
                    let (distance, at) = outcome.distance(&eager);
                    if distance <= bound {
                        self.passed += 1;
                    } else {
                        self.failed.push(format!("{name}, {}: {at} differs by {distance:e}", executor.name()));
                    }
                }
                Ok(Err(error)) => self.failed.push(format!("{name}, {}: {error}", executor.name())),
                Err(_) => self.failed.push(format!("{name}, {}: panicked", executor.name())),
            }
        }
    }

    /// Two executables that run one program give equal bits.
    fn repeats(&mut self, name: &str, case: &Case, cuda: &CudaGraph, runs: usize) {
        let options = ExecOptions { seed: 5, ..ExecOptions::default() };
        let run = || {
            let unwound = std::panic::AssertUnwindSafe(|| case.run(cuda, &options, runs));
            std::panic::catch_unwind(unwound).unwrap_or_else(|_| Err(ExecError::Device("panicked".into())))
        };
        match (run(), run()) {
            (Ok(a), Ok(b)) if a == b => self.passed += 1,
            (Ok(_), Ok(_)) => self.failed.push(format!("{name}: two runs differ")),
            (Err(error), _) | (_, Err(error)) => self.failed.push(format!("{name}: {error}")),
        }
    }
}

/// Everything.
pub fn run(random: u64) -> anyhow::Result<()> {
    let device = device()?;
    let quick = |mode: &str| CudaGraph { tune: false, ..executor(&device, mode) };
    let (captured, unfused) = (quick("captured"), quick("unfused"));
    let mut tally = Tally { passed: 0, failed: Vec::new() };
    for seed in 0..random {
        let case = random_case(seed, 12 + (seed as usize * 7) % 60);
        let arms: &[&CudaGraph] = if seed % 4 == 0 { &[&captured, &unfused] } else { &[&captured] };
        tally.close(&format!("random {seed}"), &case, arms, 3, 2e-4);
    }
    println!("random programs: {} passed, {} failed", tally.passed, tally.failed.len());
    for seed in 0..random / 6 {
        let case = random_case(seed, 40);
        if let Ok(wide) = case.widened() {
            tally.close(&format!("float64 {seed}"), &wide, &[&captured], 2, 1e-10);
        }
        tally.repeats(&format!("repeated {seed}"), &case, &captured, 3);
    }
    operators(&mut tally, &captured)?;
    norms(&mut tally, &captured, &unfused)?;
    trainings(&mut tally, &captured, &unfused)?;
    ups(&mut tally, &captured)?;
    for line in &tally.failed {
        println!("FAILED {line}");
    }
    println!("check: {} passed, {} failed", tally.passed, tally.failed.len());
    anyhow::ensure!(tally.failed.is_empty(), "the GPU differs");
    Ok(())
}

/// The same edges as the CPU executor's tests.
fn operators(tally: &mut Tally, cuda: &CudaGraph) -> anyhow::Result<()> {
    for (m, n, k) in [(1, 1, 1), (13, 33, 385), (97, 5, 64), (48, 64, 800), (5, 129, 3), (200, 96, 40)] {
        let b = Builder::new("products");
        let (x, w) = (b.input("x", DType::F32, [m, k]), b.input("w", DType::F32, [n, k]));
        let heads = b.input("heads", DType::F32, [3, m, 2, k]);
        let keys = b.input("keys", DType::F32, [3, n, 2, k]);
        b.output("nt", x.matmul_t(w));
        b.output("nn", x.matmul(w.transpose()));
        b.output("tn", x.transpose().t_matmul(w.transpose()));
        let scores = heads.permute([0, 2, 1, 3]).matmul_t(keys.permute([0, 2, 1, 3]));
        b.output("batched", scores);
        b.output("part", (scores.permute([0, 2, 1, 3]) + 1.0).slice(2, 1, 1));
        b.output("half", x.cast(DType::BF16).matmul_t(w.cast(DType::BF16)).cast(DType::F32));
        let bound = 5e-5 * (k as f64).sqrt().max(8.0) * 20.0;
        tally.close(&format!("products {m} {n} {k}"), &Case::new(b.finish()?, 1), &[cuda], 1, bound);
    }
    for axes in [vec![0], vec![1], vec![2], vec![0, 1], vec![1, 2], vec![0, 2], vec![0, 1, 2]] {
        for shape in [[3, 4, 5], [1, 70, 33], [40, 1, 2100], [2, 3, 20_000], [2000, 3, 48], [700, 2, 384]] {
            let b = Builder::new("reductions");
            let x = b.input("x", DType::F32, shape);
            let e = (x * 0.5).exp();
            b.output("sum", e.sum(&axes));
            b.output("max", x.max(&axes));
            b.output("centred", (e - e.mean(&axes)).square().mean_all());
            b.output("halves", x.cast(DType::BF16).cast(DType::F32).sum(&axes));
            let name = format!("reduction of {shape:?} over {axes:?}");
            tally.close(&name, &Case::new(b.finish()?, 4), &[cuda], 1, 3e-5);
        }
    }
    for dtype in [DType::F32, DType::BF16] {
        for width in [1, 7, 37, 48, 96, 128, 384, 768, 1000, 1536, 5000] {
            let b = Builder::new("norms");
            let x = b.parameter("x", [301, width], Init::Uniform { bound: 1.0 });
            let g = b.parameter("g", [width], Init::Uniform { bound: 1.0 });
            let y = (x.cast(dtype).cast(DType::F32).layer_norm(1e-3) * g).gelu();
            let loss = (y.cast(dtype).cast(DType::F32) * x).mean_all();
            b.output("loss", loss);
            let gradients = pawl_graph::autodiff::gradients(loss, &[x, g]);
            for (name, gradient) in ["dx", "dg"].iter().zip(gradients) {
                if let Some(gradient) = gradient {
                    b.output(name, gradient * 100.0);
                }
            }
            let bound = if dtype == DType::F32 { 2e-4 } else { 2e-2 };
            tally.close(&format!("norms {dtype} {width}"), &Case::new(b.finish()?, 4), &[cuda], 1, bound);
        }
    }
    let b = Builder::new("integers");
    let i = b.iota(1, [5, 37]);
    let x = b.input("x", DType::F32, [5, 37]);
    let counter = b.input("counter", DType::U32, []);
    let odd = (i * 3.0 + 4_294_967_290.0).cast(DType::F32);
    b.output("chosen", x.less(0.25).select(odd, x.cast(DType::F16).cast(DType::F32)));
    b.output("truth", x.greater_equal(0.0));
    b.output("count", x.greater(0.0).cast(DType::U32).sum([0]));
    b.output("draw", b.random("draw", counter, [5, 37]));
    b.output("finite", (x / x.floor()).is_finite());
    b.output("back", (x * 10.0).abs().cast(DType::U32));
    b.output("wide", x.cast(DType::F64).exp().cast(DType::BF16));
    tally.close("integers", &Case::new(b.finish()?, 9), &[cuda], 1, 1e-6);

    let b = Builder::new("indices");
    let x = b.input("x", DType::F32, [6, 50, 48]);
    for axis in 0..3 {
        let index = b.iota(axis, [6, 50, 48]).cast(DType::F32);
        b.output(&format!("axis {axis}"), index + x);
        b.output(&format!("axis {axis} in rows"), (index * x - (index * x).max([2])).sum([2]));
        b.output(&format!("axis {axis} over rows"), (index * x).sum([0, 1]));
        b.output(&format!("axis {axis} in halves of rows"), (index * x).reshape([600, 24]).max([1]));
    }
    tally.close("indices", &Case::new(b.finish()?, 2), &[cuda], 1, 1e-5);

    let state = |name: &str, value: f64| StateDecl::f32(name, [70], Role::Optimizer, Init::Fill(value));
    let b = Builder::new("updates");
    let (p, q, r) = (b.state(state("p", 1.0)), b.state(state("q", 2.0)), b.state(state("r", 3.0)));
    b.update(p, q);
    b.update(q, p);
    let shifted = concat(&[r.slice(0, 1, 69), r.slice(0, 0, 1)], 0);
    b.update(r, shifted + p + b.iota(0, [70]).cast(DType::F32));
    b.output("old", r.sum_all() + p.sum_all());
    b.output("view", q.reshape([7, 10]));
    tally.close("updates", &Case::new(b.finish()?, 1), &[cuda], 4, 1e-5);

    let b = Builder::new("table");
    let (table, rows) =
        (b.parameter("table", [3, 384], Init::Normal { deviation: 1.0 }), b.input("rows", DType::U32, [1000]));
    let loss = (table.gather(0, rows).square() * 0.5).sum_all();
    b.output("loss", loss * 1e-5);
    if let Some(gradient) = pawl_graph::autodiff::gradients(loss, &[table]).remove(0) {
        b.output("gradient", gradient);
    }
    tally.close("table", &Case::new(b.finish()?, 1), &[cuda], 1, 1e-5);

    for (t, s, h, g, causal) in [(5, 5, 4, 2, true), (1, 7, 2, 1, true), (150, 33, 2, 2, false), (130, 130, 3, 1, true)]
    {
        let b = Builder::new("attention");
        let q = b.parameter("q", [2, h, t, 6], Init::Uniform { bound: 1.0 });
        let k = b.parameter("k", [2, g, s, 6], Init::Uniform { bound: 1.0 });
        let v = b.parameter("v", [2, g, s, 6], Init::Uniform { bound: 1.0 });
        let o = q.attention(k, v, AttentionSpec { scale: 0.7, causal });
        let loss = o.permute([0, 2, 1, 3]).reshape([2, t, h * 6]).square().mean_all();
        b.output("loss", loss);
        for (name, gradient) in ["dq", "dk", "dv"].iter().zip(pawl_graph::autodiff::gradients(loss, &[q, k, v])) {
            if let Some(gradient) = gradient {
                b.output(name, gradient * 100.0);
            }
        }
        tally.close(&format!("attention {t} {s}"), &Case::new(b.finish()?, 1), &[cuda], 1, 2e-5);
    }
    Ok(())
}

/// Attention over normalised heads and its gradients, in one kernel and in parts.
fn norms(tally: &mut Tally, captured: &CudaGraph, unfused: &CudaGraph) -> anyhow::Result<()> {
    let base = Recipe {
        attention: AttentionKernel::Flash,
        ..Recipe::new(Optimizer { matrices: None, others: AdamW::default() })
    };
    for (extents, causal) in [
        ([3, 8, 128, 48], false),
        ([2, 3, 128, 64], true),
        ([2, 2, 100, 16], false),
        ([1, 4, 37, 32], true),
        ([2, 1, 1, 48], false),
        ([1, 2, 128, 128], false),
        ([2, 2, 150, 48], false),
    ] {
        let forward = normed_heads(extents, causal)?;
        for (precision, bound) in [(Precision::BF16, 3e-2), (Precision::F16, 4e-3)] {
            let program = Recipe { precision, ..base.clone() }.micro_step(&forward)?;
            let case = Case::new(program, 2);
            let name = format!("normed heads {extents:?} {precision:?}");
            tally.close(&name, &case, &[captured, unfused], 1, bound);
            tally.repeats(&name, &case, captured, 1);
        }
    }
    Ok(())
}

fn training(recipe: &Recipe, batch: usize) -> anyhow::Result<Case> {
    let mut case = Case::new(recipe.step(&transformer(batch))?, 3);
    for (decl, array) in case.program.inputs.iter().zip(&mut case.inputs) {
        if decl.name == "learning_rate" {
            *array = Array::scalar(1e-3);
        }
    }
    Ok(case)
}

fn trainings(tally: &mut Tally, captured: &CudaGraph, unfused: &CudaGraph) -> anyhow::Result<()> {
    let adamw = Optimizer { matrices: None, others: AdamW::default() };
    let base = Recipe::new(adamw);
    let muon = Muon { weight_decay: 0.03, ..Muon::default() };
    let settings = [
        Recipe {
            clip: Some(1.0),
            average: Some(0.99),
            ..Recipe::new(Optimizer { matrices: Some(muon), others: AdamW::default() })
        },
        base.clone(),
        Recipe { attention: AttentionKernel::Flash, kernel: OptimizerKernel::Fused, ..base.clone() },
        Recipe { recompute: vec![Pattern::new("blocks.*")], ..base.clone() },
    ];
    for (index, recipe) in settings.iter().enumerate() {
        let case = training(recipe, 3)?;
        tally.close(&format!("training {index}"), &case, &[captured, unfused], 4, 3e-3);
        tally.repeats(&format!("training {index} again"), &case, captured, 4);
    }
    for (precision, bound) in [(Precision::BF16, 0.06), (Precision::F16, 0.01)] {
        for attention in [AttentionKernel::Math, AttentionKernel::Flash] {
            let mut case = training(&Recipe { precision, attention, ..base.clone() }, 3)?;
            case.program.outputs.truncate(1);
            case.program.updates.clear();
            tally.close(&format!("{precision:?} {attention:?}"), &case, &[captured], 1, bound);
        }
    }
    Ok(())
}

/// UPS as it is trained, at its smallest.
fn ups(tally: &mut Tally, cuda: &CudaGraph) -> anyhow::Result<()> {
    for (precision, bound) in [(Precision::F32, 2e-3), (Precision::BF16, 5e-2)] {
        for recompute in [false, true] {
            let step = UpsStep {
                preset: "smoke".into(),
                items: 2,
                pairs: None,
                auxiliary: true,
                precision,
                attention: AttentionKernel::Flash,
                recompute,
            };
            let program = step.program()?;
            let data = inputs(&program)?;
            tally.close(
                &format!("UPS {precision:?}, recompute {recompute}"),
                &Case { program, inputs: data },
                &[cuda],
                3,
                bound,
            );
        }
    }
    Ok(())
}
