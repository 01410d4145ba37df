//! The language model, in both arms.

use crate::Precision;
use crate::export;
use crate::ours::Entry;
use anyhow::Context;
use pawl_contract::settings::Settings;
use pawl_workloads::Job;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::f64::consts::PI;
use std::path::Path;

/// The peer with an export, which it has not itself.
pub const EXPORTING: &str = include_str!("slm_peer.py");

/// Default warm-up steps of the peer's learning rate.
const RISE: f64 = 20.0;
/// The peer runs at least as many steps after those that it does not time.
const TIMED: usize = 50;

/// What both arms run.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
pub struct SlmExperiment {
    /// The model: 125m and tiny are fully trained, the others with adapters.
    #[arg(long, default_value = "125m", value_parser = ["tiny", "125m", "1b", "3b", "8b"])]
    pub size: String,
    /// Tokens of a window. Default: the size's.
    #[arg(long)]
    sequence: Option<usize>,
    /// Windows of a micro-step.
    #[arg(long, default_value_t = 32)]
    pub windows: usize,
    /// Micro-steps of a step.
    #[arg(long, default_value_t = 1)]
    pub accumulation: usize,
    /// Steps of a round.
    #[arg(long, default_value_t = 70)]
    pub steps: usize,
    /// Steps that are not timed; at least 50 of the others are.
    #[arg(long, default_value_t = 20)]
    pub warmup: usize,
    /// Precision of products and attention.
    #[arg(long, value_enum, default_value = "bf16")]
    pub precision: Precision,
    /// Products over 8-bit floats with a scale for each row, in both arms: the peer is `slm_best.py`.
    #[arg(long, requires = "apart", conflicts_with_all = ["precision", "recompute", "int8"])]
    pub fp8: bool,
    /// Recompute blocks in the backward pass.
    #[arg(long)]
    pub recompute: bool,
    /// Quantize frozen matrices to 8-bit integers.
    #[arg(long)]
    pub int8: bool,
    /// Dropout probability of the adapters' inputs. The arms draw different masks: losses are comparable only with 0.
    #[arg(long, default_value_t = 0.1)]
    pub dropout: f64,
    /// Each arm draws its own weights and windows: nothing is exported and no losses are compared. For models too large
    /// to copy.
    #[arg(long)]
    pub apart: bool,
    /// `cpu`, or `cuda`.
    #[arg(long, default_value = "cuda", value_parser = ["cpu", "cuda"])]
    pub device: String,
}

impl SlmExperiment {
    /// Tokens of a window.
    pub fn sequence(&self) -> usize {
        self.sequence.unwrap_or(match self.size.as_str() {
            "tiny" => 64,
            "3b" => 512,
            "8b" => 256,
            _ => 1024,
        })
    }

    /// The settings of our arm.
    ///
    /// # Errors
    /// Never for values that the command line accepts.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        Ok(serde_json::from_value(json!({
            "batchPerGpu": self.windows,
            "accumulationSteps": self.accumulation,
            "compile": "Graph",
            "attention": "Flash",
            "optimizerKernel": "Fused",
            "ropeCache": "Cached",
            "weightQuantization": if self.int8 { "Int8" } else { "None" },
            "activationCheckpointing": if self.recompute { "Full" } else { "None" },
            "precision": if self.fp8 { json!("fp8") } else { json!(self.precision) },
        }))?)
    }

    /// The configuration of our arm, on the export in `folder`.
    pub fn config(&self, folder: &Path) -> Map<String, Value> {
        let mut config = json!({"size": self.size, "sequence": self.sequence(), "lora": {"dropout": self.dropout}});
        if !self.apart {
            config["weights"] = json!(folder);
            config["data"] = json!({"source": "Tokens", "directory": folder});
        }
        config.as_object().cloned().unwrap_or_default()
    }

    /// First weights, data and learning rates of our arm, from the export in `folder`.
    ///
    /// # Errors
    /// When the adapters of the export or the data cannot be read.
    pub fn entry(&self, job: &dyn Job, folder: &Path) -> anyhow::Result<Entry> {
        let adapters = folder.join("adapters.safetensors");
        let full = if matches!(self.size.as_str(), "tiny" | "125m") { 3e-4 } else { 2e-4 };
        let total = self.steps as f64;
        // The peer's schedule.
        let rate = move |step: usize| {
            let step = step as f64;
            full * ((step + 1.0) / RISE).min(1.0) * 0.5 * (1.0 + (PI * (step / total).min(1.0)).cos())
        };
        Ok(Entry {
            weights: (!self.apart && adapters.exists()).then(|| export::weights(&adapters)).transpose()?,
            data: job.open(folder, &|_, _, _| {}).context("the data")?,
            rate: Box::new(rate),
        })
    }

    /// Command-line arguments of the peer for the same experiment.
    ///
    /// # Errors
    /// When `--steps` leaves too few steps to time.
    pub fn peer_arguments(&self) -> anyhow::Result<Vec<String>> {
        let Self { size, windows, accumulation, steps, warmup, precision, recompute, int8, dropout, device, .. } = self;
        anyhow::ensure!(*steps >= warmup + TIMED, "--steps must be at least {TIMED} more than --warmup");
        if self.fp8 {
            let line = format!(
                "--fp8 rowwise --size {size} --seq {} --batch {windows} --accum {accumulation} --train-steps {steps} --warmup {warmup} \
                 --lora-dropout {dropout} --eval 0 --device {device}",
                self.sequence()
            );
            return Ok(line.split_whitespace().map(str::to_owned).collect());
        }
        let (precision, tf32) = match precision {
            Precision::Fp32 => ("fp32", 0),
            Precision::Bf16 => ("bf16", 1),
        };
        let (checkpoint, int8) = (u8::from(*recompute), u8::from(*int8));
        let line = format!(
            "--mode optimised --size {size} --seq {} --batch {windows} --accum {accumulation} --train-steps {steps} --warmup {warmup} --precision \
             {precision} --tf32 {tf32} --checkpoint {checkpoint} --int8 {int8} --lora-dropout {dropout} --device {device}",
            self.sequence()
        );
        Ok(line.split_whitespace().map(str::to_owned).collect())
    }
}
