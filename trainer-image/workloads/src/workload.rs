//! What the trainer needs to know of a system it trains.
//!
//! ```text
//! Workload --prepare(config, settings, seed, rank)--> Job --open(data directory)--> Data --train(At)--> Batch
//!   name, schema, settings                            programs, optimization        evaluation(i), metrics(sums)
//! ```
//!
//! Everything up to [`Job`] is pure and quick: preflight validates, builds the programs and predicts memory without any data.
//! Everything after it is a pure function of positions: a batch depends on how many items the gang has seen, not on who asks, in which
//! order, or how often. So resumption is exact, and N ranks see what one rank with N times the accumulation sees.

use pawl_contract::settings::Settings;
use pawl_graph::array::{Array, Data as Elements};
use pawl_graph::graph::{GraphError, InputDecl, Program};
use pawl_graph::optim::Optimizer;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A configuration, a setting or data that the workload cannot work with. The message names the field or file, the value and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A field of the workload's configuration, or of `settings.workload` laid over it.
    #[error("workload.config.{field}: {value} {problem}")]
    Config {
        /// Path of the field, such as `operator.heads`.
        field: String,
        /// Its value.
        value: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// No workload has this name.
    #[error("workload.name: {name} is not a workload: choose one of {known}")]
    UnknownWorkload {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A typed setting.
    #[error("settings.{field}: {value} {problem}")]
    Setting {
        /// Name of the setting, such as `batchPerGpu`.
        field: String,
        /// Its value.
        value: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The data cannot be opened or made.
    #[error("data: {0}")]
    Data(#[from] crate::store::StoreError),
    /// A loader thread panicked.
    #[error(
        "data: batch {number} could not be made: a loader thread panicked; this is a defect, its message is in the log"
    )]
    Worker {
        /// Number of the batch since the loader started.
        number: u64,
    },
    /// The model code made an ill-formed program; never the user's mistake.
    #[error("model: {0}")]
    Model(#[from] GraphError),
}

impl WorkloadError {
    /// A problem with the configuration's `field`.
    pub fn config(field: &str, value: &Value, problem: &str) -> Self {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Self::Config { field: field.to_owned(), value, problem: problem.to_owned() }
    }

    /// A problem with the setting `field`.
    pub fn setting(field: &str, value: impl std::fmt::Display, problem: impl Into<String>) -> Self {
        Self::Setting { field: field.to_owned(), value: value.to_string(), problem: problem.into() }
    }
}

/// What a launch asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// `spec.workload.config`.
    pub config: Map<String, Value>,
    /// The folded settings.
    pub settings: Settings,
    /// Seed of weights, data order and stochastic depth.
    pub seed: u64,
    /// This rank.
    pub rank: u32,
    /// Ranks in the gang.
    pub world: u32,
}

/// A system that can be trained.
pub trait Workload: Send + Sync {
    /// The name in manifests.
    fn name(&self) -> &'static str;

    /// JSON Schema of the configuration. `settings.workload` is a patch of the same shape, laid over it.
    fn schema(&self) -> Value;

    /// The typed settings (camelCase) that this workload gives a meaning to, beside those that act on any program. Preflight
    /// refuses a setting that neither it nor the workload knows.
    fn settings(&self) -> &'static [&'static str];

    /// Validates `request`; makes no data and touches no file.
    ///
    /// # Errors
    /// Names the field, the value and the remedy.
    fn prepare(&self, request: &Request) -> Result<Box<dyn Job>, WorkloadError>;
}

/// A validated launch of a workload.
pub trait Job: Send + Sync {
    /// The programs to compile.
    fn programs(&self) -> &Programs;

    /// How the parameters are updated.
    fn optimization(&self) -> &Optimization;

    /// Items per micro-step and rank.
    fn items_per_batch(&self) -> u32;

    /// Items of one epoch of the whole gang.
    fn items_per_epoch(&self) -> u64;

    /// Which of [`Programs::train`] the micro-step at `at` runs: cheap, and the same on every rank.
    fn variant(&self, at: At) -> usize;

    /// Frozen arrays, by name, that make checkpoints complete (an encoder, say). A run resumes only from a checkpoint that holds equal ones.
    fn extras(&self) -> Vec<(String, Array)>;

    /// Opens the data under `root`, making what is missing; `progress` is a sign of life (phase, done, total).
    ///
    /// # Errors
    /// When the disk refuses or a source file is missing or foreign.
    fn open(&self, root: &Path, progress: crate::store::OnProgress<'_>) -> Result<Arc<dyn Data>, WorkloadError>;
}

/// The programs of a job: forward passes. The trainer differentiates, accumulates, updates and compiles them.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Training variants. Each returns `loss` first, a float32 scalar: the mean over the micro-batch; other outputs are for the record.
    /// The states that learn are those with [`Role::Parameter`](pawl_graph::graph::Role::Parameter).
    pub train: Vec<Program>,
    /// Evaluation programs; their parameters are the averages where there are any.
    pub evaluation: Vec<Program>,
    /// Parts of them, by scope.
    pub regions: Regions,
}

/// Parts of the programs as patterns of scopes (see [`Pattern`](pawl_graph::passes::Pattern)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// What stays float32 under any `precision`.
    pub float32: &'static [&'static str],
    /// What `activationCheckpointing: Full` recomputes as one.
    pub blocks: &'static [&'static str],
    /// What may be recomputed separately: attention and MLP of each block.
    pub sublayers: &'static [&'static str],
    /// What is never kept for the backward pass, whatever `activationCheckpointing` says.
    pub rematerialized: &'static [&'static str],
}

/// How the parameters are updated: what the workload fills in of a [`Recipe`](pawl_graph::recipe::Recipe).
#[derive(Clone, Debug, PartialEq)]
pub struct Optimization {
    /// Which rule updates which parameter.
    pub optimizer: Optimizer,
    /// Prefixes of parameters that move only on steps of which a micro-step gave them a gradient: the trainer applies the update that
    /// belongs to the training variants that ran.
    pub groups: Vec<String>,
    /// Learning rate.
    pub learning_rate: f64,
    /// How the learning rate falls, after warm-up, over the items of the launch.
    pub decay: RateDecay,
    /// Largest norm of the gradient, unless `settings.gradientClip` says otherwise.
    pub clip: Option<f64>,
    /// Decay of the exponential moving average of the parameters, which evaluation reads.
    pub average: Option<f64>,
}

/// How a learning rate falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateDecay {
    /// Not at all.
    #[default]
    None,
    /// As half a period of a cosine, to 0 at the end of the launch.
    Cosine,
}

impl RateDecay {
    /// The factor of the learning rate after `items` of `total`.
    pub fn factor(self, items: u64, total: u64) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Cosine => {
                let done = (items as f64 / total.max(1) as f64).min(1.0);
                0.5 * (1.0 + libm::cos(std::f64::consts::PI * done))
            }
        }
    }
}

/// Where a micro-step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Items that the whole gang had seen when the optimizer step began.
    pub items: u64,
    /// Micro-step within the step, from 0.
    pub micro: u32,
}

/// The micro-steps of a run, endless, in order.
#[derive(Clone, Debug)]
pub struct Schedule {
    next: At,
    step_items: u64,
    accumulation: u32,
}

impl Schedule {
    /// From `items` seen items on, with `step_items` items per optimizer step of the gang, in `accumulation` micro-steps.
    pub fn new(items: u64, step_items: u64, accumulation: u32) -> Self {
        Self { next: At { items, micro: 0 }, step_items, accumulation }
    }
}

impl Iterator for Schedule {
    type Item = At;

    fn next(&mut self) -> Option<At> {
        let now = self.next;
        self.next.micro += 1;
        if self.next.micro >= self.accumulation {
            self.next = At { items: now.items + self.step_items, micro: 0 };
        }
        Some(now)
    }
}

/// The inputs of one run of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Index into [`Programs::train`] or [`Programs::evaluation`].
    pub program: usize,
    /// The program's inputs in their order, all of them.
    pub inputs: Vec<Array>,
}

impl Batch {
    /// Makes this one for program number `number`: buffers that fit are kept, others are zeros.
    ///
    /// # Errors
    /// When an input is declared with a shape that no array has.
    pub fn fit(&mut self, number: usize, program: &Program) -> Result<(), GraphError> {
        let like =
            |(array, decl): (&Array, &InputDecl)| *array.shape() == decl.meta.shape && array.dtype() == decl.meta.dtype;
        self.program = number;
        if self.inputs.len() != program.inputs.len() || !self.inputs.iter().zip(&program.inputs).all(like) {
            let zeros = |decl: &InputDecl| {
                let shape = decl.meta.shape.clone();
                let elements = Elements::zeros(decl.meta.dtype, shape.elements());
                Array::new(shape, elements)
            };
            self.inputs = program.inputs.iter().map(zeros).collect::<Result<_, _>>()?;
        }
        Ok(())
    }
}

/// Opened data of a job. All methods are pure; batches may be made on any thread, in any order.
pub trait Data: Send + Sync {
    /// Makes this rank's training batch at `at` in `batch`, whose buffers are used again where they fit.
    ///
    /// # Errors
    /// When the data cannot be read.
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError>;

    /// Number of evaluation batches of the validation split; ranks share them out.
    fn evaluations(&self) -> usize;

    /// Evaluation batch `index`.
    ///
    /// # Errors
    /// When the data cannot be read.
    fn evaluation(&self, index: usize) -> Result<Batch, WorkloadError>;

    /// Length of the vector of sums that [`Data::add`] adds to.
    fn sums(&self) -> usize;

    /// Adds what the program returned for evaluation batch `index` to `sums`. The sums of all batches (and ranks) make the metrics.
    fn add(&self, index: usize, outputs: &[Array], sums: &mut [f64]);

    /// The metrics; `loss` is always among them.
    fn metrics(&self, sums: &[f64]) -> BTreeMap<String, f64>;
}
