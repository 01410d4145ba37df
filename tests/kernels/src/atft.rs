//! A training step of the workload ATFT-GAT-FAN.

use std::{collections::HashMap, path::Path};

use anyhow::Context;
use pawl_contract::settings::Settings;
use pawl_graph::{
    array::Array,
    graph::Program,
    optim::OptimizerKernel,
    passes::Pattern,
    recipe::{Precision, Recipe},
};
use pawl_workloads::{At, Batch, Job, Request, atft::AtftJob};
use serde_json::json;

/// Days of the simulated panel, whose preparation takes no part in a step.
const DAYS: usize = 240;

/// A training step of ATFT-GAT-FAN with fused kernels, and features cut out of a table on the host.
#[derive(Debug, Clone)]
pub struct AtftStep {
    /// Preset of the workload: smoke, medium.
    pub preset: String,
    /// Samples of a step: a multiple of the stocks of a date.
    pub samples: u32,
    /// Precision of matmuls.
    pub precision: Precision,
}

impl AtftStep {
    fn job(&self) -> anyhow::Result<AtftJob> {
        let config = json!({"preset": self.preset, "data": {"days": DAYS}}).as_object().cloned().unwrap_or_default();
        let settings =
            Settings { batch_per_gpu: Some(self.samples), eval_batch: Some(self.samples), ..Settings::default() };
        Ok(AtftJob::new(&Request { config, settings, seed: 42, rank: 0, world: 1 })?)
    }

    /// The program of a step without accumulation: forward, backward and update.
    ///
    /// # Errors
    /// When the workload rejects the configuration.
    pub fn program(&self) -> anyhow::Result<Program> {
        let job = self.job()?;
        let (optimization, programs) = (job.optimization(), job.programs());
        let patterns = |scopes: &[&str]| scopes.iter().map(|scope| Pattern::new(scope)).collect::<Vec<_>>();
        let recipe = Recipe {
            precision: self.precision,
            full_precision: patterns(programs.regions.float32),
            rematerialize: patterns(programs.regions.rematerialized),
            kernel: OptimizerKernel::Fused,
            clip: optimization.clip,
            skip_non_finite: optimization.skip_non_finite,
            ..Recipe::new(optimization.optimizer.clone())
        };
        Ok(recipe.step(programs.train.first().context("the model has a training program")?)?)
    }

    /// The first batch of the simulated panel, with the graphs of its dates, as inputs of `program`.
    ///
    /// # Errors
    /// When the workload rejects the configuration.
    pub fn inputs(&self, program: &Program) -> anyhow::Result<Vec<Array>> {
        let job = self.job()?;
        let mut batch = Batch::default();
        job.open(Path::new("unused"), &|_, _, _| {})?.train(At { items: 0, micro: 0 }, &mut batch)?;
        let declared = &job.programs().train.first().context("the model has a training program")?.inputs;
        let mut made: HashMap<&str, Array> = declared.iter().map(|decl| decl.name.as_str()).zip(batch.inputs).collect();
        program
            .inputs
            .iter()
            .map(|decl| made.remove(decl.name.as_str()).map_or_else(|| super::input(decl), Ok))
            .collect()
    }
}
