//! A training step of the language model.

use anyhow::Context;
use pawl_contract::settings::{Precision as Setting, RopeCache, Settings, WeightQuantization};
use pawl_graph::{
    graph::Program,
    optim::OptimizerKernel,
    passes::{Float8, Pattern},
    recipe::{AttentionKernel, Precision, Recipe},
};
use pawl_workloads::{Job, Request, slm::SlmJob};
use serde_json::json;

/// A training step of the language model, attention in one kernel.
#[derive(Debug, Clone)]
pub struct SlmStep {
    /// Size of the workload: tiny, 125m, 1b, 3b, 8b.
    pub size: String,
    /// Windows of a micro-step.
    pub windows: u32,
    /// Precision of matmuls and attention.
    pub precision: Precision,
    /// Formats and scales of 8-bit floats.
    pub float8: Float8,
    /// Frozen matrices as 8-bit integers.
    pub int8: bool,
    /// Whether blocks are recomputed in the backward pass.
    pub recompute: bool,
}

impl SlmStep {
    /// The program of a step without accumulation: forward, backward and update.
    ///
    /// # Errors
    /// When the workload rejects the configuration.
    pub fn program(&self) -> anyhow::Result<Program> {
        let (recipe, forward) = self.recipe()?;
        Ok(recipe.step(&forward)?)
    }

    /// The program that counts what is out of the range of 8-bit floats in such a step.
    ///
    /// # Errors
    /// When the workload rejects the configuration, or the precision is not fp8.
    pub fn float8_out_of_range(&self) -> anyhow::Result<Program> {
        let (recipe, forward) = self.recipe()?;
        recipe.float8_out_of_range(&forward)?.context("only fp8 has 8-bit floats")
    }

    fn recipe(&self) -> anyhow::Result<(Recipe, Program)> {
        let config = json!({"size": self.size}).as_object().cloned().unwrap_or_default();
        let precision = match self.precision {
            Precision::F16 => Setting::Fp16,
            Precision::BF16 => Setting::Bf16,
            Precision::FP8 => Setting::Fp8,
            Precision::F32 => Setting::Fp32,
        };
        let settings = Settings {
            batch_per_gpu: Some(self.windows),
            precision: Some(precision),
            rope_cache: Some(RopeCache::Cached),
            weight_quantization: self.int8.then_some(WeightQuantization::Int8),
            ..Settings::default()
        };
        let job = SlmJob::new(&Request { config, settings, seed: 42, rank: 0, world: 1 })?;
        let (optimization, regions) = (job.optimization(), job.programs().regions);
        let patterns = |scopes: &[&str]| scopes.iter().map(|scope| Pattern::new(scope)).collect::<Vec<_>>();
        let recipe = Recipe {
            attention: AttentionKernel::Flash,
            precision: self.precision,
            float8_scopes: patterns(regions.float8),
            float8: self.float8,
            kernel: OptimizerKernel::Fused,
            clip: optimization.clip,
            rematerialize: patterns(regions.rematerialized),
            recompute: if self.recompute { patterns(regions.blocks) } else { Vec::new() },
            ..Recipe::new(optimization.optimizer.clone())
        };
        let forward = job.programs().train.first().context("the model has a training program")?;
        Ok((recipe, forward.clone()))
    }
}
