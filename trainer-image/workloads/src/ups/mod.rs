//! UPS, the universal physics stack: a time-stepping operator in a latent space, on advection and Darcy flow.

pub mod advection;
mod batches;
pub mod config;
pub mod darcy;
pub mod dataset;
pub mod decoder;
pub mod encoder;
pub mod field;
mod layers;
mod losses;
mod metrics;
pub mod operator;
pub mod pdebench;
pub mod programs;

use crate::inference::Inference;
use crate::optimization::OptimizerSettings;
use crate::schedule::RateSchedule;
use crate::share::Share;
use crate::source::Source as DataSource;
use crate::workload::{At, Data, Job, Optimization, Programs, Request, Workload, WorkloadError};
use batches::Batches;
use config::{Auxiliary, Config, Task};
use dataset::{Dataset, Split, samples};
use encoder::{COORDINATES, Encoder};
use pawl_contract::settings::{Precision, Settings};
use pawl_graph::array::{Array, Data as Elements};
use pawl_graph::graph::DType;
use pawl_graph::optim::{AdamW, Muon, Optimizer};
use programs::{Layout, Model, REGIONS, edge_points};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Default number of query points; `settings.querySamples` overrides it.
const QUERIES: u32 = 2048;
/// Maximum weight of the inverse losses.
const INVERSE_LIMIT: f64 = 0.05;
/// Maximum rows of a physical evaluation: each is decoded on the whole grid.
const PHYSICAL_ROWS: usize = 8;

/// The workload.
pub struct Ups;

impl Workload for Ups {
    fn name(&self) -> &'static str {
        "ups"
    }

    fn schema(&self) -> Value {
        schemars::schema_for!(Config).to_value()
    }

    fn settings(&self) -> &'static [&'static str] {
        &["lossFrequency", "querySamples", "learningRate", "weightDecay", "ema", "workload"]
    }

    fn prepare(&self, request: &Request) -> Result<Box<dyn Job>, WorkloadError> {
        Ok(Box::new(UpsJob::new(request)?))
    }
}

/// A validated UPS launch.
pub struct UpsJob {
    setup: Arc<UpsSetup>,
    programs: Arc<Programs>,
    optimization: Optimization,
    encoders: Vec<(Task, Encoder)>,
}

/// Inputs of the batches.
#[derive(Debug)]
struct UpsSetup {
    config: Config,
    layout: Layout,
    /// Pairs per evaluation batch.
    evaluation_rows: usize,
    physical_rows: usize,
    share: Share,
    loss_frequency: u64,
}

impl UpsJob {
    /// Validates `request` and builds the programs.
    ///
    /// # Errors
    /// Names the field, the value and the remedy.
    pub fn new(request: &Request) -> Result<Self, WorkloadError> {
        let setup = UpsSetup::new(request)?;
        let encoders: Vec<_> =
            setup.config.tasks.iter().map(|&task| (task, Encoder::new(task, &setup.config))).collect();
        let edge = edge_points();
        // Only bfloat16 has the range that a residual stream needs.
        let bfloat = matches!(request.settings.precision(), Precision::Bf16 | Precision::Fp8);
        let stream = if bfloat { DType::BF16 } else { DType::F32 };
        let model = Model { config: &setup.config, layout: setup.layout, stream, encoders: &encoders, edge: &edge };
        let auxiliary = setup.config.loss.auxiliary;
        let variants: &[bool] = match (auxiliary, setup.loss_frequency) {
            (Auxiliary::None, _) => &[false],
            (_, 1) => &[true],
            _ => &[true, false],
        };
        let mut evaluation = vec![model.latent_evaluation(setup.evaluation_rows)?];
        if setup.physical_rows > 0 {
            for &task in &setup.config.tasks {
                evaluation.push(model.physical_evaluation(task, setup.physical_rows)?);
            }
        }
        let train = variants.iter().map(|&auxiliary| model.training(auxiliary)).collect::<Result<_, _>>()?;
        let optimization = optimization(&request.settings)?;
        Ok(Self {
            setup: Arc::new(setup),
            programs: Arc::new(Programs { train, evaluation, regions: REGIONS }),
            optimization,
            encoders,
        })
    }

    /// The complete configuration.
    pub fn config(&self) -> &Config {
        &self.setup.config
    }
}

impl UpsSetup {
    fn new(request: &Request) -> Result<Self, WorkloadError> {
        let settings = &request.settings;
        let mut config = Config::parse(&request.config, &settings.workload())?;
        config.tasks.sort_unstable();
        let (batch, tasks) = (settings.batch_per_gpu() as usize, config.tasks.len());
        if batch == 0 || batch % tasks != 0 {
            let problem =
                format!("must be a multiple of {tasks}: every batch has an equal number of items of each task");
            return Err(WorkloadError::setting("batchPerGpu", batch, problem));
        }
        let share = Share::new(request)?;
        let auxiliary = config.loss.auxiliary != Auxiliary::None;
        let settings_of_auxiliary =
            [("lossFrequency", settings.loss_frequency), ("querySamples", settings.query_samples)];
        for (field, value) in settings_of_auxiliary {
            match value {
                Some(0) => return Err(WorkloadError::setting(field, 0, "must be at least 1")),
                Some(value) if !auxiliary => {
                    let problem = "applies to auxiliary losses, and workload.config.loss.auxiliary is None: remove it, or enable them";
                    return Err(WorkloadError::setting(field, value, problem));
                }
                _ => {}
            }
        }
        let queries = settings.query_samples.unwrap_or(QUERIES) as usize;
        let layout = Layout { items: batch / tasks, pairs: config.pairs, queries };
        let physical = if config.loss.auxiliary == Auxiliary::Live { config.evaluation.physical_pairs } else { 0 };
        Ok(Self {
            evaluation_rows: share.evaluation_batch * config.pairs,
            physical_rows: physical.min(PHYSICAL_ROWS),
            layout,
            share,
            loss_frequency: u64::from(settings.loss_frequency()),
            config,
        })
    }

    fn items_per_epoch(&self) -> u64 {
        self.config.tasks.iter().map(|&task| samples(task, Split::Train, &self.config).len() as u64).sum()
    }

    /// Whether the auxiliary losses are computed: every n micro-steps (`lossFrequency`), counted from the first step of
    /// an epoch.
    fn is_auxiliary(&self, at: At) -> bool {
        let step = at.items % self.items_per_epoch() / self.share.step_items();
        let index = step * self.share.accumulation + u64::from(at.micro);
        self.config.loss.auxiliary != Auxiliary::None && index.is_multiple_of(self.loss_frequency)
    }

    /// Weight of each inverse loss: 0 at first, then rising linearly by epochs, then constant.
    fn inverse_weight(&self, at: At) -> f64 {
        let loss = &self.config.loss;
        let epoch = (at.items / self.items_per_epoch()) as f64;
        let ramp = if epoch < loss.inverse_start {
            0.0
        } else if loss.inverse_ramp > 0.0 {
            ((epoch - loss.inverse_start) / loss.inverse_ramp).min(1.0)
        } else {
            1.0
        };
        (loss.inverse * ramp).min(INVERSE_LIMIT)
    }
}

impl Job for UpsJob {
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
        self.setup.items_per_epoch()
    }

    fn metrics(&self) -> Vec<String> {
        metrics::names(&self.setup.config, self.setup.physical_rows > 0)
    }

    fn variant(&self, at: At) -> usize {
        usize::from(self.programs.train.len() > 1 && !self.setup.is_auxiliary(at))
    }

    fn extras(&self) -> Vec<(String, Array)> {
        let array = |shape: Vec<usize>, values: &[f32]| Array::new(shape, Elements::F32(values.to_vec()));
        let arrays = self.encoders.iter().flat_map(|(task, encoder)| {
            let (width, inputs) = (encoder.bias().len(), encoder.tiling().patch() + COORDINATES);
            let weight = array(vec![width, inputs], encoder.weight()).ok();
            let bias = array(vec![width], encoder.bias()).ok();
            [("weight", weight), ("bias", bias)].map(|(kind, array)| {
                (format!("encoder.{}.{kind}", task.name()), array.expect("an encoder's weights fill their shapes"))
            })
        });
        arrays.collect()
    }

    fn inference(&self, batch: usize) -> Result<Inference, WorkloadError> {
        Ok(Inference::new(programs::inference(&self.setup.config, batch)?, |_, _, word| word)?)
    }

    fn source(&self) -> DataSource {
        let config = &self.setup.config;
        let mut key = dataset::key(config);
        // How the fields are encoded is no part of the data.
        if let Some(fields) = key.as_object_mut() {
            fields.retain(|name, _| !matches!(name.as_str(), "latents" | "tokens" | "width"));
        }
        DataSource::of(config.data.directory.as_ref(), key)
    }

    fn open(&self, root: &Path, progress: crate::store::OnProgress<'_>) -> Result<Arc<dyn Data>, WorkloadError> {
        let dataset = Dataset::open(&root.join("ups"), &self.setup.config, progress)?;
        Ok(Arc::new(Batches::new(Arc::clone(&self.setup), Arc::clone(&self.programs), dataset)))
    }
}

/// Muon for matrices, AdamW for vectors; the decoder is updated only when it has gradients.
fn optimization(settings: &Settings) -> Result<Optimization, WorkloadError> {
    let settings = OptimizerSettings::new(settings)?;
    let weight_decay = settings.weight_decay.unwrap_or(0.03);
    Ok(Optimization {
        optimizer: Optimizer {
            matrices: Some(Muon { momentum: 0.95, iterations: 5, weight_decay }),
            others: AdamW { weight_decay, ..AdamW::default() },
        },
        groups: vec![operator::PREFIX.to_owned(), decoder::PREFIX.to_owned()],
        learning_rate: settings.learning_rate.unwrap_or(1.4e-3),
        schedule: RateSchedule::CONSTANT,
        stages: Vec::new(),
        skip_non_finite: false,
        clip: None,
        average: Some(settings.average.unwrap_or(0.999)),
    })
}
