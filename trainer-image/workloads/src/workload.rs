//! The interface between the trainer and a workload.
//!
//! ```text
//! Workload --prepare(config, settings, seed, rank)--> Job --open(data directory)--> Data --train(At)--> Batch
//!   name, schema, settings                            programs, optimization        evaluation(i), metrics(sums)
//! ```
//!
//! Everything up to [`Job`] is pure and fast: preflight validates, builds the programs and predicts memory without any
//! data. Everything after it is a pure function of positions: a batch depends on the number of items that the gang has
//! seen, not on the caller, the order or the number of calls. So resuming is exact, and N ranks see the same data as
//! one rank with N times the accumulation.

use crate::inference::Inference;
use crate::schedule::RateSchedule;
use crate::source::Source;
use pawl_contract::settings::Settings;
use pawl_graph::array::{Array, Data as Elements};
use pawl_graph::graph::{GraphError, InputDecl, Program};
use pawl_graph::optim::Optimizer;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A configuration, a setting or data that the workload does not support. The message names the field or file, the
/// value and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A field of the workload's configuration, or of `settings.workload`, which overrides it.
    #[error("workload.config.{field}: {value} {problem}")]
    Config {
        /// Path of the field, such as `operator.heads`.
        field: String,
        /// Its value.
        value: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// A file that the configuration names cannot be read here. Where the ranks run it may be another matter.
    #[error("workload.config.{field}: {value} {problem}")]
    File {
        /// Path of the field, such as `data.tokenizer`.
        field: String,
        /// The file.
        value: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// No workload has this name.
    #[error("workload.name: {name} is not a workload: {remedy}")]
    UnknownWorkload {
        /// The requested name.
        name: String,
        /// The known names, and the one that was probably meant.
        remedy: String,
    },
    /// A typed setting.
    #[error("settings.{field}: {value} {problem}")]
    Setting {
        /// Name of the setting, such as `batchPerGpu`.
        field: String,
        /// Its value.
        value: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// A typed setting that has no implementation for this workload: a phase with it is not applied, and the job
    /// continues.
    #[error("settings.{field}: {value} {problem}")]
    Unsupported {
        /// Name of the setting, such as `attention`.
        field: String,
        /// Its value.
        value: String,
        /// The reason and the remedy.
        problem: String,
    },
    /// The data cannot be opened or generated.
    #[error("data: {0}")]
    Data(#[from] crate::store::StoreError),
    /// A loader thread panicked.
    #[error(
        "data: batch {number} could not be made: a loader thread panicked; this is a bug, its message is in the log"
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

    /// The file at `path`, which the configuration's `field` names, cannot be read.
    pub fn file(field: &str, path: &Path, problem: impl Into<String>) -> Self {
        Self::File { field: field.to_owned(), value: path.display().to_string(), problem: problem.into() }
    }

    /// A problem with the setting `field`.
    pub fn setting(field: &str, value: impl std::fmt::Display, problem: impl Into<String>) -> Self {
        Self::Setting { field: field.to_owned(), value: value.to_string(), problem: problem.into() }
    }

    /// The setting `field` has no implementation for `value` in this workload.
    pub fn unsupported(field: &str, value: impl std::fmt::Display, problem: impl Into<String>) -> Self {
        Self::Unsupported { field: field.to_owned(), value: value.to_string(), problem: problem.into() }
    }
}

/// Request for a job.
#[derive(Clone, Debug)]
pub struct Request {
    /// `spec.workload.config`.
    pub config: Map<String, Value>,
    /// The merged settings.
    pub settings: Settings,
    /// Seed of weights, data order and stochastic depth.
    pub seed: u64,
    /// This rank.
    pub rank: u32,
    /// Ranks in the gang.
    pub world: u32,
}

/// A workload that can be trained.
pub trait Workload: Send + Sync {
    /// The name in manifests.
    fn name(&self) -> &'static str;

    /// JSON Schema of the configuration. `settings.workload` is a patch with the same schema, which overrides it.
    fn schema(&self) -> Value;

    /// The typed settings (camelCase) that this workload supports, beside those that apply to any program. Preflight
    /// rejects a setting that only other workloads list.
    fn settings(&self) -> &'static [&'static str];

    /// Validates `request`; generates no data, and reads no file but those that describe a model, such as the headers
    /// of its weights.
    ///
    /// # Errors
    /// Names the field, the value and the remedy; [`WorkloadError::File`] comes after all errors that need no file.
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

    /// Names of the metrics that its evaluations report: those of [`Data::metrics`].
    fn metrics(&self) -> Vec<String>;

    /// Index of the program in [`Programs::train`] that the micro-step at `at` runs: cheap, and equal on every rank.
    fn variant(&self, _at: At) -> usize {
        0
    }

    /// Frozen arrays by name, such as an encoder, that are stored in checkpoints. A run resumes only from a checkpoint
    /// with equal ones.
    fn extras(&self) -> Vec<(String, Array)> {
        Vec::new()
    }

    /// The model for `batch` windows, images, states, or dates with all their samples, whatever the batches of the
    /// launch. Its states are those of the programs, by their names; settings say its precision.
    ///
    /// # Errors
    /// Only on a bug in the model's code.
    fn inference(&self, batch: usize) -> Result<Inference, WorkloadError>;

    /// What the data are; no file is accessed.
    fn source(&self) -> Source;

    /// Fails where the files of [`Self::source`] cannot be read, so that a preflight finds it.
    ///
    /// # Errors
    /// [`WorkloadError::File`].
    fn require_source(&self) -> Result<(), WorkloadError> {
        let Source::Files(path) = self.source() else { return Ok(()) };
        std::fs::metadata(&path).map(drop).map_err(|error| {
            let problem = format!(
                "cannot be read: {error}: correct the path, or mount its volume by \
                 trainer.podTemplate.volumes and volumeMounts"
            );
            WorkloadError::file("data.directory", &path, problem)
        })
    }

    /// Opens the data under `root`, and generates what is missing; `progress` reports (phase, done, total) as a
    /// heartbeat.
    ///
    /// # Errors
    /// When an I/O operation fails, or a source file is missing or invalid.
    fn open(&self, root: &Path, progress: crate::store::OnProgress<'_>) -> Result<Arc<dyn Data>, WorkloadError>;
}

/// The programs of a job: forward passes. The trainer differentiates, accumulates, updates and compiles them.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Training variants. Each returns `loss` first, a float32 scalar: the mean over the micro-batch; other outputs are
    /// informational. The trainable states are those with [`Role::Parameter`](pawl_graph::graph::Role::Parameter).
    pub train: Vec<Program>,
    /// Evaluation programs; their parameters are the averages where there are any.
    pub evaluation: Vec<Program>,
    /// Parts of them, by scope.
    pub regions: Regions,
}

/// Parts of the programs as patterns of scopes (see [`Pattern`](pawl_graph::passes::Pattern)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// Regions that stay float32 under any `precision`.
    pub float32: &'static [&'static str],
    /// Scopes whose products with weights are over 8-bit floats with `precision: fp8`, each named entirely: linear
    /// layers of blocks, not the first and the last of the model. Without any, the workload does not support it.
    pub float8: &'static [&'static str],
    /// Regions that `activationCheckpointing: Full` recomputes, each as a whole: the blocks. Without any, the workload
    /// does not support it.
    pub blocks: &'static [&'static str],
    /// Regions that `activationCheckpointing: Selective` recomputes, each as a whole: attention and MLP of each block.
    /// Without any, the workload does not support it.
    pub sublayers: &'static [&'static str],
    /// Regions that are always recomputed in the backward pass, regardless of `activationCheckpointing`.
    pub rematerialized: &'static [&'static str],
}

/// How the parameters are updated: the workload's part of a [`Recipe`](pawl_graph::recipe::Recipe).
#[derive(Clone, Debug, PartialEq)]
pub struct Optimization {
    /// Update rule of each parameter.
    pub optimizer: Optimizer,
    /// Prefixes of parameters that are updated only in steps in which a micro-step gave them a gradient: the trainer
    /// applies the update of the training variants that ran.
    pub groups: Vec<String>,
    /// Learning rate.
    pub learning_rate: f64,
    /// Learning-rate schedule over the launch; `settings.warmupSteps` overrides its warm-up.
    pub schedule: RateSchedule,
    /// Factors of the learning rate besides the schedule, each from a number of seen items on, ascending.
    pub stages: Vec<(u64, f64)>,
    /// Whether a step whose gradient is not finite changes nothing; the launch ends when several are skipped in a row.
    pub skip_non_finite: bool,
    /// Maximum norm of the gradient, unless `settings.gradientClip` overrides it.
    pub clip: Option<f64>,
    /// Decay of the exponential moving average of the parameters, which evaluation reads.
    pub average: Option<f64>,
}

impl Optimization {
    /// The factor of the learning rate in the stage of the update after `items`.
    pub fn stage_factor(&self, items: u64) -> f64 {
        self.stages.iter().rev().find(|(start, _)| *start <= items).map_or(1.0, |(_, factor)| *factor)
    }
}

/// Position of a micro-step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Items that the whole gang had seen when the optimizer step began.
    pub items: u64,
    /// Micro-step within the step, from 0.
    pub micro: u32,
}

/// The micro-steps of a run in order, an infinite sequence.
#[derive(Clone, Debug)]
pub struct Schedule {
    next: At,
    step_items: u64,
    accumulation: u32,
}

impl Schedule {
    /// From `items` seen items on, with `step_items` items per optimizer step of the gang, in `accumulation`
    /// micro-steps.
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
    /// All inputs of the program, in order.
    pub inputs: Vec<Array>,
}

impl Batch {
    /// Prepares this batch for program `number`: buffers of the right shape are reused, others are zeroed.
    ///
    /// # Errors
    /// When an input is declared with an invalid shape.
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
    /// Writes this rank's training batch at `at` to `batch`, whose buffers are reused where they fit.
    ///
    /// # Errors
    /// When the data cannot be read.
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError>;

    /// The states of [`Role::Data`](pawl_graph::graph::Role::Data) by name, which the trainer writes once: data that
    /// are kept on the device. Batches are then positions in them.
    ///
    /// # Errors
    /// When the data cannot be read.
    fn resident(&self) -> Result<Vec<(String, Array)>, WorkloadError> {
        Ok(Vec::new())
    }

    /// Number of evaluation batches of the validation split, distributed over the ranks.
    fn evaluations(&self) -> usize;

    /// Evaluation batch `index`.
    ///
    /// # Errors
    /// When the data cannot be read.
    fn evaluation(&self, index: usize) -> Result<Batch, WorkloadError>;

    /// Length of the vector of sums that [`Data::add`] adds to.
    fn sums(&self) -> usize;

    /// Adds the program's outputs for evaluation batch `index` to `sums`. The metrics are computed from the sums of all
    /// batches (and ranks).
    fn add(&self, index: usize, outputs: &[Array], sums: &mut [f64]);

    /// The metrics, which always include `loss`, under the names that [`Job::metrics`] lists.
    fn metrics(&self, sums: &[f64]) -> BTreeMap<String, f64>;

    /// The same data with the test split in place of the validation split; `None` where there is no test split. At the
    /// end of the training the trainer evaluates it once, with the weights of the best checkpoint.
    fn test_split(&self) -> Option<Arc<dyn Data>> {
        None
    }
}
