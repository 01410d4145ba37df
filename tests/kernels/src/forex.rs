//! A training step of the forex workload.

use anyhow::Context;
use pawl_contract::settings::Settings;
use pawl_graph::{
    graph::Program,
    optim::OptimizerKernel,
    passes::Pattern,
    recipe::{Precision, Recipe},
};
use pawl_workloads::{Job, Request, forex::ForexJob};
use serde_json::json;

/// A training step of the forex workload with fused kernels.
#[derive(Debug, Clone)]
pub struct ForexStep {
    /// Preset of the workload: smoke, medium.
    pub preset: String,
    /// Windows of a micro-step.
    pub windows: u32,
    /// Precision of matmuls.
    pub precision: Precision,
}

impl ForexStep {
    /// The program of a step without accumulation (forward, backward and update), and that of the evaluation.
    ///
    /// # Errors
    /// When the workload rejects the configuration.
    pub fn programs(&self) -> anyhow::Result<[Program; 2]> {
        let config = json!({"preset": self.preset}).as_object().cloned().unwrap_or_default();
        let settings = Settings { batch_per_gpu: Some(self.windows), ..Settings::default() };
        let job = ForexJob::new(&Request { config, settings, seed: 42, rank: 0, world: 1 })?;
        let (optimization, programs) = (job.optimization(), job.programs());
        let recipe = Recipe {
            precision: self.precision,
            full_precision: programs.regions.float32.iter().map(|scope| Pattern::new(scope)).collect(),
            kernel: OptimizerKernel::Fused,
            clip: optimization.clip,
            ..Recipe::new(optimization.optimizer.clone())
        };
        let training = programs.train.first().context("the model has a training program")?;
        let evaluation = programs.evaluation.first().context("the model has an evaluation program")?;
        Ok([recipe.step(training)?, recipe.evaluate(evaluation, false)?])
    }
}
