//! UPS, in both arms.

use crate::Precision;
use crate::export::{self, Batches, Extent};
use crate::ours::Entry;
use anyhow::Context;
use clap::ValueEnum;
use pawl_contract::settings::Settings;
use pawl_workloads::{Data, Job};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;

/// The tuned recipes of the UPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Recipe {
    /// That of 2 GPUs: 30 items, core losses.
    #[value(name = "2gpu")]
    Core,
    /// That of 4 GPUs: 24 items, and losses through the decoder in every fourth micro-step. Each arm draws the points
    /// of these losses itself, so each has its own weights and data too: no losses are compared.
    #[value(name = "4gpu")]
    Auxiliary,
}

/// What both arms run.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
pub struct UpsExperiment {
    /// Losses and batch.
    #[arg(long, value_enum, default_value = "2gpu")]
    pub recipe: Recipe,
    /// Preset, known to both arms.
    #[arg(long, default_value = "full", value_parser = ["smoke", "medium", "full"])]
    pub preset: String,
    /// Items of a micro-step. Default: the recipe's.
    #[arg(long)]
    items: Option<usize>,
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
    /// Products over 8-bit floats with a scale for each row, in our arm only: the peer stays in bfloat16.
    #[arg(long, conflicts_with = "precision")]
    pub fp8: bool,
    /// Whether activations are recomputed by sub-layer.
    #[arg(long)]
    pub recompute: bool,
    /// `cpu`, or `cuda`.
    #[arg(long, default_value = "cuda", value_parser = ["cpu", "cuda"])]
    pub device: String,
}

impl UpsExperiment {
    /// Items of a micro-step.
    pub fn items(&self) -> usize {
        self.items.unwrap_or(match self.recipe {
            Recipe::Core => 30,
            Recipe::Auxiliary => 24,
        })
    }

    /// Whether each arm draws its own weights and data: nothing is exported.
    pub fn apart(&self) -> bool {
        self.recipe == Recipe::Auxiliary
    }

    /// The settings of our arm; whether it validates after its last step.
    ///
    /// # Errors
    /// Never for values that the command line accepts.
    pub fn settings(&self, validates: bool) -> anyhow::Result<Settings> {
        let mut settings = json!({
            "batchPerGpu": self.items(),
            "accumulationSteps": self.accumulation,
            "compile": "Graph",
            "attention": "Flash",
            "optimizerKernel": "Fused",
            "activationCheckpointing": if self.recompute { "Selective" } else { "None" },
            "precision": if self.fp8 { json!("fp8") } else { json!(self.precision) },
            // Evaluation reads the averages, the peer's the weights: without memory they are the same.
            "ema": if validates { "0" } else { "0.999" },
        });
        if self.recipe == Recipe::Auxiliary {
            (settings["lossFrequency"], settings["querySamples"]) = (json!(4), json!(1024));
        }
        Ok(serde_json::from_value(settings)?)
    }

    /// The configuration of our arm.
    pub fn config(&self) -> Map<String, Value> {
        let auxiliary = match self.recipe {
            Recipe::Core => "None",
            Recipe::Auxiliary => "Live",
        };
        let config = json!({
            "preset": self.preset,
            "tasks": ["advection1d", "darcy2d"],
            "pairs": self.pairs,
            "operator": {"dropPath": 0.0},
            "loss": {"auxiliary": auxiliary, "inverseStart": 0.0, "inverseRamp": 0.0},
        });
        config.as_object().cloned().unwrap_or_default()
    }

    /// First weights, data and learning rates of our arm, from the export in `folder`.
    ///
    /// # Errors
    /// When the export or the data cannot be read.
    pub fn entry(&self, job: &dyn Job, folder: &Path) -> anyhow::Result<Entry> {
        let rate = job.optimization().learning_rate;
        let (weights, data): (_, Arc<dyn Data>) = if self.apart() {
            (None, job.open(folder, &|_, _, _| {}).context("the data")?)
        } else {
            let weights = export::weights(&folder.join("init.safetensors"))?;
            let extent = Extent { items: self.items(), pairs: self.pairs, accumulation: self.accumulation };
            (Some(weights), Arc::new(Batches::open(folder, job.programs(), extent)?))
        };
        Ok(Entry { weights, data, rate: Box::new(move |_| rate) })
    }

    /// Command-line arguments of the peer for the same experiment.
    pub fn peer_arguments(&self, validates: bool) -> Vec<String> {
        let Self { preset, pairs, accumulation, steps, warmup, precision, recompute, device, .. } = self;
        let items = self.items();
        let recipe = match self.recipe {
            Recipe::Core => "2gpu --inverse off",
            Recipe::Auxiliary => "4gpu",
        };
        let precision = match precision {
            Precision::Fp32 => "--amp none --no-tf32",
            Precision::Bf16 => "--amp bf16 --tf32",
        };
        let checkpoint = if *recompute { "--ckpt" } else { "--no-ckpt" };
        let evaluation = if validates { "--eval" } else { "--no-eval" };
        let line = format!(
            "--mode optimised --recipe {recipe} {evaluation} --drop-path 0 --preset {preset} --items {items} --pairs {pairs} --accum \
             {accumulation} --steps {steps} --warmup {warmup} {precision} {checkpoint} --device {device}"
        );
        line.split_whitespace().map(str::to_owned).collect()
    }
}
