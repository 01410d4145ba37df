//! Our arm: the trainer's own session, on the peer's weights and batches.

use crate::export::{Batches, weights};
use crate::{Precision, Shape};
use anyhow::Context;
use pawl_contract::settings::Settings;
use pawl_engine::collective::Solo;
use pawl_trainer::session::{Lineup, Session};
use pawl_trainer::target::{Place, Target};
use pawl_trainer::{executors, recipe};
use pawl_workloads::{Loader, Request, Schedule, workload};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What a round of an arm gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// Items per second over the timed steps.
    pub items_per_second: f64,
    /// Mean loss of each step.
    pub losses: Vec<f64>,
    /// Bytes of device memory at the peak, as the driver (ours) or the allocator (the peer) counts them.
    pub peak_bytes: Option<f64>,
    /// Bytes that were predicted before the first kernel.
    pub predicted_bytes: Option<f64>,
    /// Seconds from the start of the process to the end of the first step.
    pub first_step_seconds: Option<f64>,
}

fn settings(shape: &Shape) -> anyhow::Result<Settings> {
    let gpu = shape.device == "cuda";
    let mut settings = json!({
        "batchPerGpu": shape.items,
        "accumulationSteps": shape.accumulation,
        "compile": "Graph",
        "attention": "Flash",
        "optimizerKernel": "Fused",
        "activationCheckpointing": if shape.recompute { "Selective" } else { "None" },
        "precision": shape.precision,
    });
    if gpu {
        settings["loaderPinned"] = json!(true);
        settings["loaderAsyncCopy"] = json!(true);
    }
    Ok(serde_json::from_value(settings)?)
}

fn config(shape: &Shape) -> Map<String, Value> {
    let config = json!({
        "preset": shape.preset,
        "tasks": ["advection1d", "darcy2d"],
        "pairs": shape.pairs,
        "operator": {"dropPath": 0.0},
        "loss": {"auxiliary": "None"},
    });
    config.as_object().cloned().unwrap_or_default()
}

/// Trains on the export in `folder`.
pub fn round(folder: &Path, shape: &Shape) -> anyhow::Result<Round> {
    let started = Instant::now();
    let settings = settings(shape)?;
    let place = if shape.device == "cuda" { Place::Cuda(0) } else { Place::Cpu };
    let ups = workload("ups")?;
    recipe::check(&settings, place, "ups", ups.settings())?;
    let request = Request { config: config(shape), settings: settings.clone(), seed: 42, rank: 0, world: 1 };
    let job = ups.prepare(&request)?;
    let recipe = recipe::recipe(&settings, job.as_ref(), 1)?;
    let lineup = Lineup::new(&recipe, job.programs())?;
    let cache = pawl_trainer::launch::kernel_cache(folder);
    let target = Target::open(place, &cache)?;
    let executor = executors::executor(&target, &settings);
    let mut session = Session::new(lineup, executor.as_ref(), 42, Arc::new(Solo), target.memory())?;
    session.restore(weights(folder)?)?;
    let batches = Arc::new(Batches::open(folder, &job.programs().train[0], shape)?);
    let step_items = (shape.items * shape.accumulation) as u64;
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8) as u32;
    let mut loader = Loader::new(batches, Schedule::new(0, step_items, shape.accumulation as u32), workers, 2);
    let mut next = || loader.next_batch().context("the loader ended").and_then(|batch| Ok(batch?));

    let rate = job.optimization().learning_rate;
    let mut losses = Vec::with_capacity(shape.steps);
    let (mut timed, mut first_step) = (None, None);
    let mut batch = next()?;
    for step in 0..shape.steps {
        if step == shape.warmup {
            timed = Some(Instant::now());
        }
        for micro in 0..shape.accumulation {
            session.start(&batch, rate, micro + 1 == shape.accumulation)?;
            batch = next()?;
            session.prefetch(&batch)?;
            if let Some(result) = session.finish()? {
                losses.push(result.loss_sum / shape.accumulation as f64);
            }
        }
        first_step.get_or_insert_with(|| started.elapsed().as_secs_f64());
    }
    let seconds = timed.context("steps: must be more than warmup")?.elapsed().as_secs_f64();
    let memory = session.memory();
    Ok(Round {
        items_per_second: ((shape.steps - shape.warmup) * shape.items * shape.accumulation) as f64 / seconds,
        losses,
        peak_bytes: Some(memory.peak as f64),
        predicted_bytes: Some(memory.planned as f64),
        first_step_seconds: first_step,
    })
}

impl Precision {
    /// What the peer calls it: `--amp` and `--tf32`.
    pub fn of_peer(self) -> [&'static str; 3] {
        match self {
            Self::Fp32 => ["--amp", "none", "--no-tf32"],
            Self::Bf16 => ["--amp", "bf16", "--tf32"],
        }
    }
}
