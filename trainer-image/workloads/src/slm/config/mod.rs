//! The configuration of the language model: a size, and overrides of it.

mod rules;

use super::architecture::{Architecture, Method, Projection, Size};
use super::config_json;
use super::split::Split;
use super::tokenizer::Tokenizer;
use crate::layered;
use crate::workload::WorkloadError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The adapters of `method: Lora`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoraConfig {
    /// Rank r of every adapter.
    pub rank: usize,
    /// Adapters are scaled by alpha / r.
    pub alpha: f64,
    /// Dropout probability of an adapter's inputs.
    pub dropout: f64,
    /// The matrices with an adapter.
    pub targets: Vec<Projection>,
}

/// Source of the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Source {
    /// A generated stream with structure of order 2 and Zipf noise.
    Markov,
    /// Text files below `data.directory`, tokenized by `data.tokenizer`; without one, tokens are bytes, and 256 is the
    /// end of a document.
    Text,
    /// `train.bin` and `validation.bin` in `data.directory`: little-endian 32-bit ids, one after the other.
    Tokens,
    /// Generated dialogues of doctor and patient that end in the code of a diagnosis; the prompt is the part before it.
    /// With 12,000,000 `data.tokens` and a vocabulary of at least 8,000: 10,000 documents of 1,167 tokens on average
    /// and 2,000 codes; fewer and shorter ones with less. Each validation document is evaluated in a row of its own,
    /// which gives `top1`, `top3`, `top5` and `macroF1` of its code.
    Dialogues,
}

/// Content of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Layout {
    /// `sequence` tokens from anywhere: documents one after the other, each with its end.
    Packed,
    /// One document, truncated to `sequence` tokens (dialogues at their beginning, text at its end) and padded; padding
    /// does not count. For comparison with Packed.
    Padded,
}

/// The data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataConfig {
    /// Source of the tokens.
    pub source: Source,
    /// The directory for `source: Text` and `source: Tokens`.
    pub directory: Option<String>,
    /// The `tokenizer.json` for `source: Text`, or a directory that contains it. Default: the one beside `weights`, if
    /// any.
    pub tokenizer: Option<String>,
    /// Content of an item; Padded needs documents, as in `source: Text` and `source: Dialogues`.
    pub layout: Layout,
    /// Whether prompts are masked in the loss, with `source: Dialogues`. The loss of a step is the mean over all
    /// targets that count.
    pub mask_prompt: bool,
    /// Maximum total number of tokens.
    pub tokens: usize,
    /// Seed of the stream and of the split; the seed of a launch changes neither.
    pub seed: u64,
}

impl DataConfig {
    /// Whether the items of a split are documents. Dialogues are always evaluated by document: the metrics are of their
    /// codes.
    pub fn by_document(&self, split: Split) -> bool {
        self.layout == Layout::Padded || (self.source == Source::Dialogues && split == Split::Validation)
    }
}

/// The loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LossConfig {
    /// Tokens whose logits are in memory at once; 0 for as many as fit in 512 MiB in 16 bits.
    pub chunk: usize,
}

/// The evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Number of evaluated windows, from the beginning of the validation split; documents with `source: Dialogues` or
    /// `layout: Padded`.
    pub windows: usize,
}

/// The configuration of a run, complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Size of the model, and defaults of the other fields. With `config.json` beside `weights`, that says the size.
    pub size: Size,
    /// Trainable parameters.
    pub method: Method,
    /// Tokens of a window: an item is one window.
    pub sequence: usize,
    /// The model.
    pub architecture: Architecture,
    /// The adapters.
    pub lora: LoraConfig,
    /// A directory with weights in Hugging Face's layout (`model.safetensors`, or shards and their index), whose
    /// `config.json` says the architecture: Llama, Qwen 2, 2.5 and 3, Gemma 1 and 3 (text). Default: random weights.
    pub weights: Option<String>,
    /// The data.
    pub data: DataConfig,
    /// The loss.
    pub loss: LossConfig,
    /// The evaluation.
    pub evaluation: EvaluationConfig,
}

impl Size {
    /// The complete default configuration of the size.
    pub fn config(self) -> Value {
        let (method, sequence) = match self {
            Self::Tiny => (Method::Full, 64),
            Self::M125 => (Method::Full, 1024),
            Self::B1 => (Method::Lora, 1024),
            Self::B3 => (Method::Lora, 512),
            Self::B8 => (Method::Lora, 256),
        };
        json!({
            "size": self,
            "method": method,
            "sequence": sequence,
            "architecture": Architecture::of(self),
            "lora": {"rank": 64, "alpha": 128.0, "dropout": 0.1, "targets": ["q", "k", "v", "o", "gate", "up", "down"]},
            "weights": null,
            "data": {
                "source": "Markov", "directory": null, "tokenizer": null, "layout": "Packed", "maskPrompt": false,
                "tokens": 4_000_000, "seed": 42,
            },
            "loss": {"chunk": 0},
            "evaluation": {"windows": 128},
        })
    }
}

impl Config {
    /// Reads `config` (`spec.workload.config`), overridden by `patch` (`settings.workload`), both over the defaults of
    /// their size.
    ///
    /// # Errors
    /// Names the field, the value and the remedy.
    pub fn parse(config: &Map<String, Value>, patch: &Map<String, Value>) -> Result<Self, WorkloadError> {
        let asked = layered::asked(config, patch);
        let problem = "is not a size: choose tiny, 125m, 1b, 3b or 8b (in quotes)";
        let size = layered::preset(&asked, "size", Size::B8, problem)?;
        let of_weights = Self::of_weights(&asked)?;
        let mut preset = size.config();
        if let Some(of_weights) = &of_weights {
            let sized = asked.get("size").map(|_| of_weights.with_sizes_of(&Architecture::of(size)));
            preset["architecture"] = json!(sized.as_ref().unwrap_or(of_weights));
        }
        let config: Self = layered::parse(&layered::over(preset, &asked))?;
        config.validate()?;
        of_weights.map_or(Ok(()), |of_weights| config.fits(&of_weights))?;
        Ok(config)
    }

    /// The architecture of the weights that `asked` names, if their directory says it.
    fn of_weights(asked: &Value) -> Result<Option<Architecture>, WorkloadError> {
        let Some(directory) = asked.get("weights").and_then(Value::as_str).map(Path::new) else { return Ok(None) };
        let fields = config_json::read(directory)?;
        fields.map(|fields| config_json::architecture(directory, fields)).transpose()
    }

    /// Refuses an architecture, asked for by `size` or `architecture`, that is not the one of the weights.
    fn fits(&self, of_weights: &Architecture) -> Result<(), WorkloadError> {
        let (asked, found) = (json!(self.architecture), json!(of_weights));
        let differing = asked.as_object().into_iter().flatten().find(|(field, value)| found[field.as_str()] != **value);
        let Some((field, value)) = differing else { return Ok(()) };
        let (path, found) = (config_json::FILE, &found[field.as_str()]);
        let directory = self.weights.as_deref().unwrap_or_default();
        let problem =
            format!("differs from {found} in {directory}/{path}: remove size and architecture, which it says");
        Err(WorkloadError::config(&format!("architecture.{field}"), value, &problem))
    }

    /// The tokenizer's file, if text is tokenized by one.
    pub fn tokenizer(&self) -> Option<PathBuf> {
        let in_directory = |directory: &String| Tokenizer::beside(Path::new(directory));
        let named = |path: &String| in_directory(path).unwrap_or_else(|| PathBuf::from(path));
        let found = || self.data.tokenizer.as_ref().map(named).or_else(|| in_directory(self.weights.as_ref()?));
        (self.data.source == Source::Text).then(found)?
    }
}
