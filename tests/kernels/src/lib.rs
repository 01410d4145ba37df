//! Programs whose kernels are compiled, checked and timed.

mod atft;
mod forex;
pub mod idle;
mod slm;
mod vision_bdh;

pub use atft::AtftStep;
pub use forex::ForexStep;
pub use slm::SlmStep;
pub use vision_bdh::VisionStep;

use anyhow::Context;
use pawl_contract::settings::Settings;
use pawl_graph::{
    array::{Array, Data},
    graph::{DType, InputDecl, Program},
    optim::OptimizerKernel,
    passes::Pattern,
    random,
    recipe::{AttentionKernel, Precision, Recipe},
};
use pawl_workloads::{Request, Workload, ups::Ups};
use serde_json::{Map, Value, json};

/// Query points of the losses through the decoder, as the peer's tuned recipe has them.
const QUERIES: u32 = 1024;

/// A training step of UPS.
#[derive(Debug, Clone)]
pub struct UpsStep {
    /// Preset of the workload.
    pub preset: String,
    /// Items of a micro-step.
    pub items: u32,
    /// Pairs per item; the preset's when absent.
    pub pairs: Option<u32>,
    /// Whether the losses through the decoder are computed.
    pub auxiliary: bool,
    /// Precision of matmuls and attention.
    pub precision: Precision,
    /// Kernel of attention.
    pub attention: AttentionKernel,
    /// Whether sub-layers are recomputed in the backward pass.
    pub recompute: bool,
}

impl UpsStep {
    /// The program of a step without accumulation: forward, backward and update.
    ///
    /// # Errors
    /// When the workload rejects the configuration.
    pub fn program(&self) -> anyhow::Result<Program> {
        let mut config: Map<String, Value> = Map::new();
        config.insert("preset".into(), json!(self.preset));
        if let Some(pairs) = self.pairs {
            config.insert("pairs".into(), json!(pairs));
        }
        if !self.auxiliary {
            config.insert("loss".into(), json!({"auxiliary": "None"}));
        }
        let precision = match self.precision {
            Precision::F32 => "fp32",
            Precision::BF16 => "bf16",
            Precision::F16 => "fp16",
            Precision::FP8 => "fp8",
        };
        let mut settings = json!({"batchPerGpu": self.items, "precision": precision});
        if self.auxiliary {
            settings["querySamples"] = json!(QUERIES);
        }
        let settings: Settings = serde_json::from_value(settings)?;
        let job = Ups.prepare(&Request { config, settings, seed: 42, rank: 0, world: 1 })?;
        let programs = job.programs();
        let patterns = |scopes: &[&str]| scopes.iter().map(|scope| Pattern::new(scope)).collect::<Vec<_>>();
        let optimization = job.optimization();
        let recipe = Recipe {
            attention: self.attention,
            precision: self.precision,
            full_precision: patterns(programs.regions.float32),
            float8_scopes: patterns(programs.regions.float8),
            recompute: if self.recompute { patterns(programs.regions.sublayers) } else { Vec::new() },
            kernel: OptimizerKernel::Fused,
            groups: optimization.groups.clone(),
            average: optimization.average,
            ..Recipe::new(optimization.optimizer.clone())
        };
        recipe.step(programs.train.first().context("UPS has a training program")?).map_err(Into::into)
    }
}

/// Data like a batch's: floats uniform in [-1, 1), indices in range, scalars as in training.
///
/// # Errors
/// Never: the draws have the shapes of the inputs.
pub fn inputs(program: &Program) -> anyhow::Result<Vec<Array>> {
    program.inputs.iter().map(input).collect()
}

fn input(decl: &InputDecl) -> anyhow::Result<Array> {
    let stream = random::stream(1, &decl.name);
    let values = (0..decl.meta.shape.elements() as u64).map(|i| match (decl.name.as_str(), decl.meta.dtype) {
        ("learning_rate", _) => 1.4e-3,
        ("inverse_weight", _) => 0.01,
        ("normalizer", _) => 32_768.0,
        ("kl_weight", _) => 1e-4,
        ("labels", _) => (random::bits(stream, i) % 10) as f64,
        ("tokens" | "targets", _) => (random::bits(stream, i) % 512) as f64,
        (_, DType::U32) => (random::bits(stream, i) % 64) as f64,
        _ => 2.0 * random::uniform_f64(stream, i) - 1.0,
    });
    Ok(Array::new(&decl.meta.shape, Data::from_f64(decl.meta.dtype, values))?)
}
