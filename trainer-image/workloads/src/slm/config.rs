//! The configuration of the language model: a size, and overrides of it.

use super::architecture::{Architecture, RopeScaling};
use super::corpus::{LEAST_DIALOGUE_VOCABULARY, Split};
use super::tokenizer::Tokenizer;
use crate::layered;
use crate::workload::WorkloadError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Size of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Size {
    /// 853,120 parameters, for tests and CPUs.
    #[serde(rename = "tiny")]
    Tiny,
    /// 128,404,224 parameters.
    #[serde(rename = "125m")]
    M125,
    /// 1,235,814,400 parameters, as Llama 3.2 1B.
    #[serde(rename = "1b")]
    B1,
    /// 3,212,749,824 parameters, as Llama 3.2 3B.
    #[serde(rename = "3b")]
    B3,
    /// 8,030,261,248 parameters, as Llama 3.1 8B.
    #[serde(rename = "8b")]
    B8,
}

/// Trainable parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Method {
    /// Low-rank adapters beside frozen matrices.
    Lora,
    /// All parameters.
    Full,
}

/// A projection of a block: a matrix that can have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Projection {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Output of attention.
    O,
    /// Gate projection of the MLP.
    Gate,
    /// Up projection of the MLP.
    Up,
    /// Down projection of the MLP.
    Down,
}

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
    /// Text files below `data.directory`, tokenized by `data.tokenizer`; without one, tokens are bytes, and 256 is the end of a document.
    Text,
    /// `train.bin` and `validation.bin` in `data.directory`: little-endian 32-bit ids, one after the other.
    Tokens,
    /// Generated dialogues of doctor and patient that end in the code of a diagnosis; the prompt is the part before it. With 12,000,000
    /// `data.tokens` and a vocabulary of at least 8,000: 10,000 documents of 1,167 tokens on average and 2,000 codes; fewer and shorter ones with
    /// less. Each validation document is evaluated in a row of its own, which gives `top1`, `top3`, `top5` and `macroF1` of its code.
    Dialogues,
}

/// Content of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Layout {
    /// `sequence` tokens from anywhere: documents one after the other, each with its end.
    Packed,
    /// One document, truncated to `sequence` tokens (dialogues at their beginning, text at its end) and padded; padding does not count. For
    /// comparison with Packed.
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
    /// The `tokenizer.json` for `source: Text`, or a directory that contains it. Default: the one beside `weights`, if any.
    pub tokenizer: Option<String>,
    /// Content of an item; Padded needs documents, as in `source: Text` and `source: Dialogues`.
    pub layout: Layout,
    /// Whether prompts are masked in the loss, with `source: Dialogues`. The loss of a step is the mean over all targets that count.
    pub mask_prompt: bool,
    /// Maximum total number of tokens.
    pub tokens: usize,
    /// Seed of the stream and of the split; the seed of a launch changes neither.
    pub seed: u64,
}

impl DataConfig {
    /// Whether the items of a split are documents. Dialogues are always evaluated by document: the metrics are of their codes.
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
    /// Number of evaluated windows, from the beginning of the validation split; documents with `source: Dialogues` or `layout: Padded`.
    pub windows: usize,
}

/// The configuration of a run, complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Size of the model.
    pub size: Size,
    /// Trainable parameters.
    pub method: Method,
    /// Tokens of a window: an item is one window.
    pub sequence: usize,
    /// The model.
    pub architecture: Architecture,
    /// The adapters.
    pub lora: LoraConfig,
    /// A directory with weights in Hugging Face's layout (`model.safetensors`, or shards and their index). Default: random weights.
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
    /// Reads `config` (`spec.workload.config`), overridden by `patch` (`settings.workload`), both over the defaults of their size.
    ///
    /// # Errors
    /// Names the field, the value and the remedy.
    pub fn parse(config: &Map<String, Value>, patch: &Map<String, Value>) -> Result<Self, WorkloadError> {
        let mut asked = Value::Object(config.clone());
        layered::overlay(&mut asked, &Value::Object(patch.clone()));
        let size = match asked.get("size") {
            None => Size::B8,
            Some(name) => Size::deserialize(name).map_err(|_| {
                WorkloadError::config("size", name, "is not a size: choose tiny, 125m, 1b, 3b or 8b (in quotes)")
            })?,
        };
        let mut complete = size.config();
        layered::overlay(&mut complete, &asked);
        let config: Self = layered::parse(&complete)?;
        config.validate()?;
        Ok(config)
    }

    /// The tokenizer's file, if text is tokenized by one.
    pub fn tokenizer(&self) -> Option<PathBuf> {
        let in_directory = |directory: &String| Tokenizer::beside(Path::new(directory));
        let named = |path: &String| in_directory(path).unwrap_or_else(|| PathBuf::from(path));
        let found = || self.data.tokenizer.as_ref().map(named).or_else(|| in_directory(self.weights.as_ref()?));
        (self.data.source == Source::Text).then(found)?
    }

    /// Validates what the types cannot express: compatible sizes, ranges, options that depend on each other.
    fn validate(&self) -> Result<(), WorkloadError> {
        let wrong = |field: &str, value: &dyn std::fmt::Display, remedy: &str| -> Result<(), WorkloadError> {
            Err(WorkloadError::config(field, &Value::String(value.to_string()), remedy))
        };
        let of = &self.architecture;
        let positive = [
            ("sequence", self.sequence),
            ("architecture.vocabulary", of.vocabulary),
            ("architecture.width", of.width),
            ("architecture.layers", of.layers),
            ("architecture.heads", of.heads),
            ("architecture.kvHeads", of.kv_heads),
            ("architecture.headSize", of.head_size),
            ("architecture.feedForward", of.feed_forward),
            ("lora.rank", self.lora.rank),
            ("evaluation.windows", self.evaluation.windows),
        ];
        for (field, value) in positive {
            if value == 0 || value > 1 << 24 {
                return wrong(field, &value, "must be between 1 and 16777216");
            }
        }
        if !of.heads.is_multiple_of(of.kv_heads) {
            return wrong(
                "architecture.kvHeads",
                &of.kv_heads,
                &format!("must divide architecture.heads ({})", of.heads),
            );
        }
        if !of.head_size.is_multiple_of(2) {
            return wrong("architecture.headSize", &of.head_size, "must be even: positions rotate pairs");
        }
        if !(of.rope_base > 1.0 && of.rope_base.is_finite()) {
            return wrong("architecture.ropeBase", &of.rope_base, "must be above 1");
        }
        if let Some(RopeScaling { factor, low_frequency, high_frequency, original_length }) = &of.rope_scaling
            && !(*factor >= 1.0 && *low_frequency > 0.0 && high_frequency > low_frequency && *original_length > 0)
        {
            let remedy = "needs factor >= 1, 0 < lowFrequency < highFrequency and originalLength >= 1";
            return wrong("architecture.ropeScaling", &format!("{factor}"), remedy);
        }
        if !(self.lora.alpha > 0.0 && self.lora.alpha.is_finite()) {
            return wrong("lora.alpha", &self.lora.alpha, "must be above 0");
        }
        if !(0.0..1.0).contains(&self.lora.dropout) {
            return wrong("lora.dropout", &self.lora.dropout, "must be at least 0 and less than 1");
        }
        if self.method == Method::Lora && self.lora.targets.is_empty() {
            return wrong("lora.targets", &"[]", "must name at least one of q, k, v, o, gate, up, down");
        }
        let twice = |(i, projection): (usize, &Projection)| self.lora.targets[..i].contains(projection);
        if self.lora.targets.iter().enumerate().any(twice) {
            return wrong("lora.targets", &format!("{:?}", self.lora.targets), "must name each matrix once");
        }
        // Both splits contain at least one window and the token after it, and the validation split is a twentieth.
        let least = 40 * (self.sequence + 1);
        if self.data.tokens < least || self.data.tokens > 1 << 31 {
            let remedy = format!("must be between 40 windows ({least}) and 2147483648");
            return wrong("data.tokens", &self.data.tokens, &remedy);
        }
        let source = self.data.source;
        if self.data.layout == Layout::Padded && !matches!(source, Source::Text | Source::Dialogues) {
            let remedy = format!(
                "puts a document into each item, and `source: {source:?}` has no documents: choose Text or Dialogues, or remove it"
            );
            return wrong("data.layout", &"Padded", &remedy);
        }
        if self.data.mask_prompt && source != Source::Dialogues {
            let remedy = format!(
                "masks prompts in the loss, and documents of `source: {source:?}` have none: choose Dialogues, or remove it"
            );
            return wrong("data.maskPrompt", &true, &remedy);
        }
        match (source, &self.data.directory) {
            (Source::Markov | Source::Dialogues, Some(directory)) => wrong(
                "data.directory",
                directory,
                &format!("is not used with `source: {source:?}`: choose Text or Tokens, or remove it"),
            ),
            (Source::Text | Source::Tokens, None) => wrong(
                "data.directory",
                &"null",
                "must name the directory to read for `source: Text` or `source: Tokens`",
            ),
            (Source::Markov | Source::Tokens | Source::Dialogues, _) if self.data.tokenizer.is_some() => wrong(
                "data.tokenizer",
                &self.data.tokenizer.as_deref().unwrap_or_default(),
                "is only used with `source: Text`: choose that, or remove it",
            ),
            (Source::Text, _)
                if self.tokenizer().is_none() && of.vocabulary <= usize::from(super::corpus::END_OF_DOCUMENT) =>
            {
                wrong(
                    "architecture.vocabulary",
                    &of.vocabulary,
                    "must be at least 257 for `source: Text`: bytes, and the end of a document",
                )
            }
            (Source::Dialogues, _) if of.vocabulary < LEAST_DIALOGUE_VOCABULARY => wrong(
                "architecture.vocabulary",
                &of.vocabulary,
                &format!(
                    "must be at least {LEAST_DIALOGUE_VOCABULARY} for `source: Dialogues`: codes, symptoms and words"
                ),
            ),
            (Source::Dialogues, _) if self.sequence < 2 => wrong(
                "sequence",
                &self.sequence,
                "must be at least 2 for `source: Dialogues`: a code and the end of its document",
            ),
            _ => Ok(()),
        }
    }
}
