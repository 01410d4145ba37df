//! The command line of `pawl export`.

use clap::Args;
use pawl_trainer::checkpoint::Choice;
use pawl_trainer::export::Dtype;
use std::path::PathBuf;

/// `pawl export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The job: its manifest, the name of a job that was run here, a state directory, or a storage, such as the
    /// directory to which `kubectl pawl fetch` has copied a checkpoint and the records.
    #[arg(value_name = "JOB")]
    pub job: PathBuf,
    /// Output directory, which must not exist or be empty.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// The checkpoint: best, last, or its name.
    #[arg(long, value_name = "CHECKPOINT", default_value = "best")]
    pub checkpoint: Choice,
    /// Format of the weights. Default: fp32, as checkpoints have them. Built-in workloads only.
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// Export the weights themselves where evaluation uses their moving averages. Built-in workloads only.
    #[arg(long)]
    pub no_average: bool,
    /// Write the adapters of a language model alone, as PEFT reads them, instead of the merged weights.
    #[arg(long)]
    pub adapter: bool,
    /// Write the model also in ONNX's format, which other runtimes evaluate: model.onnx. Inputs, and the outputs that
    /// Pawl computes from them, are in onnx/example.safetensors. Built-in workloads only.
    #[arg(long)]
    pub onnx: bool,
    /// Where the initial weights of a language model are on this machine. Default: where workload.config.weights says.
    /// That their names and shapes are the same is checked, their values are not.
    #[arg(long, value_name = "DIR")]
    pub weights: Option<PathBuf>,
    /// Where the tokenizer of a language model that was trained on text is on this machine: its file, or the directory
    /// with it. Default: where workload.config.data.tokenizer says, or beside the initial weights.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    /// Upload the directory to this model of Hugging Face's Hub, or of the one in HF_ENDPOINT, by `hf upload`. A model
    /// that does not exist there is created.
    #[arg(long, value_name = "OWNER/NAME", value_parser = model)]
    pub push: Option<String>,
    /// Create the model so that it is not public. One that exists keeps its visibility.
    #[arg(long, requires = "push")]
    pub private: bool,
}

/// Checks that `text` names a model of a hub.
fn model(text: &str) -> Result<String, String> {
    let is_name = |part: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && part.chars().all(is_allowed)
    };
    match text.split_once('/') {
        Some((owner, name)) if is_name(owner) && is_name(name) => Ok(text.to_owned()),
        _ => Err("write OWNER/NAME, of letters, digits, '-', '_' and '.'".to_owned()),
    }
}
