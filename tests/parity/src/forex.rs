//! Forex, in both arms.

use crate::Precision;
use crate::export::{self, Tensors};
use crate::ours::Entry;
use anyhow::Context;
use clap::ValueEnum;
use pawl_contract::settings::Settings;
use pawl_graph::array::{Array, Data as Elements, View};
use pawl_graph::executor::{ExecOptions, Executor, write_named};
use pawl_graph::graph::{Builder, DType, Program};
use pawl_graph::recipe::Recipe;
use pawl_workloads::forex::bars::Bars;
use pawl_workloads::forex::config::{Config, HORIZONS};
use pawl_workloads::forex::device_windows::resident;
use pawl_workloads::forex::kl_weight;
use pawl_workloads::forex::market::Market;
use pawl_workloads::forex::model::Model;
use pawl_workloads::{At, Batch, Data, Job, RatePosition, WorkloadError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The peer with what a comparison needs beside it.
pub const PEER: &str = include_str!("forex_peer.py");

/// The peer runs at least as many steps after those that it does not time.
const TIMED: usize = 50;
/// Samples of a forecast and their steps, in both arms.
const SAMPLES: usize = 64;
const SAMPLING_STEPS: usize = 20;
/// Batches of forecasts before those that are timed, and those.
const FORECAST_BATCHES: [usize; 2] = [5, 30];

/// How the peer trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Mode {
    /// With all its optimisations, as it is.
    Optimised,
    /// Data on the device, and the whole step in one CUDA graph.
    Captured,
}

/// What both arms run.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
pub struct ForexExperiment {
    /// How the peer trains.
    #[arg(long, value_enum, default_value = "captured")]
    pub mode: Mode,
    /// Preset; `medium` is the peer's `seed`.
    #[arg(long, default_value = "medium", value_parser = ["smoke", "medium"])]
    pub preset: String,
    /// Windows of a step.
    #[arg(long, default_value_t = 64)]
    pub windows: usize,
    /// Simulated bars.
    #[arg(long, default_value_t = 60_000)]
    pub bars: usize,
    /// Steps of a round.
    #[arg(long, default_value_t = 200)]
    pub steps: usize,
    /// Steps that are not timed; at least 50 of the others are.
    #[arg(long, default_value_t = 20)]
    pub warmup: usize,
    /// Precision of products.
    #[arg(long, value_enum, default_value = "bf16")]
    pub precision: Precision,
    /// Sample forecasts after training, for this number of windows at a time; 0: do not.
    #[arg(long, default_value_t = 64)]
    pub forecasts: usize,
    /// `cpu` (in mode `optimised`, without forecasts), or `cuda`.
    #[arg(long, default_value = "cuda", value_parser = ["cpu", "cuda"])]
    pub device: String,
}

impl ForexExperiment {
    /// The settings of our arm.
    ///
    /// # Errors
    /// Never for values that the command line accepts.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        Ok(serde_json::from_value(json!({
            "batchPerGpu": self.windows, "precision": self.precision, "compile": "Graph", "optimizerKernel": "Fused",
        }))?)
    }

    /// The configuration of our arm.
    pub fn config(&self) -> Map<String, Value> {
        let config = json!({
            "preset": self.preset,
            "data": {"bars": self.bars, "placement": "Device"},
            "schedule": {"warmupSteps": 20},
        });
        config.as_object().cloned().unwrap_or_default()
    }

    /// First weights, data and learning rates of our arm, from the export in `folder`.
    ///
    /// # Errors
    /// When the export cannot be read.
    pub fn entry(&self, job: &dyn Job, folder: &Path) -> anyhow::Result<Entry> {
        let (rate, schedule) = (job.optimization().learning_rate, job.optimization().schedule);
        let step_items = self.windows as u64;
        let total_items = step_items * self.steps.max(self.warmup + TIMED) as u64;
        let factor = move |step: usize| {
            let step = step as u64;
            schedule.factor(RatePosition { step, items: step * step_items, step_items, total_items })
        };
        Ok(Entry {
            weights: Some(export::weights(&folder.join("init.safetensors"))?),
            data: Arc::new(ForexBatches::open(folder, job, self)?),
            rate: Box::new(move |step| rate * factor(step)),
        })
    }

    /// Command-line arguments of the peer for the same experiment.
    pub fn peer_arguments(&self) -> Vec<String> {
        let Self { windows, bars, steps, warmup, forecasts, device, .. } = self;
        let preset = if self.preset == "medium" { "seed" } else { &self.preset };
        let precision = match self.precision {
            Precision::Fp32 => "--precision fp32 --tf32 0",
            Precision::Bf16 => "--precision bf16 --tf32 1",
        };
        let mode = match self.mode {
            Mode::Optimised => "",
            // What is fastest where nothing is left to the host.
            Mode::Captured => {
                "--captured --loader device --compile all --compile-mode default --s4-kernel chunked --last-only 1"
            }
        };
        let line = format!(
            "{mode} --mode optimised --preset {preset} --batch {windows} --bars {bars} --train-steps {steps} --warmup {warmup} \
             --forecasts {forecasts} {precision} --device {device}"
        );
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Windows per second for which forecasts are sampled, with the first weights; none where sampling is not asked
    /// for.
    ///
    /// # Errors
    /// When the export cannot be read, or the device fails.
    pub fn forecasts_per_second(
        &self,
        executor: &dyn Executor,
        recipe: &Recipe,
        folder: &Path,
    ) -> anyhow::Result<Option<f64>> {
        if self.forecasts == 0 {
            return Ok(None);
        }
        let Config { model, data: of_data, .. } = Config::parse(&self.config(), &Map::new())?;
        let of = Model { config: &model, lookback: of_data.lookback, resident_bars: of_data.resident_bars(), world: 1 };
        let b = Builder::new("forecast");
        let windows = of.windows(&b, self.forecasts)?;
        let counter = b.input("counter", DType::U32, []);
        let noise = b.normal("noise", counter, [self.forecasts, SAMPLES, HORIZONS.len(), model.latent]);
        b.output("samples", of.forecasts(&windows, noise, SAMPLING_STEPS)?);
        let program = recipe.evaluate(&b.finish()?, false)?;
        let mut executable = executor.compile(&[program], &ExecOptions::default())?;
        let market = market(folder, self)?;
        // Forecasts use neither the patches nor the whole model.
        write_named(executable.as_mut(), &export::weights(&folder.join("init.safetensors"))?)?;
        write_named(executable.as_mut(), &resident(&market)?)?;

        let first = market.validation().start as u32;
        let bars = Array::new([self.forecasts], Elements::U32((first..).take(self.forecasts).collect()))?;
        let [untimed, timed] = FORECAST_BATCHES;
        let mut began = Instant::now();
        for batch in 0..untimed + timed {
            if batch == untimed {
                began = Instant::now();
            }
            let counter = Array::new([], Elements::U32(vec![batch as u32]))?;
            let inputs: Vec<View<'_>> = [&bars, &counter].map(Array::view).into();
            executable.run(0, &inputs)?;
            // The samples are read, as a user would.
            executable.output(0, 0)?;
        }
        Ok(Some((self.forecasts * timed) as f64 / began.elapsed().as_secs_f64()))
    }
}

/// The peer's bars, and what windows are cut from.
fn market(folder: &Path, experiment: &ForexExperiment) -> anyhow::Result<Market> {
    let data = Tensors::open(&folder.join("data.safetensors"))?;
    let bars = Bars {
        open: data.doubles("open")?,
        high: data.doubles("high")?,
        low: data.doubles("low")?,
        close: data.doubles("close")?,
        volume: data.doubles("volume")?,
        ..Bars::default()
    };
    let config = Config::parse(&experiment.config(), &Map::new())?;
    Ok(Market::new(&bars.timed(), &config, &|_, _, _| {}))
}

/// The peer's windows, in its order.
struct ForexBatches {
    market: Market,
    /// The bars with which the windows of all steps end.
    plan: Vec<usize>,
    program: Program,
    windows: usize,
}

impl ForexBatches {
    fn open(folder: &Path, job: &dyn Job, experiment: &ForexExperiment) -> anyhow::Result<Self> {
        Ok(Self {
            market: market(folder, experiment)?,
            plan: Tensors::open(&folder.join("plan.safetensors"))?.integers("bars")?,
            program: job.programs().train.first().context("the workload has a training program")?.clone(),
            windows: experiment.windows,
        })
    }
}

impl Data for ForexBatches {
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
        // What is prepared ahead of the last step is not used.
        let step = (at.items as usize / self.windows).min(self.plan.len() / self.windows - 1);
        let plan = &self.plan[step * self.windows..][..self.windows];
        batch.fit(0, &self.program)?;
        for (array, decl) in batch.inputs.iter_mut().zip(&self.program.inputs) {
            match (decl.name.as_str(), array.data_mut()) {
                ("kl_weight", Elements::F32(out)) => out.fill(kl_weight(step as u64) as f32),
                ("counter", Elements::U32(out)) => out.fill(step as u32),
                ("bars", Elements::U32(out)) => out.iter_mut().zip(plan).for_each(|(out, &bar)| *out = bar as u32),
                (name, _) => unreachable!("the workload has no input `{name}`"),
            }
        }
        Ok(())
    }

    fn resident(&self) -> Result<Vec<(String, Array)>, WorkloadError> {
        Ok(resident(&self.market)?)
    }

    // The peer evaluates nothing.
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
