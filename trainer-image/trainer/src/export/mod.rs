//! Exports a trained model: its weights as `model.safetensors`, by the names that the workload gives them, and
//! `config.json`. A language model becomes a directory that Hugging Face libraries load. Other runtimes evaluate models
//! in ONNX's format.
//!
//! A checkpoint is read one shard at a time, and no GPU is needed: nothing runs but, on the CPU, the example of an ONNX
//! model.

mod language;
mod onnx;
mod record;
mod source;

pub use pawl_workloads::model_file::FloatFormat;

use crate::checkpoint::{Choice, Described, Store};
use crate::ending::Ending;
use crate::launch::read_plan;
use crate::workload::ending;
use pawl_contract::checkpoint::CheckpointRef;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::settings::Settings;
use pawl_durable::NewDirectory;
use pawl_graph::graph::{Init, Meta, Role, StateDecl};
use pawl_workloads::layered::overlay;
use pawl_workloads::model_file::{ModelFile, ModelFileError};
use pawl_workloads::slm::Slm;
use pawl_workloads::{Job, Request, Workload as _};
use serde_json::{Value, json};
use source::Source;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The file of the weights.
const WEIGHTS: &str = "model.safetensors";
/// What they are the weights of.
const CONFIG: &str = "config.json";

/// How a model is exported.
#[derive(Clone, Debug)]
pub struct Options {
    /// Format of the weights.
    pub format: FloatFormat,
    /// Whether the moving averages of the weights take their place, where the checkpoint has them: evaluations are made
    /// with these.
    pub averages: bool,
    /// Whether only the adapters of a language model are written, as PEFT has them, instead of the merged weights.
    pub adapter: bool,
    /// Whether the model is also written in ONNX's format.
    pub onnx: bool,
    /// Where the initial weights of a language model are now, if not in the directory of `workload.config.weights`.
    pub weights: Option<PathBuf>,
    /// Where the tokenizer of a language model that was trained on text is now, if not where
    /// `workload.config.data.tokenizer` says.
    pub tokenizer: Option<PathBuf>,
}

/// Format of exported weights, as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Dtype {
    /// 32-bit floats.
    Fp32,
    /// Brain floats of 16 bits.
    Bf16,
}

impl From<Dtype> for FloatFormat {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Fp32 => Self::F32,
            Dtype::Bf16 => Self::Bf16,
        }
    }
}

/// What was exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Its optimizer steps.
    pub step: u64,
    /// Its items.
    pub items: u64,
    /// Weights that are moving averages.
    pub averaged: usize,
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { checkpoint, step, items, averaged } = self;
        let weights = if *averaged > 0 { "the moving averages of the weights, as evaluated" } else { "the weights" };
        write!(f, "checkpoint {checkpoint}: step {step}, {items} items: {weights}")
    }
}

/// Exports a checkpoint of the storage at `checkpoints` by the plan in the file at `plan`; see [`export`].
///
/// # Errors
/// As [`export`], and when there is no such checkpoint.
pub fn plan_file(
    plan: &Path,
    checkpoints: &str,
    choice: &Choice,
    options: &Options,
    to: &Path,
) -> Result<Exported, Ending> {
    let plan = read_plan(plan)?;
    let store = Store::open(checkpoints)?;
    export(&plan, &store, &store.choose(choice)?, options, to)
}

/// Exports the checkpoint `found` in `store`, which a launch of `plan` has written, to the directory `to`, which
/// appears at once and complete.
///
/// # Errors
/// [`Ending::InvalidPlan`] when the checkpoint is of another plan, an option has no meaning for the workload, or `to`
/// is anything but an empty directory; [`Ending::CheckpointUnreadable`] when a file of the checkpoint differs from its
/// hash; when writing fails. `to` is then unchanged.
pub fn export(
    plan: &LaunchPlan,
    store: &Store,
    found: &Described,
    options: &Options,
    to: &Path,
) -> Result<Exported, Ending> {
    let name = plan.workload.name.as_deref().unwrap_or_default();
    let request = request(plan, options);
    onnx::check(options)?;
    let source = Source::of(plan, store, found, options.averages)?;
    let new = NewDirectory::at(to).map_err(|error| unusable(to, &error))?;
    let (averaged, file) = if name == Slm.name() {
        (language::export(&request, &source, options, new.path())?, language::RECORD)
    } else {
        (other(name, &request, &source, options, new.path())?, CONFIG)
    };
    if options.onnx {
        onnx::write(name, &request, new.path())?;
    }
    write(&new.path().join(file), &record::of(plan, found, options, averaged))?;
    new.commit().map_err(|error| unusable(to, &error))?;
    let CheckpointRef { name, step, items } = found.reference.clone();
    Ok(Exported { checkpoint: name, step, items, averaged })
}

/// The launch of `plan` as one rank: what is exported does not depend on the size of its gang.
fn request(plan: &LaunchPlan, options: &Options) -> Request {
    let mut config = plan.workload.config.clone();
    // It may not be divisible among other numbers of ranks.
    let mut settings = Settings { global_batch: None, ..plan.settings.clone() };
    if let Some(weights) = &options.weights {
        config.insert("weights".to_owned(), Value::from(weights.to_string_lossy()));
        settings.workload.iter_mut().for_each(|patch| drop(patch.remove("weights")));
    }
    if let Some(tokenizer) = &options.tokenizer {
        let named = json!({"tokenizer": tokenizer.to_string_lossy()});
        overlay(config.entry("data").or_insert_with(|| json!({})), &named);
        let patches = settings.workload.iter_mut().filter_map(|patch| patch.get_mut("data")?.as_object_mut());
        patches.for_each(|data| drop(data.remove("tokenizer")));
    }
    Request { config, settings, seed: plan.seed, rank: 0, world: 1 }
}

/// Exports the model of a workload that is no language model. Returns the number of averages.
fn other(name: &str, request: &Request, source: &Source<'_>, options: &Options, to: &Path) -> Result<usize, Ending> {
    if options.adapter || options.weights.is_some() || options.tokenizer.is_some() {
        let only = "--adapter, --weights and --tokenizer are for language models (workload.name: slm): leave them out";
        return Err(Ending::InvalidPlan(format!("workload.name: {name}: {only}")));
    }
    let job = pawl_workloads::workload(name).and_then(|workload| workload.prepare(request)).map_err(ending)?;
    stream(job.as_ref(), &states(job.as_ref()), source, options.format, &to.join(WEIGHTS))
}

/// What a model consists of, in the order of names: all that training changes, and the frozen arrays of checkpoints.
fn states(job: &dyn Job) -> Vec<StateDecl> {
    let programs = job.programs();
    let all = programs.train.iter().chain(&programs.evaluation).flat_map(|program| &program.states);
    let trained = all.filter(|decl| matches!(decl.role, Role::Parameter | Role::Buffer));
    let mut states: BTreeMap<String, StateDecl> = trained.map(|decl| (decl.name.clone(), decl.clone())).collect();
    for (name, array) in job.extras() {
        let meta = Meta::new(array.dtype(), array.shape());
        states.entry(name.clone()).or_insert(StateDecl { name, meta, role: Role::Frozen, init: Init::Array(array) });
    }
    states.into_values().collect()
}

/// Writes the trained values of `states` to the file at `path`, as they are read. Returns the number of averages.
fn stream(
    job: &dyn Job,
    states: &[StateDecl],
    source: &Source<'_>,
    format: FloatFormat,
    path: &Path,
) -> Result<usize, Ending> {
    let names: HashSet<&str> = states.iter().map(|decl| decl.name.as_str()).collect();
    let mut file = ModelFile::create(path, states, format).map_err(of_file)?;
    let averaged =
        source.each(job, &|name| names.contains(name), &mut |name, array| file.write(name, &array).map_err(of_file))?;
    file.finish().map_err(of_file)?;
    Ok(averaged)
}

/// Writes a JSON file.
fn write(path: &Path, content: &Value) -> Result<(), Ending> {
    let text = format!("{content:#}\n");
    pawl_durable::write(path, text.as_bytes()).map_err(|error| failed(format!("{}: {error}", path.display()), &error))
}

fn of_file(error: ModelFileError) -> Ending {
    let message = error.to_string();
    match error {
        ModelFileError::Io { source, .. } => failed(message, &source),
        ModelFileError::Missing(_) | ModelFileError::Other { .. } => Ending::InvalidPlan(message),
    }
}

/// The end of an export to the directory `to`, which cannot be created.
pub fn unusable(to: &Path, error: &io::Error) -> Ending {
    let invalid = |problem: &str| Ending::InvalidPlan(format!("{}: {problem}", to.display()));
    if error.kind() == io::ErrorKind::AlreadyExists {
        return invalid("exists already, and nothing is overwritten: choose another directory, or an empty one");
    }
    if error.kind() == io::ErrorKind::InvalidInput {
        return invalid("does not end in a name: write that of the directory to create");
    }
    failed(format!("{}: {error}: choose another directory", to.display()), error)
}

/// The end of an export that could not be written.
fn failed(message: String, error: &io::Error) -> Ending {
    match Outcome::of_error(error) == Outcome::StorageFull {
        true => Ending::StorageFull(message),
        false => Ending::Failed(message),
    }
}
