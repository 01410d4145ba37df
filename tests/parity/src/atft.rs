//! ATFT-GAT-FAN, in both arms.

use crate::Precision;
use crate::export::{self, Tensors};
use crate::ours::Entry;
use anyhow::Context;
use clap::ValueEnum;
use pawl_contract::settings::Settings;
use pawl_graph::array::{Array, Data as Elements};
use pawl_graph::graph::Program;
use pawl_workloads::atft::chunks::{self, Chunk};
use pawl_workloads::atft::config::Config;
use pawl_workloads::atft::dataset::{Dataset, Tables};
use pawl_workloads::atft::model::FEATURES;
use pawl_workloads::{At, Batch, Data, Job, RatePosition, RateSchedule, Warmup, WorkloadError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The peer with what a comparison needs beside it.
pub const PEER: &str = include_str!("atft_peer.py");
/// The peer runs at least as many steps after those that it does not time.
const TIMED: usize = 50;

/// How the peer trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Mode {
    /// With all its optimisations, as it is.
    Optimised,
    /// Data on the device, sums over the segments of sorted edges, and the whole step in one CUDA graph.
    Captured,
}

/// What both arms run.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
pub struct AtftExperiment {
    /// How the peer trains.
    #[arg(long, value_enum, default_value = "captured")]
    pub mode: Mode,
    /// Preset; `medium` is the peer's `seed`.
    #[arg(long, default_value = "medium", value_parser = ["smoke", "medium"])]
    pub preset: String,
    /// Samples of a step: a multiple of the stocks of a date, which are 2,048 (128 in the preset `smoke`).
    #[arg(long, default_value_t = 4096)]
    pub samples: usize,
    /// Days of the simulated panel.
    #[arg(long, default_value_t = 240)]
    pub days: usize,
    /// Steps of a round.
    #[arg(long, default_value_t = 100)]
    pub steps: usize,
    /// Steps that are not timed; at least 50 of the others are.
    #[arg(long, default_value_t = 20)]
    pub warmup: usize,
    /// Precision of products.
    #[arg(long, value_enum, default_value = "bf16")]
    pub precision: Precision,
    /// Train without dropout. The arms draw different masks: losses are comparable only without.
    #[arg(long)]
    pub without_dropout: bool,
    /// `cpu`, or `cuda`.
    #[arg(long, default_value = "cuda", value_parser = ["cpu", "cuda"])]
    pub device: String,
}

impl AtftExperiment {
    /// Stocks of a date.
    fn stocks(&self) -> usize {
        if self.preset == "smoke" { 128 } else { 2048 }
    }

    /// The settings of our arm.
    ///
    /// # Errors
    /// Never for values that the command line accepts.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        Ok(serde_json::from_value(json!({
            "batchPerGpu": self.samples, "evalBatch": self.stocks(), "precision": self.precision, "compile": "Graph",
            "optimizerKernel": "Fused",
        }))?)
    }

    /// The configuration of our arm.
    pub fn config(&self) -> Map<String, Value> {
        let mut config = json!({
            "preset": self.preset,
            "data": {"stocks": self.stocks(), "chunk": self.stocks(), "days": self.days, "placement": "Device"},
        });
        if self.without_dropout {
            config["model"] = json!({"dropout": 0.0, "headDropout": 0.0, "gatDropout": 0.0, "edgeDropout": 0.0});
        }
        config.as_object().cloned().unwrap_or_default()
    }

    /// First weights, data and learning rates of our arm, from the export in `folder`.
    ///
    /// # Errors
    /// When the export cannot be read.
    pub fn entry(&self, job: &dyn Job, folder: &Path) -> anyhow::Result<Entry> {
        let rate = job.optimization().learning_rate;
        let (step_items, total) = (self.samples as u64, self.steps.max(self.warmup + TIMED) as u64);
        let total_items = step_items * total;
        // The peer rounds the number of steps down.
        let warmup = match job.optimization().schedule.warmup {
            Warmup::Fraction(fraction) => Warmup::Updates(((fraction * total as f64) as u64).max(1)),
            updates @ Warmup::Updates(_) => updates,
        };
        let schedule = RateSchedule { warmup, ..job.optimization().schedule };
        let factor = move |step: usize| {
            let step = step as u64;
            schedule.factor(RatePosition { step, items: step * step_items, step_items, total_items })
        };
        Ok(Entry {
            weights: Some(export::weights(&folder.join("init.safetensors"))?),
            data: Arc::new(AtftBatches::open(folder, job, self)?),
            rate: Box::new(move |step| rate * factor(step)),
        })
    }

    /// Command-line arguments of the peer for the same experiment.
    pub fn peer_arguments(&self) -> Vec<String> {
        let Self { samples, days, steps, warmup, device, .. } = self;
        let preset = if self.preset == "medium" { "seed" } else { &self.preset };
        let precision = match self.precision {
            Precision::Fp32 => "--precision fp32 --tf32 0",
            Precision::Bf16 => "--precision bf16 --tf32 1",
        };
        let mode = match self.mode {
            Mode::Optimised => "",
            // What is fastest where nothing is left to the host.
            Mode::Captured => "--captured --compile full",
        };
        let dropout = if self.without_dropout { "--without-dropout --dropout 0 --gat-dropout 0" } else { "" };
        let line = format!(
            "{mode} {dropout} --mode optimised --preset {preset} --batch {samples} --days {days} --train-steps {steps} --warmup {warmup} \
             {precision} --device {device}"
        );
        line.split_whitespace().map(str::to_owned).collect()
    }
}

/// The peer's dates, in its order.
struct AtftBatches {
    dataset: Dataset,
    /// The days of all steps.
    plan: Vec<usize>,
    program: Program,
    stocks: usize,
    width: usize,
    samples: usize,
}

impl AtftBatches {
    fn open(folder: &Path, job: &dyn Job, experiment: &AtftExperiment) -> anyhow::Result<Self> {
        let data = Tensors::open(&folder.join("data.safetensors"))?;
        let groups = |name: &str| data.integers(name).map(|all| all.into_iter().map(|group| group as u8).collect());
        let tables = Tables {
            features: data.singles("features")?,
            returns: data.singles("returns")?,
            daily: data.singles("daily")?,
            sectors: groups("sectors")?,
            segments: groups("segments")?,
        };
        let config = Config::parse(&experiment.config(), &Map::new())?.data;
        Ok(Self {
            dataset: Dataset::new(tables, &config, &|_, _, _| {}),
            plan: Tensors::open(&folder.join("plan.safetensors"))?.integers("days")?,
            program: job.programs().train.first().context("the workload has a training program")?.clone(),
            stocks: config.stocks,
            width: config.features,
            samples: experiment.samples,
        })
    }
}

impl Data for AtftBatches {
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
        let dates = self.samples / self.stocks;
        // What is prepared ahead of the last step is not used.
        let step = (at.items as usize / self.samples).min(self.plan.len() / dates - 1);
        let chunk = |&day: &usize| Chunk { day, stocks: (0..self.stocks as u32).collect() };
        let chunks: Vec<Chunk> = self.plan[step * dates..][..dates].iter().map(chunk).collect();
        batch.fit(0, &self.program)?;
        chunks::write(&self.dataset, &self.program, batch, &chunks)?;
        for (array, decl) in batch.inputs.iter_mut().zip(&self.program.inputs) {
            if let ("counter", Elements::U32(out)) = (decl.name.as_str(), array.data_mut()) {
                out.fill(step as u32);
            }
        }
        Ok(())
    }

    fn resident(&self) -> Result<Vec<(String, Array)>, WorkloadError> {
        let features = self.dataset.features()?;
        let table = Array::new([features.len() / self.width, self.width], Elements::F32(features))?;
        Ok(vec![(FEATURES.to_owned(), table)])
    }

    // Only the steps are compared.
    fn evaluations(&self) -> usize {
        0
    }

    fn evaluation(&self, _index: usize) -> Result<Batch, WorkloadError> {
        Ok(Batch::default())
    }

    fn sums(&self) -> usize {
        0
    }

    fn add(&self, _index: usize, _outputs: &[Array], _sums: &mut [f64]) {}

    fn metrics(&self, _sums: &[f64]) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }
}
