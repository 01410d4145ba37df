//! A training step of Vision-BDH.

use anyhow::Context;
use pawl_contract::settings::{MemoryFormat, ParameterLayout, Precision as Setting, RopeCache, Settings};
use pawl_graph::{
    graph::Program,
    optim::OptimizerKernel,
    passes::Pattern,
    recipe::{Precision, Recipe},
};
use pawl_workloads::{Job, Request, vision_bdh::VisionJob};
use serde_json::json;

/// A training step of Vision-BDH with all optimizations.
#[derive(Debug, Clone)]
pub struct VisionStep {
    /// Preset of the workload: smoke, medium.
    pub preset: String,
    /// Images of a micro-step.
    pub images: u32,
    /// Precision of matmuls and attention.
    pub precision: Precision,
    /// Whether levels are recomputed in the backward pass.
    pub recompute: bool,
    /// Whether images are on the device, and augmented there.
    pub resident: bool,
}

impl VisionStep {
    /// The program of a step without accumulation: forward, backward and update.
    ///
    /// # Errors
    /// When the workload rejects the configuration.
    pub fn program(&self) -> anyhow::Result<Program> {
        let placement = if self.resident { "Device" } else { "Host" };
        let config = json!({"preset": self.preset, "data": {"placement": placement}});
        let config = config.as_object().cloned().unwrap_or_default();
        let precision = match self.precision {
            Precision::F16 => Setting::Fp16,
            Precision::BF16 => Setting::Bf16,
            Precision::FP8 => Setting::Fp8,
            Precision::F32 => Setting::Fp32,
        };
        let settings = Settings {
            batch_per_gpu: Some(self.images),
            precision: Some(precision),
            rope_cache: Some(RopeCache::Cached),
            parameter_layout: Some(ParameterLayout::Linear),
            memory_format: Some(MemoryFormat::ChannelsLast),
            ..Settings::default()
        };
        let job = VisionJob::new(&Request { config, settings, seed: 42, rank: 0, world: 1 })?;
        let (optimization, regions) = (job.optimization(), job.programs().regions);
        let patterns = |scopes: &[&str]| scopes.iter().map(|scope| Pattern::new(scope)).collect::<Vec<_>>();
        let recipe = Recipe {
            precision: self.precision,
            full_precision: patterns(regions.float32),
            kernel: OptimizerKernel::Fused,
            clip: optimization.clip,
            rematerialize: patterns(regions.rematerialized),
            recompute: if self.recompute { patterns(regions.blocks) } else { Vec::new() },
            ..Recipe::new(optimization.optimizer.clone())
        };
        recipe.step(job.programs().train.first().context("the model has a training program")?).map_err(Into::into)
    }
}
