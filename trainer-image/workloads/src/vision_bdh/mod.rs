//! Vision-BDH: image classification by a recurrent, gated network whose attention has equal queries and keys, on
//! CIFAR-10 or generated images.

pub mod augment;
mod batches;
pub mod config;
pub mod device_images;
pub mod images;
pub mod model;
pub mod rope;

use crate::inference::Inference;
use crate::share::Share;
use crate::source::Source as DataSource;
use crate::workload::{Data, Job, Optimization, Programs, Request, Workload, WorkloadError};
use batches::Batches;
use config::{Augmentation, Config, DataConfig, ImageInput};
use images::Images;
use model::{Model, REGIONS};
use pawl_contract::settings::{Attention, MemoryFormat, ParameterLayout, Precision, RopeCache};
use pawl_graph::graph::DType;
use pawl_graph::optim::AdamW;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// The workload.
pub struct VisionBdh;

impl Workload for VisionBdh {
    fn name(&self) -> &'static str {
        "vision-bdh"
    }

    fn schema(&self) -> Value {
        schemars::schema_for!(Config).to_value()
    }

    fn settings(&self) -> &'static [&'static str] {
        &["memoryFormat", "ropeCache", "parameterLayout", "learningRate", "weightDecay", "ema", "workload"]
    }

    fn prepare(&self, request: &Request) -> Result<Box<dyn Job>, WorkloadError> {
        Ok(Box::new(VisionJob::new(request)?))
    }
}

/// A validated launch.
pub struct VisionJob {
    setup: Arc<VisionSetup>,
    programs: Arc<Programs>,
    optimization: Optimization,
}

/// Inputs of the batches.
#[derive(Debug)]
struct VisionSetup {
    config: Config,
    memory_format: MemoryFormat,
    share: Share,
}

impl VisionJob {
    /// Validates `request` and builds the programs.
    ///
    /// # Errors
    /// Names the field, the value and the remedy.
    pub fn new(request: &Request) -> Result<Self, WorkloadError> {
        let settings = &request.settings;
        if settings.attention() == Attention::Flash {
            let problem = "needs heads whose keys and values are equally wide, and here keys have one element per neuron and values one \
                           per element of a token: set Math; with 65 tokens the scores are small";
            return Err(WorkloadError::unsupported("attention", "Flash", problem));
        }
        let setup = VisionSetup::new(request)?;
        let model = Model {
            config: &setup.config.model,
            input: setup.config.data.input(),
            cropped: setup.config.data.augmentation == Augmentation::CropFlip,
            memory_format: setup.memory_format,
            parameter_layout: settings.parameter_layout(),
            rope_cached: settings.rope_cache() == RopeCache::Cached,
            products: match settings.precision() {
                Precision::Bf16 | Precision::Fp8 => DType::BF16,
                Precision::Fp16 => DType::F16,
                Precision::Fp32 | Precision::Tf32 => DType::F32,
            },
        };
        let programs = Programs {
            train: vec![model.training(setup.share.batch)?],
            evaluation: vec![model.evaluation(setup.share.evaluation_batch)?],
            regions: REGIONS,
        };
        let adamw = AdamW { weight_decay: 0.05, ..AdamW::default() };
        let optimization = Optimization::adamw(settings, adamw, 2e-4, setup.config.schedule.schedule())?;
        Ok(Self { setup: Arc::new(setup), programs: Arc::new(programs), optimization })
    }
}

impl VisionSetup {
    fn new(request: &Request) -> Result<Self, WorkloadError> {
        let settings = &request.settings;
        let config = Config::parse(&request.config, &settings.workload())?;
        let share = Share::new(request)?;
        Ok(Self { config, memory_format: settings.memory_format(), share })
    }
}

impl Job for VisionJob {
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
        self.setup.config.data.training as u64
    }

    fn metrics(&self) -> Vec<String> {
        batches::metrics([1.0; batches::SUMS]).into_keys().collect()
    }

    fn inference(&self, batch: usize) -> Result<Inference, WorkloadError> {
        // Layouts and tables change no number but by rounding.
        let model = Model {
            config: &self.setup.config.model,
            input: ImageInput::Prepared,
            cropped: false,
            memory_format: self.setup.memory_format,
            parameter_layout: ParameterLayout::Linear,
            rope_cached: true,
            products: DType::F32,
        };
        Ok(Inference::new(model.evaluation(batch)?, |_, _, word| word)?)
    }

    fn source(&self) -> DataSource {
        let data = &self.setup.config.data;
        let DataConfig { training, validation, test, seed, .. } = data;
        let images = json!({"training": training, "validation": validation, "test": test, "seed": seed});
        DataSource::of(data.directory.as_ref(), images)
    }

    fn open(&self, _root: &Path, progress: crate::store::OnProgress<'_>) -> Result<Arc<dyn Data>, WorkloadError> {
        let images = Images::open(&self.setup.config, progress)?;
        Ok(Arc::new(Batches::new(Arc::clone(&self.setup), Arc::clone(&self.programs), images)))
    }
}
