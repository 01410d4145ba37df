//! ATFT-GAT-FAN: stocks of a date are ranked by a temporal fusion transformer, attention over a graph of correlated
//! stocks, and adaptive normalization, which forecast quantiles of returns at four horizons.

mod adaptive;
mod batches;
pub mod chunks;
pub mod config;
mod curriculum;
pub mod dataset;
pub mod features;
pub mod files;
mod gat;
mod heads;
mod layers;
mod losses;
pub mod metrics;
pub mod model;
pub mod neighbours;
pub mod panel;
mod selection;
mod temporal;

use crate::inference::Inference;
use crate::share::Share;
use crate::source::Source as DataSource;
use crate::workload::{At, Data, Job, Optimization, Programs, Request, Workload, WorkloadError};
use batches::Batches;
use config::{Config, DataConfig, Source};
use curriculum::Curriculum;
use dataset::{Dataset, Split};
use model::{Model, REGIONS, SWITCHED};
use pawl_contract::settings::Attention;
use pawl_graph::optim::AdamW;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// The workload.
pub struct AtftGatFan;

impl Workload for AtftGatFan {
    fn name(&self) -> &'static str {
        "atft-gat-fan"
    }

    fn schema(&self) -> Value {
        schemars::schema_for!(Config).to_value()
    }

    fn settings(&self) -> &'static [&'static str] {
        &["learningRate", "weightDecay", "ema", "workload"]
    }

    fn prepare(&self, request: &Request) -> Result<Box<dyn Job>, WorkloadError> {
        Ok(Box::new(AtftJob::new(request)?))
    }
}

/// A validated launch.
pub struct AtftJob {
    setup: Arc<AtftSetup>,
    programs: Arc<Programs>,
    optimization: Optimization,
}

/// Inputs of the batches.
#[derive(Debug)]
struct AtftSetup {
    config: Config,
    curriculum: Curriculum,
    share: Share,
}

impl AtftJob {
    /// Validates `request` and builds the programs.
    ///
    /// # Errors
    /// Names the field, the value and the remedy.
    pub fn new(request: &Request) -> Result<Self, WorkloadError> {
        let setup = AtftSetup::new(request)?;
        let (config, share) = (&setup.config, &setup.share);
        if request.settings.attention() == Attention::Flash && config.model.dropout > 0.0 {
            let problem = "has no dropout of the attention weights: set Math, or model.dropout: 0";
            return Err(WorkloadError::unsupported("attention", "Flash", problem));
        }
        let model = Model { config: &config.model, data: &config.data, loss: &config.loss };
        let training = |parts: &model::Parts| model.training(share.batch, *parts);
        let programs = Programs {
            train: setup.curriculum.variants().iter().map(training).collect::<Result<_, _>>()?,
            evaluation: vec![model.evaluation(share.evaluation_batch, setup.curriculum.evaluated())?],
            regions: REGIONS,
        };
        let adamw = AdamW { weight_decay: 1e-5, decay_vectors: false, ..AdamW::default() };
        let mut optimization = Optimization::adamw(&request.settings, adamw, 5e-4, config.schedule.schedule())?;
        optimization.skip_non_finite = true;
        if !config.curriculum.is_empty() {
            // Parts that take no part in a step are not updated.
            optimization.groups = SWITCHED.map(str::to_owned).to_vec();
            optimization.stages = setup.curriculum.rates();
        }
        Ok(Self { setup: Arc::new(setup), programs: Arc::new(programs), optimization })
    }
}

/// Items of an epoch: one chunk of each date in training.
fn epoch(data: &DataConfig) -> u64 {
    (data.splits()[Split::Train as usize].len() * data.chunk) as u64
}

impl AtftSetup {
    fn new(request: &Request) -> Result<Self, WorkloadError> {
        let patch = request.settings.workload.as_ref();
        let config = Config::parse(&request.config, patch.unwrap_or(&Default::default()))?;
        let (share, chunk) = (Share::new(request)?, config.data.chunk);
        for (field, batch) in [("batchPerGpu", share.batch), ("evalBatch", share.evaluation_batch)] {
            if !batch.is_multiple_of(chunk) {
                let problem = format!("must be a multiple of data.chunk ({chunk}): batches are whole day chunks");
                return Err(WorkloadError::setting(field, batch, problem));
            }
        }
        let curriculum = Curriculum::new(&config);
        Ok(Self { config, curriculum, share })
    }
}

impl Job for AtftJob {
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
        epoch(&self.setup.config.data)
    }

    fn metrics(&self) -> Vec<String> {
        metrics::metrics(&[1.0; metrics::SUMS]).into_keys().collect()
    }

    fn variant(&self, at: At) -> usize {
        self.setup.curriculum.variant(at.items)
    }

    fn inference(&self, batch: usize) -> Result<Inference, WorkloadError> {
        let AtftSetup { config, curriculum, .. } = &*self.setup;
        let (chunk, each) = (config.data.chunk as u64, config.data.edges_per_stock as u64);
        let model = Model { config: &config.model, data: &config.data, loss: &config.loss };
        let program = model.inference(batch * config.data.chunk, curriculum.evaluated())?;
        // In each stock end as many edges, from stocks of its date, as there is room for but one: the rest is padding.
        let used = each.saturating_sub(1).max(1);
        let last = batch as u64 * chunk - 1;
        let inference = Inference::new(program, |input, i, word| match input {
            "edges.offset" => i * used,
            "edges.source" => (i / used).min(last) / chunk * chunk + word % chunk,
            _ => (i / used).min(last),
        });
        Ok(inference?)
    }

    fn source(&self) -> DataSource {
        let data = &self.setup.config.data;
        let panel = json!({"days": data.days, "stocks": data.stocks, "signal": data.signal, "seed": data.seed});
        DataSource::of(data.directory.as_ref(), panel)
    }

    fn open(&self, _root: &Path, progress: crate::store::OnProgress<'_>) -> Result<Arc<dyn Data>, WorkloadError> {
        let data = &self.setup.config.data;
        let dataset = match data.source {
            Source::Generated => Dataset::simulated(data, progress),
            Source::Parquet => Dataset::read(data, progress)?,
        };
        Ok(Arc::new(Batches::new(Arc::clone(&self.setup), Arc::clone(&self.programs), dataset)))
    }
}
