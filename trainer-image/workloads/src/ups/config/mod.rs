//! The configuration of the UPS workload: a preset, and overrides of it.

mod rules;

use crate::layered;
use crate::workload::WorkloadError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The eight speeds of PDEBench's advection files.
pub const PDEBENCH_BETAS: [f64; 8] = [0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 4.0, 7.0];

/// Preset of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// Seconds on a CPU: for tests.
    Smoke,
    /// Minutes on a CPU: for the quick start.
    Small,
    /// The full model on little data: one GPU.
    Medium,
    /// The full model on all data.
    Full,
}

/// A partial differential equation to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// u_t + beta u_x = 0 on the periodic unit interval.
    Advection1d,
    /// -div(a grad u) = 1 on the unit square, u = 0 on its boundary.
    Darcy2d,
}

impl Task {
    /// The name in configurations, files and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Advection1d => "advection1d",
            Self::Darcy2d => "darcy2d",
        }
    }
}

/// Source of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Source {
    /// Solved here, from the seed.
    Generated,
    /// Read from PDEBench's HDF5 files.
    PdeBench,
}

/// Storage format of latents on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LatentType {
    /// Half precision, widened when read.
    F16,
    /// Single precision.
    F32,
}

/// Advection speeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Betas {
    /// `all`: PDEBench's eight.
    Named(AllBetas),
    /// These; trajectory i has speed i mod their number.
    List(Vec<f64>),
}

/// The word `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AllBetas {
    /// PDEBench's eight speeds.
    All,
}

impl Betas {
    /// The speeds.
    pub fn values(&self) -> &[f64] {
        match self {
            Self::Named(AllBetas::All) => &PDEBENCH_BETAS,
            Self::List(list) => list,
        }
    }
}

/// The data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataConfig {
    /// Source of the fields.
    pub source: Source,
    /// The directory of PDEBench's files, for `source: PdeBench`.
    pub directory: Option<String>,
    /// Which Darcy file to read, for `source: PdeBench`: the right-hand side f.
    pub darcy_beta: f64,
    /// Seed of the fields and of the frozen encoders; the seed of a launch changes neither.
    pub seed: u64,
    /// Storage format of latents on disk.
    pub latents: LatentType,
}

/// Sizes of the advection task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdvectionConfig {
    /// Grid cells.
    pub cells: usize,
    /// Frames of a trajectory, 0.02 apart.
    pub frames: usize,
    /// Training trajectories; an eighth as many (at least 2) are added for validation and again for the test.
    pub trajectories: usize,
    /// Speeds: a list, or `all`.
    pub betas: Betas,
}

/// Sizes of the Darcy task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DarcyConfig {
    /// Grid cells per side.
    pub grid: usize,
    /// Training samples; an eighth as many (at least 2) are added for validation and again for the test.
    pub samples: usize,
}

/// Sizes of the operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperatorConfig {
    /// Latent tokens of a state, a power of two.
    pub tokens: usize,
    /// Width of a latent token.
    pub width: usize,
    /// Hidden width.
    pub hidden: usize,
    /// Blocks.
    pub depth: usize,
    /// Attention heads.
    pub heads: usize,
    /// Hidden width of a block's MLP as a multiple of `hidden`.
    pub mlp_ratio: usize,
    /// Stochastic depth of the last block; it rises linearly from 0 in the first.
    pub drop_path: f64,
}

impl OperatorConfig {
    /// Rows and columns into which the square of Darcy flow is tiled: a power of two each, at least as many rows as
    /// columns.
    pub fn darcy_tiles(&self) -> (usize, usize) {
        let rows = 1 << self.tokens.ilog2().div_ceil(2);
        (rows, self.tokens / rows)
    }
}

/// Sizes of the decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DecoderConfig {
    /// Hidden width, also of its MLPs.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Layers.
    pub layers: usize,
}

/// Whether the losses through the decoder are computed, and what they train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Auxiliary {
    /// Not computed.
    None,
    /// The decoder is trained with the operator; physics terms act on the prediction.
    Live,
    /// Computed from the inputs without training anything: the published behaviour, which costs time and has no effect.
    Frozen,
}

/// The losses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LossConfig {
    /// Weight of the spectral loss.
    pub spectral: f64,
    /// The losses through the decoder.
    pub auxiliary: Auxiliary,
    /// Final weight of each inverse loss.
    pub inverse: f64,
    /// Epochs before the inverse losses begin.
    pub inverse_start: f64,
    /// Epochs over which their weight rises to its final value.
    pub inverse_ramp: f64,
    /// Pairs of every item that enter the inverse losses.
    pub inverse_pairs: usize,
    /// Weight of the boundary loss.
    pub boundary: f64,
    /// Weight of the token norm regulariser.
    pub norm: f64,
    /// Weight of the token diversity regulariser.
    pub diversity: f64,
}

/// The evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Pairs per task whose prediction is decoded on the whole grid for the physical error (`auxiliary: Live`); 0 for
    /// none.
    pub physical_pairs: usize,
}

/// The configuration of a UPS run, complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The preset.
    pub preset: Preset,
    /// The tasks to learn; each gets an equal part of every batch.
    pub tasks: Vec<Task>,
    /// The data.
    pub data: DataConfig,
    /// The advection task.
    pub advection: AdvectionConfig,
    /// The Darcy task.
    pub darcy: DarcyConfig,
    /// The operator.
    pub operator: OperatorConfig,
    /// The decoder.
    pub decoder: DecoderConfig,
    /// Latent pairs per item.
    pub pairs: usize,
    /// The losses.
    pub loss: LossConfig,
    /// The evaluation.
    pub evaluation: EvaluationConfig,
}

impl Preset {
    /// The complete configuration of the preset.
    pub fn config(self) -> Value {
        let (tokens, width, hidden, depth, heads) = match self {
            Self::Smoke => (32, 32, 64, 2, 4),
            Self::Small => (32, 32, 96, 4, 4),
            Self::Medium | Self::Full => (128, 128, 384, 12, 8),
        };
        let (decoder_hidden, decoder_heads, layers) = match self {
            Self::Smoke | Self::Small => (32, 2, 1),
            Self::Medium | Self::Full => (384, 4, 3),
        };
        let (cells, frames, trajectories, grid, samples, pairs) = match self {
            Self::Smoke => (256, 9, 6, 32, 12, 4),
            Self::Small => (256, 17, 64, 32, 256, 8),
            Self::Medium => (1024, 101, 64, 128, 512, 25),
            Self::Full => (1024, 101, 8000, 128, 5000, 100),
        };
        json!({
            "preset": self,
            "tasks": ["advection1d", "darcy2d"],
            "data": {"source": "Generated", "directory": null, "darcyBeta": 1.0, "seed": 42, "latents": "f16"},
            "advection": {"cells": cells, "frames": frames, "trajectories": trajectories, "betas": [1.0]},
            "darcy": {"grid": grid, "samples": samples},
            "operator": {"tokens": tokens, "width": width, "hidden": hidden, "depth": depth, "heads": heads,
                         "mlpRatio": 4, "dropPath": 0.1},
            "decoder": {"hidden": decoder_hidden, "heads": decoder_heads, "layers": layers},
            "pairs": pairs,
            "loss": {"spectral": 0.05, "auxiliary": "Live", "inverse": 0.01, "inverseStart": 5.0, "inverseRamp": 5.0,
                     "inversePairs": 4, "boundary": 0.05, "norm": 1e-4, "diversity": 1e-4},
            "evaluation": {"physicalPairs": 64},
        })
    }
}

impl Config {
    /// Reads `config` (`spec.workload.config`), overridden by `patch` (`settings.workload`), both over the preset they
    /// name.
    pub fn parse(config: &Map<String, Value>, patch: &Map<String, Value>) -> Result<Self, WorkloadError> {
        let asked = layered::asked(config, patch);
        let problem = "is not a preset: choose smoke, small, medium or full";
        let preset = layered::preset(&asked, "preset", Preset::Full, problem)?;
        let mut complete = layered::over(preset.config(), &asked);
        // The preset's number of inverse pairs is capped by the number of pairs; an explicit one is not.
        if let (None, Some(pairs)) = (asked.pointer("/loss/inversePairs"), complete["pairs"].as_u64()) {
            let preset = complete.pointer("/loss/inversePairs").and_then(Value::as_u64).unwrap_or(pairs);
            if let Some(loss) = complete["loss"].as_object_mut() {
                loss.insert("inversePairs".to_owned(), json!(preset.min(pairs.max(1))));
            }
        }
        let config: Self = layered::parse(&complete)?;
        config.validate()?;
        Ok(config)
    }

    /// Whether `task` is configured.
    pub fn has(&self, task: Task) -> bool {
        self.tasks.contains(&task)
    }
}
