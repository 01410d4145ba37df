//! Compares the GPU with the CPU: outputs and states.

use pawl_cuda::CudaGraph;
use pawl_eager::Eager;
use pawl_engine_tests::{Case, OperatorCase, normed_heads, operator_cases, random_case, recipes, training};
use pawl_graph::{
    executor::{ExecError, ExecOptions, Executor},
    optim::{AdamW, Optimizer},
    passes::{Float8, Scaling},
    recipe::{AttentionKernel, Precision, Recipe},
};
use pawl_kernels::{SlmStep, UpsStep, inputs};

use crate::{device, executor};

/// Number of successful comparisons, and the failed ones.
struct Tally {
    passed: usize,
    failed: Vec<String>,
}

impl Tally {
    /// Compares the results of `runs` runs on each of `cuda` with those of the eager executor.
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

    /// Checks that two executables of one program give bit-equal results.
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

/// Compares `random` random programs, and all operators and training steps, on the GPU with the eager executor on the
/// CPU; prints what differs.
///
/// # Errors
/// When there is no GPU, or any result differs.
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
    let card = device.card()?;
    for OperatorCase { name, case, runs, bound } in operator_cases()? {
        match card.check(std::slice::from_ref(&case.program), false) {
            Ok(()) => tally.close(&name, &case, &[&captured], runs, bound),
            Err(error) => println!("{name}: {error}"),
        }
    }
    norms(&mut tally, &captured, &unfused)?;
    trainings(&mut tally, &captured, &unfused)?;
    ups(&mut tally, &captured)?;
    language_model(&mut tally, &captured)?;
    for line in &tally.failed {
        println!("FAILED {line}");
    }
    println!("check: {} passed, {} failed", tally.passed, tally.failed.len());
    anyhow::ensure!(tally.failed.is_empty(), "the GPU differs");
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

fn trainings(tally: &mut Tally, captured: &CudaGraph, unfused: &CudaGraph) -> anyhow::Result<()> {
    for (index, recipe) in recipes().iter().enumerate() {
        let case = training(recipe, 3)?;
        tally.close(&format!("training {index}"), &case, &[captured, unfused], 4, 3e-3);
        tally.repeats(&format!("training {index} again"), &case, captured, 4);
    }
    for (precision, bound) in [(Precision::BF16, 0.06), (Precision::F16, 0.01)] {
        for attention in [AttentionKernel::Math, AttentionKernel::Flash] {
            let optimizer = Optimizer { matrices: None, others: AdamW::default() };
            let mut case = training(&Recipe { precision, attention, ..Recipe::new(optimizer) }, 3)?;
            case.program.outputs.truncate(1);
            case.program.updates.clear();
            tally.close(&format!("{precision:?} {attention:?}"), &case, &[captured], 1, bound);
        }
    }
    Ok(())
}

/// The loss of the smallest language model, in full training; with 8-bit floats where the card has them.
fn language_model(tally: &mut Tally, cuda: &CudaGraph) -> anyhow::Result<()> {
    let scaled = |scaling| Float8 { scaling, ..Float8::default() };
    for (precision, float8, bound) in [
        (Precision::BF16, Float8::default(), 1e-2),
        (Precision::FP8, scaled(Scaling::Row), 2e-2),
        (Precision::FP8, scaled(Scaling::Tensor), 2e-2),
        (Precision::FP8, scaled(Scaling::Delayed), 2e-2),
    ] {
        let step = SlmStep { size: "tiny".into(), windows: 2, precision, float8, int8: false, recompute: false };
        let mut program = step.program()?;
        if let Err(ExecError::Unsupported { what, .. }) =
            cuda.device.card()?.check(std::slice::from_ref(&program), false)
        {
            println!("language model: {what}");
            continue;
        }
        let data = inputs(&program)?;
        program.outputs.truncate(1);
        program.updates.clear();
        let case = Case { program, inputs: data };
        let name = format!("language model {precision:?} {:?}", float8.scaling);
        tally.close(&name, &case, &[cuda], 1, bound);
        tally.repeats(&format!("{name} again"), &case, cuda, 1);
        if precision == Precision::FP8 {
            let program = step.float8_out_of_range()?;
            let data = inputs(&program)?;
            tally.close(&format!("range of {name}"), &Case { program, inputs: data }, &[cuda], 1, 1e-3);
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
