//! A language model: fine-tunes (or trains) a decoder of one of a few families, fully or with low-rank adapters.

pub mod architecture;
mod batches;
pub mod config;
pub mod config_json;
pub mod corpus;
mod diagnosis;
pub mod export;
pub mod family;
pub mod hugging_face;
pub mod loss;
pub mod model;
pub mod projection;
pub mod ranking;
pub mod rope;
pub mod split;
pub mod tokenizer;
pub mod vocabulary;
pub mod weights;

use crate::inference::Inference;
use crate::schedule::{RateDecay, RateSchedule};
use crate::share::Share;
use crate::source::Source as DataSource;
use crate::workload::{Data, Job, Optimization, Programs, Request, Workload, WorkloadError};
use architecture::{Method, Projection, Size};
use batches::Batches;
use config::{Config, DataConfig, Layout, Source};
use corpus::{Corpus, Dialogues};
use hugging_face::WeightFiles;
use model::{Model, REGIONS};
use pawl_contract::settings::{Precision, RopeCache, Settings, WeightQuantization};
use pawl_graph::array::{Array, Data as Elements};
use pawl_graph::graph::{DType, Role};
use pawl_graph::optim::AdamW;
use serde_json::{Value, json};
use split::Split;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tokenizer::Tokenizer;
use weights::{Storage, Weights};

/// The workload.
pub struct Slm;

impl Workload for Slm {
    fn name(&self) -> &'static str {
        "slm"
    }

    fn schema(&self) -> Value {
        schemars::schema_for!(Config).to_value()
    }

    fn settings(&self) -> &'static [&'static str] {
        &["weightQuantization", "ropeCache", "learningRate", "weightDecay", "ema", "workload"]
    }

    fn prepare(&self, request: &Request) -> Result<Box<dyn Job>, WorkloadError> {
        Ok(Box::new(SlmJob::new(request)?))
    }
}

/// A validated launch.
pub struct SlmJob {
    setup: Arc<SlmSetup>,
    programs: Arc<Programs>,
    optimization: Optimization,
    files: Option<WeightFiles>,
    tokenizer: Option<Tokenizer>,
}

/// Inputs of the batches.
#[derive(Debug)]
struct SlmSetup {
    config: Config,
    storage: Storage,
    /// Dtype of the residual stream.
    stream: DType,
    rope_cached: bool,
    share: Share,
    items_per_epoch: u64,
}

impl SlmJob {
    /// Validates `request`, reads the headers of weight files and the tokenizer, and builds the programs.
    ///
    /// # Errors
    /// Names the field, the value and the remedy.
    pub fn new(request: &Request) -> Result<Self, WorkloadError> {
        let settings = &request.settings;
        let setup = SlmSetup::new(request)?;
        let directory = setup.config.weights.as_deref();
        let files = directory.map(|directory| WeightFiles::open(Path::new(directory))).transpose()?;
        if let Some(files) = &files {
            files.check(&setup.weights(Some(files)).all())?;
        }
        let vocabulary = setup.config.architecture.vocabulary;
        let tokenizer = setup.config.tokenizer().map(|path| Tokenizer::open(&path, vocabulary)).transpose()?;
        let model = setup.model(files.as_ref());
        let programs = Programs {
            train: vec![model.training(setup.share.batch)?],
            evaluation: vec![model.evaluation(setup.share.evaluation_batch)?],
            regions: REGIONS,
        };
        let optimization = optimization(settings, &setup.config)?;
        Ok(Self { setup: Arc::new(setup), programs: Arc::new(programs), optimization, files, tokenizer })
    }

    /// The complete configuration.
    pub fn config(&self) -> &Config {
        &self.setup.config
    }

    /// The states as this launch stores them.
    pub fn weights(&self) -> Weights<'_> {
        self.setup.weights(self.files.as_ref())
    }

    /// The model as this launch computes it.
    pub fn model(&self) -> Model<'_> {
        self.setup.model(self.files.as_ref())
    }
}

impl SlmSetup {
    fn new(request: &Request) -> Result<Self, WorkloadError> {
        let settings = &request.settings;
        let config = Config::parse(&request.config, &settings.workload())?;
        let share = Share::new(request)?;
        let quantized = settings.weight_quantization() == WeightQuantization::Int8;
        if quantized && config.method == Method::Full {
            let problem =
                "quantizes frozen weights to 8 bits, and workload.config.method Full has none: set Lora, or remove it";
            return Err(WorkloadError::setting("weightQuantization", "Int8", problem));
        }
        let float8 = settings.precision() == Precision::Fp8;
        if quantized && float8 {
            let problem = "stores frozen weights as 8-bit integers, and settings.precision: fp8 as 8-bit floats, which its products take as they \
                 are: remove one of them";
            return Err(WorkloadError::unsupported("weightQuantization", "Int8", problem));
        }
        let odd = Projection::ALL.iter().find(|&&t| config.architecture.matrix(t).0 % 4 != 0);
        if let (true, Some(projection)) = (quantized, odd) {
            let problem = format!(
                "packs four rows, and the number of rows of matrix {} is not divisible by 4",
                projection.path()
            );
            return Err(WorkloadError::setting("weightQuantization", "Int8", problem));
        }
        let frozen = match settings.precision() {
            Precision::Bf16 | Precision::Fp8 => DType::BF16,
            Precision::Fp16 => DType::F16,
            Precision::Fp32 | Precision::Tf32 => DType::F32,
        };
        Ok(Self {
            storage: Storage { frozen, quantized, float8 },
            // Only bfloat16 has the range that a residual stream needs.
            stream: match settings.precision() {
                Precision::Bf16 | Precision::Fp8 => DType::BF16,
                Precision::Fp32 | Precision::Tf32 | Precision::Fp16 => DType::F32,
            },
            rope_cached: settings.rope_cache() == RopeCache::Cached,
            share,
            items_per_epoch: items_per_epoch(&config),
            config,
        })
    }

    fn weights<'a>(&'a self, files: Option<&'a WeightFiles>) -> Weights<'a> {
        Weights { config: &self.config, storage: self.storage, files }
    }

    fn model<'a>(&'a self, files: Option<&'a WeightFiles>) -> Model<'a> {
        let weights = self.weights(files);
        Model { config: &self.config, weights, stream: self.stream, rope_cached: self.rope_cached }
    }

    /// Items of the step that begins at `items`, over all micro-batches and ranks.
    fn step(&self, items: u64) -> Range<u64> {
        items..items + self.share.step_items()
    }
}

/// Number of items of the training split: documents, or windows by its expected number of tokens. Text is counted in
/// windows in any layout.
fn items_per_epoch(config: &Config) -> u64 {
    let data = &config.data;
    let tokens = match data.source {
        Source::Markov => data.tokens - data.tokens / 20,
        Source::Text => data.tokens * 7 / 10,
        Source::Tokens => data.tokens,
        Source::Dialogues => {
            let dialogues = Dialogues::new(data.tokens, config.architecture.vocabulary, data.seed);
            let lengths = dialogues.lengths(Split::Train);
            if data.layout == Layout::Padded {
                return lengths.count().max(1) as u64;
            }
            lengths.sum()
        }
    };
    (tokens / config.sequence).max(1) as u64
}

impl Job for SlmJob {
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
        self.setup.items_per_epoch
    }

    fn metrics(&self) -> Vec<String> {
        batches::metric_names(&self.setup.config.data)
    }

    /// Hash of the names and shapes of the initial weights, because frozen weights are not in a checkpoint. Other
    /// values under the same names and shapes are not noticed.
    fn extras(&self) -> Vec<(String, Array)> {
        let Some(files) = &self.files else { return Vec::new() };
        let words = files.fingerprint().as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
        let array = Array::new([8], Elements::U32(words)).expect("a hash of 32 bytes is 8 words");
        vec![("slm.weights".to_owned(), array)]
    }

    fn inference(&self, batch: usize) -> Result<Inference, WorkloadError> {
        let vocabulary = self.setup.config.architecture.vocabulary as u64;
        Ok(Inference::new(self.model().logits(batch)?, |_, _, word| word % vocabulary)?)
    }

    fn source(&self) -> DataSource {
        let Config { data, architecture, .. } = &self.setup.config;
        let DataConfig { source, tokens, seed, directory, .. } = data;
        let vocabulary = architecture.vocabulary;
        let corpus = json!({"source": source, "tokens": tokens, "seed": seed, "vocabulary": vocabulary});
        DataSource::of(directory.as_ref(), corpus)
    }

    fn open(&self, root: &Path, progress: crate::store::OnProgress<'_>) -> Result<Arc<dyn Data>, WorkloadError> {
        let corpus = Corpus::open(&self.setup.config, self.tokenizer.as_ref(), root, progress)?;
        Ok(Arc::new(Batches::new(Arc::clone(&self.setup), Arc::clone(&self.programs), corpus)))
    }
}

/// AdamW with weight decay on matrices only.
fn optimization(settings: &Settings, config: &Config) -> Result<Optimization, WorkloadError> {
    // Adapters, random weights, pre-trained weights.
    let usual = match (config.method, config.size) {
        (Method::Lora, _) => 2e-4,
        (Method::Full, Size::Tiny | Size::M125) if config.weights.is_none() => 3e-4,
        (Method::Full, _) => 2e-5,
    };
    let adamw = AdamW { weight_decay: 0.01, decay_vectors: false, ..AdamW::default() };
    let schedule = RateSchedule { decay: RateDecay::Cosine, ..RateSchedule::CONSTANT };
    Optimization::adamw(settings, adamw, usual, schedule)
}

/// Number of trainable parameters of a program.
pub fn learning_parameters(program: &pawl_graph::graph::Program) -> u64 {
    let learn = program.states.iter().filter(|state| state.role == Role::Parameter);
    learn.map(|state| state.meta.shape.elements() as u64).sum()
}
