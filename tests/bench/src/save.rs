//! The cost of a checkpoint that is written beside training: what the steps wait for, and what they share the CPUs
//! with.

use std::time::{Duration, Instant};

use anyhow::ensure;
use pawl_contract::settings::Settings;
use pawl_cpu::GraphCpu;
use pawl_graph::{
    array::View,
    collective::SingleRank,
    executor::{ExecOptions, Executable, read_chosen},
    graph::Role,
};
use pawl_trainer::checkpoint::{Author, Checkpoint, Position, Writer};
use pawl_trainer::throughput::processor_time;
use serde_json::json;

use crate::UpsSave;
use crate::cases::{inputs, ups_step};

/// Time between two checkpoints to which the cost is compared.
const MINUTE: Duration = Duration::from_secs(60);
/// Maximum share of a minute's steps that a save may cost.
const BOUND: f64 = 0.02;

/// One save.
struct Cost {
    /// Copying the states: the steps wait.
    copy: Duration,
    /// Hashing and writing, from start to end: the steps continue.
    write: Duration,
    /// CPU time of hashing and writing, which the steps lose when they use all CPUs.
    processor: Duration,
}

impl Cost {
    fn share(&self, threads: usize) -> f64 {
        (self.copy.as_secs_f64() + self.processor.as_secs_f64() / threads as f64) / MINUTE.as_secs_f64()
    }
}

/// Measures saves of a model after its first step, and prints their cost.
///
/// # Errors
/// When the median of the saves costs more than 2 % of a minute's steps; when storage fails.
pub fn ups(args: &UpsSave) -> anyhow::Result<()> {
    let settings: Settings = serde_json::from_value(json!({"batchPerGpu": 2}))?;
    let program = ups_step(json!({"preset": args.preset}), settings)?;
    let data = inputs(&program)?;
    let views: Vec<View<'_>> = data.iter().map(|array| array.view()).collect();
    let options = ExecOptions { seed: 42, ..ExecOptions::default() };
    let executor = GraphCpu { threads: args.threads, ..GraphCpu::default() };
    let mut graph = executor.build(std::slice::from_ref(&program), &options)?;
    let start = Instant::now();
    graph.run(0, &views)?;
    let step = start.elapsed();
    let temporary = tempfile::tempdir()?;
    let storage = args.storage.as_deref().unwrap_or(temporary.path());
    let writer = Writer::open(&storage.to_string_lossy(), 1, Author::default())?;
    let mut costs =
        (0..args.rounds as u64).map(|round| save(&mut graph, &writer, round)).collect::<Result<Vec<_>, _>>()?;
    let bytes: usize = states(&mut graph)?.iter().map(|(_, array)| array.view().len() * 4).sum();
    costs.sort_by(|a, b| a.share(args.threads).total_cmp(&b.share(args.threads)));
    let median = &costs[costs.len() / 2];
    let share = median.share(args.threads);
    println!(
        "{}: a step takes {:.2} s, a checkpoint has {} MiB; copy {:.3} s, write {:.3} s with {:.3} s of CPU time\n\
         a save costs {:.2} % of a minute's steps on {} threads",
        args.preset,
        step.as_secs_f64(),
        bytes >> 20,
        median.copy.as_secs_f64(),
        median.write.as_secs_f64(),
        median.processor.as_secs_f64(),
        share * 100.0,
        args.threads,
    );
    ensure!(share <= BOUND, "that is more than {} %", BOUND * 100.0);
    Ok(())
}

fn states(graph: &mut dyn Executable) -> anyhow::Result<pawl_trainer::checkpoint::Tensors> {
    Ok(read_chosen(graph, &SingleRank, |decl| !matches!(decl.role, Role::Gradient | Role::Frozen))?)
}

/// Copies and writes once, without steps beside it: then the CPU time of the process is that of the writer.
fn save(graph: &mut dyn Executable, writer: &Writer, step: u64) -> anyhow::Result<Cost> {
    let start = Instant::now();
    let tensors = states(graph)?;
    let copy = start.elapsed();
    let position = Position { step, items: step, ..Position::start("ups", 42) };
    let (start, processor) = (Instant::now(), processor_time());
    writer.save(&Checkpoint { position, tensors })?;
    Ok(Cost { copy, write: start.elapsed(), processor: processor_time().saturating_sub(processor) })
}
