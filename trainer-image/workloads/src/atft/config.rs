//! The configuration of the workload: a preset, and overrides of it.

use crate::layered;
use crate::placement::Place;
use crate::rules::{Validated, bounded, dropout, fraction, wrong};
use crate::schedule::{DecayStart, RateDecay, RateSchedule, Warmup};
use crate::workload::WorkloadError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::ops::Range;

/// Most features: those of the generated panel, and of files.
pub const FEATURES: usize = 96;
/// Walk-forward folds, and training days that the first one has at least.
const FOLDS: usize = 5;
const LEAST_TRAINED: usize = 252;
/// Quantiles of a forecast.
pub const QUANTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];
/// Place of the median among the quantiles.
pub const MEDIAN: usize = 2;
/// Days over which correlations and trailing features are taken, which come before the first window.
pub const WARM_UP_DAYS: usize = 60;
/// Fewest stocks of a date whose ranks are compared.
const LEAST_STOCKS: usize = 20;

/// A time to which the forecast reaches.
#[derive(Clone, Copy, Debug)]
pub struct Horizon {
    /// Its name in metrics.
    pub name: &'static str,
    /// Trading days.
    pub days: usize,
    /// Weight of its loss.
    pub weight: f64,
}

/// The horizons.
pub const HORIZONS: [Horizon; 4] = [
    Horizon { name: "1d", days: 1, weight: 1.0 },
    Horizon { name: "5d", days: 5, weight: 0.8 },
    Horizon { name: "10d", days: 10, weight: 0.5 },
    Horizon { name: "20d", days: 20, weight: 0.3 },
];

/// Days to the last horizon, which are also the days between two splits.
pub const LONGEST: usize = 20;
/// Shares of the days in training and validation; the others are for the test.
const SHARES: [f64; 2] = [0.70, 0.15];

/// A complete default configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// 60,366 parameters, 128 stocks on 260 days: seconds on a CPU.
    Smoke,
    /// 5,591,726 parameters, 2,048 stocks on 750 days.
    Medium,
    /// As medium, with 4,000 stocks on 2,225 days.
    Full,
}

/// The model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelConfig {
    /// Width.
    pub hidden: usize,
    /// Heads of the attention over time.
    pub heads: usize,
    /// Width of the network of each feature in the variable selection.
    pub selection_width: usize,
    /// Dropout probability of the variable selection and the temporal network.
    pub dropout: f64,
    /// Dropout probability of the shared layer of the heads; those of the horizons have 0.5 and 1.5 times as much.
    pub head_dropout: f64,
    /// Layers of graph attention; 0: the stocks of a date do not see each other.
    pub gat_layers: usize,
    /// Dropout probability of the inputs of graph attention.
    pub gat_dropout: f64,
    /// Probability that an edge between two stocks is dropped.
    pub edge_dropout: f64,
    /// Lengths in days of the trailing windows by which the temporal features are normalized.
    pub windows: Vec<usize>,
    /// Number of overlapping slices of the lookback that are normalized separately.
    pub slices: usize,
}

/// When day graphs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Graphs {
    /// Once per 20 trading days, when the data are opened.
    Cached,
    /// For every date of every batch, by the loader.
    PerBatch,
}

/// Source of the panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Source {
    /// Simulated: a market with regimes, sectors, heavy tails, and a weak signal.
    Generated,
    /// The table of Parquet files in `data.directory`: a row per date and stock, sorted by both.
    Parquet,
}

/// The data: a panel of stocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataConfig {
    /// Source of the panel.
    pub source: Source,
    /// For `source: Parquet`: the directory of a table, such as `panel` with files `panel/year=2024/part-0.parquet`.
    /// Columns: `date` (date32), `code`, `market` and `sector33` (integers), `is_valid` (bool), the returns
    /// `target_1d`, `target_5d`, `target_10d` and `target_20d`, and the features `f00`, `f01` and so on (float32).
    /// Features are standardized within each date; a missing one is 0. A stock can be chosen on the dates on which it
    /// is valid and has all targets. Files with one row group per date are read fastest.
    pub directory: Option<String>,
    /// For `source: Parquet`: features of the market, which have one value for all stocks of a date. They are
    /// standardized over the last 60 days.
    pub market_features: Vec<String>,
    /// For `source: Parquet` and `placement: Host`: MiB of the dates that are kept in memory; others are read again
    /// when they are used.
    pub cache_mib: usize,
    /// Stocks of the panel; of files, at least as many as there are codes.
    pub stocks: usize,
    /// Stocks of a day chunk, at most `stocks`: each chunk is a random choice of the stocks of a date. Batches are
    /// whole numbers of chunks.
    pub chunk: usize,
    /// Trading days; of files, the last ones. Of those on which a window can end, 70 % are for training, 15 % for
    /// validation and 15 % for the test, with 20 days in between; see `fold`.
    pub days: usize,
    /// Walk-forward fold, 1 to 5, in place of these splits: the days after the first 252 are divided into five equal
    /// periods; fold k is validated on period k and trained on all days before it, with 20 days in between. There is no
    /// test.
    pub fold: Option<usize>,
    /// Features that are used, the first of 96.
    pub features: usize,
    /// Days of a window.
    pub lookback: usize,
    /// For `source: Generated`: factor of the predictable part of the returns, in units of a stock's volatility.
    pub signal: f64,
    /// Memory of the features. `Device`: all of them are copied to the device once, and a batch is the numbers of its
    /// rows.
    pub placement: Place,
    /// When day graphs are built.
    pub graphs: Graphs,
    /// Edges per stock for which batches have room, self-loops included.
    pub edges_per_stock: usize,
    /// Seed of the generated panel; the seed of a launch does not change it.
    pub seed: u64,
}

/// Factors of the terms of the loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LossConfig {
    /// Pinball loss of the quantiles.
    pub pinball: f64,
    /// Squared error of the median.
    pub mse: f64,
    /// Huber loss of the median.
    pub huber: f64,
    /// One minus the correlation of the median with the ranks of the returns of a date.
    pub rank_ic: f64,
    /// One minus the correlation of the median with the returns of a date.
    pub ic: f64,
    /// Sharpe ratio of positions in proportion to the median, which is subtracted.
    pub sharpe: f64,
    /// Mean weight of the variable selection.
    pub selection: f64,
    /// Mean square of the attention to neighbours in the last layer.
    pub attention: f64,
    /// Entropy of the attention to neighbours, which is subtracted.
    pub entropy: f64,
}

/// The evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Dates that are evaluated, evenly spaced; at most as many as there are.
    pub days: usize,
}

/// The learning rate's schedule: half a cosine wave over the launch, times a linear warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Warm-up, as a fraction of all updates. `settings.warmupSteps` overrides it.
    pub warmup: f64,
    /// Learning rate at the end, as a fraction of `settings.learningRate`.
    pub floor: f64,
}

impl ScheduleConfig {
    /// The schedule.
    pub fn schedule(&self) -> RateSchedule {
        RateSchedule {
            warmup: Warmup::Fraction(self.warmup),
            starts_at_zero: false,
            decay: RateDecay::Cosine,
            decay_start: DecayStart::FirstUpdate,
            floor: self.floor,
        }
    }
}

/// A stage of the curriculum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StageConfig {
    /// Epochs; the last stage lasts to the end of the launch.
    pub epochs: u32,
    /// Whether graph attention is trained and used.
    pub neighbours: bool,
    /// Whether adaptive normalization is trained and used.
    pub adaptive: bool,
    /// Factor of the learning rate, besides the schedule.
    pub rate: f64,
}

/// The configuration of a run, complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The preset.
    pub preset: Preset,
    /// The model.
    pub model: ModelConfig,
    /// The data.
    pub data: DataConfig,
    /// The loss.
    pub loss: LossConfig,
    /// The evaluation.
    pub evaluation: EvaluationConfig,
    /// The learning rate's schedule.
    pub schedule: ScheduleConfig,
    /// Stages in which parts of the model are trained; none: all parts, from the first update on.
    pub curriculum: Vec<StageConfig>,
}

impl Preset {
    /// The complete configuration of the preset.
    pub fn config(self) -> Value {
        let loss = json!({"pinball": 0.3, "mse": 0.1, "huber": 0.1, "rankIc": 0.5, "ic": 0.3, "sharpe": 0.1,
                          "selection": 0.01, "attention": 0.01, "entropy": 0.001});
        let smoke = self == Self::Smoke;
        let model = |[hidden, heads, width]: [usize; 3], windows: [usize; 3]| {
            json!({"hidden": hidden, "heads": heads, "selectionWidth": width, "dropout": 0.1, "headDropout": 0.2,
                   "gatLayers": 2, "gatDropout": 0.2, "edgeDropout": 0.1, "windows": windows, "slices": 3})
        };
        let data = |[stocks, chunk, days]: [usize; 3]| {
            let (features, lookback, signal) = if smoke { (16, 8, 0.3) } else { (96, 20, 0.05) };
            json!({"source": "Generated", "directory": null, "marketFeatures": [], "cacheMib": 1024, "fold": null,
                   "stocks": stocks, "chunk": chunk, "days": days, "features": features, "lookback": lookback,
                   "signal": signal, "placement": "Host", "graphs": "Cached", "edgesPerStock": 16, "seed": 42})
        };
        let (model, data) = match self {
            Self::Smoke => (model([32, 4, 8], [2, 4, 8]), data([128, 128, 260])),
            Self::Medium => (model([256, 8, 48], [5, 10, 20]), data([2048, 2048, 750])),
            Self::Full => (model([256, 8, 48], [5, 10, 20]), data([4000, 2048, 2225])),
        };
        json!({
            "preset": self,
            "model": model,
            "data": data,
            "loss": loss,
            "evaluation": {"days": 100},
            "schedule": {"warmup": 0.05, "floor": 0.002},
            "curriculum": [],
        })
    }
}

impl Config {
    /// Reads `config` (`spec.workload.config`), overridden by `patch` (`settings.workload`), both over the preset they
    /// name.
    ///
    /// # Errors
    /// Names the field, the value and the remedy.
    pub fn parse(config: &Map<String, Value>, patch: &Map<String, Value>) -> Result<Self, WorkloadError> {
        let asked = layered::asked(config, patch);
        let problem = "is not a preset: choose smoke, medium or full";
        let preset = layered::preset(&asked, "preset", Preset::Medium, problem)?;
        let config: Self = layered::parse(&layered::over(preset.config(), &asked))?;
        config.validate()?;
        Ok(config)
    }

    /// Validates what the types cannot express.
    fn validate(&self) -> Validated {
        self.model.validate(self.data.lookback)?;
        self.data.validate()?;
        self.loss.validate()?;
        bounded("evaluation.days", self.evaluation.days, 2..=1_000_000)?;
        fraction("schedule.warmup", self.schedule.warmup)?;
        fraction("schedule.floor", self.schedule.floor)?;
        bounded("curriculum", self.curriculum.len(), 0..=16)?;
        for (number, stage) in self.curriculum.iter().enumerate() {
            let field = |name: &str| format!("curriculum[{number}].{name}");
            bounded(&field("epochs"), stage.epochs as usize, 1..=1_000_000)?;
            if stage.neighbours && self.model.gat_layers == 0 {
                return wrong(&field("neighbours"), &true, "needs layers: set model.gatLayers to 1 or more");
            }
            if !(0.0..=100.0).contains(&stage.rate) {
                return wrong(&field("rate"), &stage.rate, "must be between 0 and 100");
            }
        }
        Ok(())
    }
}

impl ModelConfig {
    fn validate(&self, lookback: usize) -> Validated {
        bounded("model.hidden", self.hidden, 8..=4096)?;
        if !self.hidden.is_multiple_of(8) {
            return wrong(
                "model.hidden",
                &self.hidden,
                "must be a multiple of 8: the heads of graph attention share it",
            );
        }
        bounded("model.heads", self.heads, 1..=self.hidden)?;
        if !self.hidden.is_multiple_of(self.heads) {
            return wrong("model.heads", &self.heads, &format!("must divide model.hidden ({})", self.hidden));
        }
        bounded("model.selectionWidth", self.selection_width, 1..=4096)?;
        dropout("model.dropout", self.dropout)?;
        if !(0.0..2.0 / 3.0).contains(&self.head_dropout) {
            let problem = "must be at least 0 and less than 2/3: the far horizons have 1.5 times as much";
            return wrong("model.headDropout", &self.head_dropout, problem);
        }
        bounded("model.gatLayers", self.gat_layers, 0..=16)?;
        dropout("model.gatDropout", self.gat_dropout)?;
        dropout("model.edgeDropout", self.edge_dropout)?;
        if self.windows.is_empty() || self.windows.iter().any(|window| !(1..=lookback).contains(window)) {
            let problem = format!("must list lengths between 1 and data.lookback ({lookback})");
            return wrong("model.windows", &format!("{:?}", self.windows), &problem);
        }
        bounded("model.slices", self.slices, 1..=lookback)
    }
}

impl DataConfig {
    /// Rows of the features on the device, if they are kept there: one per date and stock.
    pub fn resident_rows(&self) -> Option<usize> {
        (self.placement == Place::Device).then_some(self.days * self.stocks)
    }

    /// The days on which windows end: training, validation, test. The longest horizon lies between them, so that none
    /// sees the returns of another.
    pub fn splits(&self) -> [Range<usize>; 3] {
        let (first, end) = (self.first_day(), self.days - LONGEST - 1);
        if let Some(fold) = self.fold {
            let period = (end - first - LEAST_TRAINED - LONGEST) / FOLDS;
            let start = end - (FOLDS + 1 - fold) * period;
            return [first..start - LONGEST, start..start + period, end..end];
        }
        let usable = end - first - 2 * LONGEST;
        let [training, validation] = SHARES.map(|share| (share * usable as f64).round() as usize);
        let validated = first + training + LONGEST;
        let tested = validated + validation + LONGEST;
        [first..first + training, validated..validated + validation, tested..end]
    }

    /// The first day on which a window can end.
    fn first_day(&self) -> usize {
        WARM_UP_DAYS + self.lookback
    }

    fn validate(&self) -> Validated {
        bounded("data.features", self.features, 1..=FEATURES)?;
        self.validate_source()?;
        bounded("data.stocks", self.stocks, LEAST_STOCKS..=100_000)?;
        bounded("data.chunk", self.chunk, LEAST_STOCKS..=self.stocks)?;
        bounded("data.lookback", self.lookback, 2..=1000)?;
        // Room for windows, gaps between the splits, and the last horizon.
        let least = match self.fold {
            None => 3 * LONGEST + 40,
            Some(fold) => {
                bounded("data.fold", fold, 1..=FOLDS)?;
                LEAST_TRAINED + (FOLDS + 2) * LONGEST + 1
            }
        };
        bounded("data.days", self.days, self.first_day() + least..=100_000)?;
        let rows = self.days.saturating_mul(self.stocks);
        if u32::try_from(rows).is_err() {
            return wrong(
                "data.days",
                &self.days,
                "times data.stocks must be less than 2^32: rows have 32-bit numbers",
            );
        }
        bounded("data.edgesPerStock", self.edges_per_stock, 1..=1000)?;
        match (0.0..=10.0).contains(&self.signal) {
            true => Ok(()),
            false => wrong("data.signal", &self.signal, "must be between 0 and 10"),
        }
    }

    fn validate_source(&self) -> Validated {
        bounded("data.cacheMib", self.cache_mib, 1..=1 << 24)?;
        match (self.source, &self.directory) {
            (Source::Parquet, None) => {
                let problem = "must name the directory of a table for `source: Parquet`";
                return wrong("data.directory", &"null", problem);
            }
            (Source::Generated, Some(directory)) => {
                let problem = "is only used with `source: Parquet`: set that, or remove it";
                return wrong("data.directory", directory, problem);
            }
            _ => {}
        }
        for name in &self.market_features {
            if self.source == Source::Generated {
                let problem = "is only used with `source: Parquet`: set that, or remove it";
                return wrong("data.marketFeatures", name, problem);
            }
            if (0..self.features).all(|number| *name != feature_column(number)) {
                let last = feature_column(self.features.saturating_sub(1));
                let problem = format!("is not among the features that are used, f00 to {last}");
                return wrong("data.marketFeatures", name, &problem);
            }
        }
        Ok(())
    }
}

/// The column of files that holds a feature.
pub fn feature_column(number: usize) -> String {
    format!("f{number:02}")
}

impl LossConfig {
    fn validate(&self) -> Validated {
        let Self { pinball, mse, huber, rank_ic, ic, sharpe, selection, attention, entropy } = *self;
        for (field, value) in [
            ("pinball", pinball),
            ("mse", mse),
            ("huber", huber),
            ("rankIc", rank_ic),
            ("ic", ic),
            ("sharpe", sharpe),
            ("selection", selection),
            ("attention", attention),
            ("entropy", entropy),
        ] {
            if !(0.0..=1000.0).contains(&value) {
                return wrong(&format!("loss.{field}"), &value, "must be between 0 and 1000");
            }
        }
        Ok(())
    }
}
