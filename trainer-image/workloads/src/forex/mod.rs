//! Forex: a variational autoencoder of patches of candles, and a diffusion model that forecasts the latents of future
//! patches from four timeframes, trained together on five-minute bars, simulated or from files.

pub mod bars;
mod batches;
pub mod config;
mod context;
pub mod device_windows;
mod diffusion;
pub mod features;
pub mod files;
mod layers;
pub mod market;
pub mod metrics;
pub mod model;
pub mod rolling;
mod s4;
mod vae;

use crate::inference::Inference;
use crate::share::Share;
use crate::source::Source as DataSource;
use crate::workload::{At, Data, Job, Optimization, Programs, Request, Workload, WorkloadError};
use bars::Bars;
use batches::Batches;
use config::{Config, Source};
use market::{Market, splits};
use model::{Model, REGIONS};
use pawl_contract::settings::Attention;
use pawl_graph::optim::AdamW;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Factor of the KL divergence at the end of its rise, the middle of the rise in updates, and its steepness.
const KL_WEIGHT: f64 = 0.01;
const KL_MIDDLE: f64 = 5000.0;
const KL_STEEPNESS: f64 = 0.002;
/// Parameters with more than one axis to which weight decay does not apply.
const UNDECAYED: &[&str] = &["encoder.query", "horizon_emb.weight"];

/// Factor of the KL divergence in the update after `updates`: it rises in the shape of a logistic function.
pub fn kl_weight(updates: u64) -> f64 {
    KL_WEIGHT / (1.0 + libm::exp(-KL_STEEPNESS * (updates as f64 - KL_MIDDLE)))
}

/// The workload.
pub struct Forex;

impl Workload for Forex {
    fn name(&self) -> &'static str {
        "forex"
    }

    fn schema(&self) -> Value {
        schemars::schema_for!(Config).to_value()
    }

    fn settings(&self) -> &'static [&'static str] {
        &["learningRate", "weightDecay", "ema", "workload"]
    }

    fn prepare(&self, request: &Request) -> Result<Box<dyn Job>, WorkloadError> {
        Ok(Box::new(ForexJob::new(request)?))
    }
}

/// A validated launch.
pub struct ForexJob {
    setup: Arc<ForexSetup>,
    programs: Arc<Programs>,
    optimization: Optimization,
}

/// Inputs of the batches.
#[derive(Debug)]
struct ForexSetup {
    config: Config,
    share: Share,
}

impl ForexJob {
    /// Validates `request` and builds the programs.
    ///
    /// # Errors
    /// Names the field, the value and the remedy.
    pub fn new(request: &Request) -> Result<Self, WorkloadError> {
        if request.settings.attention() == Attention::Flash {
            let problem = "has no use here: one query attends to four keys, with dropout of the weights; set Math";
            return Err(WorkloadError::unsupported("attention", "Flash", problem));
        }
        let setup = ForexSetup::new(request)?;
        let (share, data) = (setup.share, &setup.config.data);
        let model = Model {
            config: &setup.config.model,
            lookback: data.lookback,
            resident_bars: data.resident_bars(),
            world: share.world as usize,
        };
        let programs = Programs {
            train: vec![model.training(share.batch)?],
            evaluation: vec![model.evaluation(share.evaluation_batch, &setup.config.evaluation)?],
            regions: REGIONS,
        };
        let adamw = AdamW { weight_decay: 0.01, decay_vectors: false, undecayed: UNDECAYED, ..AdamW::default() };
        let optimization = Optimization::adamw(&request.settings, adamw, 2e-4, setup.config.schedule.schedule())?;
        Ok(Self { setup: Arc::new(setup), programs: Arc::new(programs), optimization })
    }
}

impl ForexSetup {
    fn new(request: &Request) -> Result<Self, WorkloadError> {
        let patch = request.settings.workload.as_ref();
        let config = Config::parse(&request.config, patch.unwrap_or(&Default::default()))?;
        Ok(Self { config, share: Share::new(request)? })
    }

    /// Factor of the KL divergence in the update at `at`.
    fn kl_weight(&self, at: At) -> f64 {
        kl_weight(at.items / self.share.step_items())
    }
}

impl Job for ForexJob {
    fn programs(&self) -> &Programs {
        &self.programs
    }

    fn optimization(&self) -> &Optimization {
        &self.optimization
    }

    fn items_per_batch(&self) -> u32 {
        self.setup.share.batch as u32
    }

    fn items_per_epoch(&self) -> u64 {
        let data = &self.setup.config.data;
        splits(data, data.bars)[0].len() as u64
    }

    fn metrics(&self) -> Vec<String> {
        metrics::metrics(&[1.0; metrics::SUMS]).into_keys().collect()
    }

    fn inference(&self, batch: usize) -> Result<Inference, WorkloadError> {
        let Config { model, data, evaluation, .. } = &self.setup.config;
        let model = Model { config: model, lookback: data.lookback, resident_bars: None, world: 1 };
        Ok(Inference::new(model.inference(batch, evaluation)?, |_, _, word| word)?)
    }

    fn source(&self) -> DataSource {
        let data = &self.setup.config.data;
        DataSource::of(data.directory.as_ref(), json!({"bars": data.bars, "seed": data.seed}))
    }

    fn open(&self, _root: &Path, progress: crate::store::OnProgress<'_>) -> Result<Arc<dyn Data>, WorkloadError> {
        let config = &self.setup.config;
        progress("bars", 0, 1);
        let bars = match config.data.source {
            Source::Generated => Bars::simulated(config.data.bars, config.data.seed),
            Source::Parquet => files::read(&config.data)?,
        };
        let market = Market::new(&bars, config, progress);
        Ok(Arc::new(Batches::new(Arc::clone(&self.setup), Arc::clone(&self.programs), market)))
    }
}
