//! The arms, and their rounds.

use std::{process::Command, time::Instant};

use anyhow::{Context, bail};
use pawl_contract::settings::Settings;
use pawl_cpu::{GraphCpu, GraphExecutable};
use pawl_eager::Eager;
use pawl_graph::{
    array::{Array, Data, View},
    executor::{ExecOptions, Executable, Executor},
    graph::{DType, Program},
    random,
    recipe::{AttentionKernel, Recipe},
};
use pawl_workloads::{Request, Workload, ups::Ups};
use serde_json::{Map, Value, json};

use crate::{
    UpsSmall,
    report::{self, Arm},
};

/// One training step (forward, backward, update, average) of UPS with auxiliary losses, shaped by the arguments.
fn step(args: &UpsSmall) -> anyhow::Result<Program> {
    let mut config: Map<String, Value> = Map::new();
    config.insert("preset".into(), json!(args.preset));
    if let Some(pairs) = args.pairs {
        config.insert("pairs".into(), json!(pairs));
    }
    let settings: Settings = serde_json::from_value(json!({"batchPerGpu": args.items}))?;
    let job = Ups.prepare(&Request { config, settings, seed: 42, rank: 0, world: 1 })?;
    let optimization = job.optimization();
    let recipe = Recipe {
        attention: AttentionKernel::Flash,
        groups: optimization.groups.clone(),
        average: optimization.average.or(Some(0.999)),
        ..Recipe::new(optimization.optimizer.clone())
    };
    Ok(recipe.step(&job.programs().train[0])?)
}

/// Data like a batch's: floats uniform in [-1, 1), indices in range, scalars as in training.
fn inputs(program: &Program) -> anyhow::Result<Vec<Array>> {
    let draw = |decl: &pawl_graph::graph::InputDecl| {
        let stream = random::stream(1, &decl.name);
        let values = (0..decl.meta.shape.elements() as u64).map(|i| match (decl.name.as_str(), decl.meta.dtype) {
            ("learning_rate", _) => 1.4e-3,
            ("inverse_weight", _) => 0.01,
            (_, DType::U32) => (random::bits(stream, i) % 64) as f64,
            _ => 2.0 * random::uniform_f64(stream, i) - 1.0,
        });
        Ok(Array::new(&decl.meta.shape, Data::from_f64(decl.meta.dtype, values))?)
    };
    program.inputs.iter().map(draw).collect()
}

fn timed(exe: &mut dyn Executable, views: &[View<'_>], steps: usize) -> anyhow::Result<f64> {
    let start = Instant::now();
    for _ in 0..steps {
        exe.run(0, views)?;
        // The loss is read on every step, as the peer's baseline does.
        exe.output(0, 0)?;
    }
    Ok(start.elapsed().as_secs_f64() / steps as f64)
}

/// Seconds per step of the peer, baseline mode, shaped alike.
fn peer(args: &UpsSmall) -> anyhow::Result<f64> {
    let (Some(python), Some(script)) = (&args.torch, &args.peer) else { bail!("no peer was given") };
    let threads = args.threads.to_string();
    let steps = (args.steps + 2).to_string();
    let mut command = Command::new(python);
    command
        .arg(script)
        .args(["--mode", "baseline", "--preset", if args.preset == "small" { "smoke" } else { &args.preset }])
        .args(["--items", &args.items.to_string(), "--accum", "1", "--steps", &steps, "--warmup", "2", "--no-eval"])
        .envs([("OMP_NUM_THREADS", &threads), ("MKL_NUM_THREADS", &threads)]);
    if let Some(pairs) = args.pairs {
        command.args(["--pairs", &pairs.to_string()]);
    }
    let output = command.output().with_context(|| format!("cannot start {}", python.display()))?;
    if !output.status.success() {
        bail!("the peer failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().context("the peer printed nothing")?;
    let result: Value = serde_json::from_str(line).context("the peer's last line is not JSON")?;
    Ok(result["median_step_ms"].as_f64().context("the peer's report has no median_step_ms")? / 1e3)
}

/// Runs all arms and prints what they took.
pub fn ups(args: &UpsSmall) -> anyhow::Result<()> {
    // Candle takes its threads from rayon's global pool.
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", args.threads.to_string()) };
    if args.preset == "small" && args.torch.is_some() {
        bail!("the peer knows the presets smoke and medium: choose one of them to compare");
    }
    let program = step(args)?;
    let data = inputs(&program)?;
    let views: Vec<View<'_>> = data.iter().map(Array::view).collect();
    let options = ExecOptions { seed: 42, ..ExecOptions::default() };
    let executor = GraphCpu { threads: args.threads, timed: args.profile, ..GraphCpu::default() };
    let start = Instant::now();
    let mut graph: GraphExecutable = executor.build(std::slice::from_ref(&program), &options)?;
    eprintln!(
        "{} nodes, {} kernels, compiled in {:.0} ms, {:?}",
        program.graph.len(),
        graph.lowered().map(|l| l.kernels.len()).sum::<usize>(),
        start.elapsed().as_secs_f64() * 1e3,
        graph.memory()
    );
    match args.dump.as_deref() {
        Some("kernels") => graph.lowered().for_each(|l| println!("{}", l.dump_kernels())),
        Some(_) => graph.lowered().for_each(|l| println!("{}", l.dump_memory())),
        None => {}
    }
    let mut eager = match args.no_eager {
        true => None,
        false => Some(Eager::cpu().compile(std::slice::from_ref(&program), &options)?),
    };
    let mut arms = vec![Arm::new("graph")];
    arms.extend(eager.is_some().then(|| Arm::new("eager")));
    arms.extend(args.torch.is_some().then(|| Arm::new("peer")));
    timed(&mut graph, &views, 2)?;
    if let Some(eager) = &mut eager {
        timed(eager.as_mut(), &views, 1)?;
    }
    for _ in 0..args.rounds {
        for arm in &mut arms {
            let seconds = match (arm.name, &mut eager) {
                ("graph", _) => timed(&mut graph, &views, args.steps)?,
                ("eager", Some(eager)) => timed(eager.as_mut(), &views, args.steps.div_ceil(2))?,
                _ => peer(args)?,
            };
            arm.seconds.push(seconds);
        }
    }
    report::print(args, &arms);
    if args.profile {
        report::profile(&graph.profile());
    }
    Ok(())
}
