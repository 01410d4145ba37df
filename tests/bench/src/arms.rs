//! The arms, and their rounds.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use pawl_cpu::{GraphCpu, GraphExecutable};
use pawl_eager::Eager;
use pawl_graph::{
    array::{Array, View},
    executor::{ExecOptions, Executable, Executor},
};
use pawl_trainer::throughput::processor_time;
use serde_json::Value;

use crate::{
    Rounds,
    cases::Case,
    report::{self, Arm},
};

/// Runs a script (the first argument) whose clock is the CPU time of the process.
const ON_CPU_TIME: &str = "import runpy, sys, time; time.perf_counter = time.process_time; \
                           sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";

/// Seconds per step.
fn timed(exe: &mut dyn Executable, views: &[View<'_>], steps: usize, cpu_time: bool) -> anyhow::Result<f64> {
    let (start, processor) = (Instant::now(), processor_time());
    for _ in 0..steps {
        exe.run(0, views)?;
        // The loss is read on every step, as the peer's baseline does.
        exe.output(0, 0)?;
    }
    let took: Duration = if cpu_time { processor_time().saturating_sub(processor) } else { start.elapsed() };
    Ok(took.as_secs_f64() / steps as f64)
}

/// Seconds per step of the peer, shaped alike.
fn peer(case: &Case, rounds: &Rounds) -> anyhow::Result<f64> {
    let (Some(python), Some(script)) = (&rounds.torch, &rounds.peer) else { bail!("no peer was given") };
    let threads = rounds.threads.to_string();
    let mut command = Command::new(python);
    if rounds.cpu_time {
        command.args(["-c", ON_CPU_TIME]);
    }
    command
        .arg(script)
        .args(&case.peer)
        .args(["--steps", &(rounds.steps + 2).to_string(), "--warmup", "2"])
        .envs([("OMP_NUM_THREADS", &threads), ("MKL_NUM_THREADS", &threads)]);
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
///
/// # Errors
/// When an executor or the peer fails.
pub fn compare(case: &Case, rounds: &Rounds) -> anyhow::Result<()> {
    // Candle takes its threads from rayon's global pool.
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", rounds.threads.to_string()) };
    let programs = std::slice::from_ref(&case.program);
    let views: Vec<View<'_>> = case.inputs.iter().map(Array::view).collect();
    let options = ExecOptions { seed: 42, ..ExecOptions::default() };
    let executor = GraphCpu { threads: rounds.threads, timed: rounds.profile, ..GraphCpu::default() };
    let start = Instant::now();
    let mut graph: GraphExecutable = executor.build(programs, &options)?;
    eprintln!(
        "{} nodes, {} kernels, compiled in {:.0} ms, {:?}",
        case.program.graph.len(),
        graph.lowered().map(|l| l.kernels.len()).sum::<usize>(),
        start.elapsed().as_secs_f64() * 1e3,
        graph.memory()
    );
    match rounds.dump.as_deref() {
        Some("kernels") => graph.lowered().for_each(|l| println!("{}", l.dump_kernels())),
        Some(_) => graph.lowered().for_each(|l| println!("{}", l.dump_memory())),
        None => {}
    }
    let mut eager = match rounds.no_eager {
        true => None,
        false => Some(Eager::cpu().compile(programs, &options)?),
    };
    let mut arms = vec![Arm::new("graph")];
    arms.extend(eager.is_some().then(|| Arm::new("eager")));
    arms.extend(rounds.torch.is_some().then(|| Arm::new("peer")));
    timed(&mut graph, &views, 2, false)?;
    if let Some(eager) = &mut eager {
        timed(eager.as_mut(), &views, 1, false)?;
    }
    for _ in 0..rounds.rounds {
        for arm in &mut arms {
            let seconds = match (arm.name, &mut eager) {
                ("graph", _) => timed(&mut graph, &views, rounds.steps, rounds.cpu_time)?,
                ("eager", Some(eager)) => timed(eager.as_mut(), &views, rounds.steps.div_ceil(2), rounds.cpu_time)?,
                _ => peer(case, rounds)?,
            };
            arm.seconds.push(seconds);
        }
    }
    report::print(case, rounds, &arms);
    if rounds.profile {
        report::profile(&graph.profile());
    }
    Ok(())
}
