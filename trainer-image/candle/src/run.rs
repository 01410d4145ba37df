//! A launch as the program sees it.

use crate::Optimizer;
use crate::average::Average;
use crate::error::{Error, Result};
use crate::hardware;
use crate::init::Seeded;
use crate::rank::Core;
use crate::record::Record;
use crate::settings::Reader;
use crate::training::Training;
use candle_core::{DType, Device};
use candle_nn::{VarBuilder, VarMap};
use pawl_contract::CONTRACT_VERSION;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{Budget, LaunchKind, LaunchPlan, WorkloadPlan};
use pawl_contract::progress::Progress;
use pawl_contract::report::Report;
use pawl_contract::settings::Settings;
use pawl_launch::collective::Gang;
use pawl_launch::ending::Ending;
use pawl_launch::launch::{Launch, data_directory};
use pawl_launch::metrics::Metrics;
use pawl_launch::place::Place;
use pawl_launch::progress::Publisher;
use pawl_launch::signals::StopRequest;
use pawl_launch::{checkpoint, connect, process, report};
use serde::de::DeserializeOwned;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Runs `train` as a launch of Pawl: reads the plan, and writes the report when `train` returns or fails. The exit code
/// is that of the contract. Without a plan, by hand, one epoch is trained and nothing is written.
///
/// ```
/// // A program is one function: `fn main() -> ExitCode { pawl_candle::main(train) }`.
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, ParamsAdamW, VarMap, linear, loss};
/// use pawl_candle::{AdamW, Result, Run};
///
/// fn train(run: &mut Run) -> Result<()> {
///     let batch = run.batch_size(8);
///     let lr = run.setting("learningRate")?.unwrap_or(0.05);
///     let device = run.device().clone();
///     // y = 3 x + 1
///     let x = Tensor::arange(0f32, 64., &device)?.reshape((64, 1))?.affine(1. / 64., 0.)?;
///     let y = x.affine(3., 1.)?;
///     let vars = VarMap::new();
///     let model = linear(1, 1, run.var_builder(&vars, DType::F32))?;
///     let evaluate = || Ok([("loss", f64::from(loss::mse(&model.forward(&x)?, &y)?.to_scalar::<f32>()?))]);
///
///     let optimizer = AdamW::over(&vars, ParamsAdamW { lr, ..ParamsAdamW::default() })?;
///     let mut training = run.training(&vars, optimizer, 64)?;
///     while training.next(evaluate)? {
///         for _ in 0..training.accumulation_steps() {
///             let (x, y) = training.load(|indices| {
///                 let indices = Tensor::new(indices, &device)?;
///                 Ok((x.index_select(&indices, 0)?, y.index_select(&indices, 0)?))
///             })?;
///             assert_eq!(x.dims(), [batch as usize, 1]);
///             training.backward(&loss::mse(&model.forward(&x)?, &y)?)?;
///         }
///         training.step()?;
///     }
///     Ok(())
/// }
///
/// assert_eq!(pawl_candle::main(train), std::process::ExitCode::SUCCESS);
/// ```
pub fn main(train: impl FnOnce(&mut Run) -> Result<()>) -> ExitCode {
    let by_hand = std::env::var_os(pawl_contract::env::PLAN).is_none();
    let launch = if by_hand { Ok(by_hand_launch()) } else { Launch::from_env() };
    process::run(launch, |launch, stop, started| {
        let result = Run::new(launch, stop, by_hand).map(|mut run| {
            let result = train(&mut run);
            (run, result)
        });
        let wall = || started.elapsed();
        match result {
            Ok((run, result)) => run.report(result, started),
            Err(error) => {
                let ending = Ending::from(error);
                report::bare(&launch.plan, launch.rank, ending.outcome(), ending.to_string(), wall())
            }
        }
    })
}

fn by_hand_launch() -> Launch {
    let plan = LaunchPlan {
        contract: CONTRACT_VERSION,
        job: "by-hand".to_owned(),
        attempt: "by-hand-1".to_owned(),
        launch: "by-hand".to_owned(),
        title: String::new(),
        kind: LaunchKind::Train,
        workload: WorkloadPlan { name: None, config: serde_json::Map::new() },
        settings: Settings::default(),
        seed: 42,
        budget: Budget { epochs: Some(1), ..Budget::default() },
        checkpoint: None,
        hang_timeout_seconds: 600.0,
    };
    let data = data_directory();
    Launch { plan, rank: 0, world_size: 1, report: None, progress: None, checkpoints: None, data, metrics: None }
}

/// A launch: its settings, its device, its ranks. [`Run::training`] begins the loop.
pub struct Run {
    pub(crate) core: Core,
    record: Option<Record>,
}

impl Run {
    fn new(launch: &Launch, stop: &StopRequest, by_hand: bool) -> Result<Self> {
        let plan = &launch.plan;
        let metrics = Metrics::new().map_err(|e| Ending::Failed(format!("metrics: {e}")))?;
        let publisher =
            Publisher::new((&plan.launch, plan.kind), launch.progress.clone(), launch.metrics.clone(), metrics);
        publisher.publish(Progress::at_start(&plan.launch, plan.kind));
        let preflight = plan.kind == LaunchKind::Preflight;
        let device = hardware::open(Place::from_env()?, preflight)?;
        if let (true, Some(_), Some(url)) = (preflight, &plan.checkpoint, &launch.checkpoints) {
            checkpoint::probe(url).map_err(|error| Ending::unusable(&error))?;
        }
        // A preflight checks the settings of the whole gang with one rank.
        let (gang, average) = if preflight {
            let gang = Arc::new(Gang::alone());
            (Arc::clone(&gang), Average::Tcp(gang))
        } else {
            let mut average = None;
            let gang = connect::gang(launch, |exchange, deadline| {
                average = hardware::meet(&device, launch, exchange, deadline)?;
                Ok(())
            })?;
            let gang = Arc::new(gang);
            (Arc::clone(&gang), average.unwrap_or(Average::Tcp(gang)))
        };
        let settings = Reader::from_env(&plan.settings)?;
        let (launch, given) = (launch.clone(), plan.settings.clone());
        let gpu = hardware::Watch::of(&device);
        let core = Core { launch, stop: stop.clone(), by_hand, device, gpu, settings, given, publisher, gang, average };
        Ok(Self { core, record: None })
    }

    /// Whether the program was started without Pawl.
    pub fn is_by_hand(&self) -> bool {
        self.core.by_hand
    }

    /// Purpose of the launch.
    pub fn kind(&self) -> LaunchKind {
        self.core.launch.plan.kind
    }

    /// Seed of weights and data order; 42 by hand.
    pub fn seed(&self) -> u64 {
        self.core.launch.plan.seed
    }

    /// This rank, `0..world_size`.
    pub fn rank(&self) -> u32 {
        self.core.launch.rank
    }

    /// Number of ranks, at least 1. Each trains on items of its own; gradients are averaged.
    pub fn world_size(&self) -> u32 {
        self.core.launch.world_size
    }

    /// Device of this rank.
    pub fn device(&self) -> &Device {
        &self.core.device
    }

    /// Directory in which the program may keep generated data.
    pub fn data(&self) -> &Path {
        &self.core.launch.data
    }

    /// `workload.config` of the manifest; fields that are absent there have the defaults of `T`.
    ///
    /// # Errors
    /// [`Ending::InvalidPlan`] when it has another form.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T> {
        let config = self.core.launch.plan.workload.config.clone();
        serde_json::from_value(config.into()).map_err(|error| Error::invalid(format!("workload.config: {error}")))
    }

    /// The value of a setting by its name in the manifest, such as `learningRate` or `workload.hidden`; `None` when the
    /// manifest does not set it. A setting that the program never reads is Unsupported.
    ///
    /// # Errors
    /// [`Ending::Unsupported`] when `T` has no such value: the program does not support it. [`Ending::InvalidPlan`]
    /// when there is no setting of this name.
    pub fn setting<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        self.core.settings.get(name)
    }

    /// The value of a setting with choices, such as `precision`, which must be one of `supported`; the first one is the
    /// default.
    ///
    /// # Errors
    /// [`Ending::Unsupported`] when it is another one.
    pub fn one_of(&self, name: &str, supported: &[&str]) -> Result<String> {
        let default = supported.first().copied().unwrap_or_default();
        let value = self.setting::<String>(name)?.unwrap_or_else(|| default.to_owned());
        if supported.contains(&value.as_str()) {
            return Ok(value);
        }
        let choices = supported.join(", ");
        Err(Error::unsupported(format!(
            "settings.{name}: {value} is not supported by this program: choose one of {choices}"
        )))
    }

    /// Items per rank and micro-step: the setting `batchPerGpu`, or else `default`.
    pub fn batch_size(&mut self, default: u32) -> u32 {
        *self.core.given.batch_per_gpu.get_or_insert(default.max(1))
    }

    /// Builds layers whose variables are added to `vars`, with weights that are a function of the seed and their names.
    /// (Those of `VarBuilder::from_varmap` differ from launch to launch, so that losses cannot be compared.)
    pub fn var_builder(&self, vars: &VarMap, dtype: DType) -> VarBuilder<'static> {
        let backend = Box::new(Seeded { vars: vars.clone(), seed: self.seed() });
        VarBuilder::from_backend(backend, dtype, self.core.device.clone())
    }

    /// Begins training `vars` on data of `items` items, from the checkpoint if there is one.
    ///
    /// The settings `batchPerGpu`, `accumulationSteps`, `globalBatch` and `gradientClip` take effect here; all others
    /// must have been read.
    ///
    /// # Errors
    /// [`Ending::Unsupported`] when a setting was not read; [`Ending::InvalidPlan`] when settings contradict each
    /// other, or the checkpoint is of another model; when a rank or the storage fails.
    pub fn training<O: Optimizer>(&mut self, vars: &VarMap, optimizer: O, items: u64) -> Result<Training<'_, O>> {
        Training::begin(&self.core, &mut self.record, vars, optimizer, items)
    }

    fn report(mut self, result: Result<()>, started: Instant) -> Report {
        let (launch, kind) = (&self.core.launch, self.core.launch.plan.kind);
        let result = match (result.map_err(Ending::from), &self.record) {
            (Ok(()), Some(record)) if record.ended => Ok(()),
            (Ok(()), _) => Err(Ending::Unsupported(
                "the program ended before its launch: loop until training.next() returns false".to_owned(),
            )),
            (Err(ending), _) => Err(ending),
        };
        let wall = started.elapsed();
        let Some(record) = &mut self.record else {
            let (outcome, message) = match &result {
                Ok(()) => (Outcome::Done, String::new()),
                Err(ending) => (ending.outcome(), ending.to_string()),
            };
            return report::bare(&launch.plan, launch.rank, outcome, message, wall);
        };
        if let (Err(_), Some(saver)) = (&result, &mut record.saver) {
            saver.finish();
        }
        let mut report = record.report(launch, result, wall);
        report.measured.disturbance = self.core.gpu.disturbance();
        if kind == LaunchKind::Preflight {
            report.measured.peak_memory_bytes = None;
        }
        report
    }
}
