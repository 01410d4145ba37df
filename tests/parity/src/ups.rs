//! UPS, in both arms.

use crate::Precision;
use crate::export::{self, Batches};
use crate::ours::Entry;
use pawl_contract::settings::Settings;
use pawl_workloads::Job;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;

/// What both arms run.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// Sizes: a preset that both know.
    #[arg(long, default_value = "full", value_parser = ["smoke", "medium", "full"])]
    pub preset: String,
    /// Items of a micro-step.
    #[arg(long, default_value_t = 30)]
    pub items: usize,
    /// Latent pairs of an item.
    #[arg(long, default_value_t = 100)]
    pub pairs: usize,
    /// Micro-steps of a step.
    #[arg(long, default_value_t = 2)]
    pub accumulation: usize,
    /// Steps of a round.
    #[arg(long, default_value_t = 60)]
    pub steps: usize,
    /// Steps that are not timed.
    #[arg(long, default_value_t = 20)]
    pub warmup: usize,
    /// Precision of products and attention.
    #[arg(long, value_enum, default_value = "bf16")]
    pub precision: Precision,
    /// Whether activations are recomputed by sub-layer.
    #[arg(long)]
    pub recompute: bool,
    /// `cpu`, or `cuda`.
    #[arg(long, default_value = "cuda", value_parser = ["cpu", "cuda"])]
    pub device: String,
}

impl Shape {
    /// The settings of our arm.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        Ok(serde_json::from_value(json!({
            "batchPerGpu": self.items,
            "accumulationSteps": self.accumulation,
            "compile": "Graph",
            "attention": "Flash",
            "optimizerKernel": "Fused",
            "activationCheckpointing": if self.recompute { "Selective" } else { "None" },
            "precision": self.precision,
        }))?)
    }

    /// The configuration of our arm.
    pub fn config(&self) -> Map<String, Value> {
        let config = json!({
            "preset": self.preset,
            "tasks": ["advection1d", "darcy2d"],
            "pairs": self.pairs,
            "operator": {"dropPath": 0.0},
            "loss": {"auxiliary": "None"},
        });
        config.as_object().cloned().unwrap_or_default()
    }

    /// What our arm begins with, from the export in `folder`.
    pub fn entry(&self, job: &dyn Job, folder: &Path) -> anyhow::Result<Entry> {
        let rate = job.optimization().learning_rate;
        Ok(Entry {
            weights: Some(export::weights(&folder.join("init.safetensors"))?),
            data: Arc::new(Batches::open(folder, &job.programs().train[0], self)?),
            rate: Box::new(move |_| rate),
        })
    }

    /// Arguments of the peer for the same.
    pub fn of_peer(&self) -> Vec<String> {
        let Self { preset, items, pairs, accumulation, steps, warmup, precision, recompute, device } = self;
        let precision = match precision {
            Precision::Fp32 => "--amp none --no-tf32",
            Precision::Bf16 => "--amp bf16 --tf32",
        };
        let checkpoint = if *recompute { "--ckpt" } else { "--no-ckpt" };
        let line = format!(
            "--mode optimised --recipe 2gpu --inverse off --no-eval --drop-path 0 --preset {preset} --items {items} --pairs {pairs} --accum \
             {accumulation} --steps {steps} --warmup {warmup} {precision} {checkpoint} --device {device}"
        );
        line.split_whitespace().map(str::to_owned).collect()
    }
}
