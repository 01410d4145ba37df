//! The configuration of the forex workload: a preset, and overrides of it.

use super::layers::groups;
use crate::layered;
use crate::placement::Place;
use crate::rules::{Validated, bounded, dropout, fraction, wrong};
use crate::schedule::{DecayStart, RateDecay, RateSchedule, Warmup};
use crate::workload::WorkloadError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Bars of a patch.
pub const PATCH: usize = 64;
/// Channels of a patch: open, high, low, close, volume, and sine and cosine of the time of day.
pub const CHANNELS: usize = 7;
/// Limit of the channels of the autoencoder's convolutions.
const MOST_CHANNELS: usize = 1024;
/// The channel of closing prices.
pub const CLOSE: usize = 3;
/// Features of a timeframe.
pub const FEATURES: usize = 200;
/// Bars before the first window: rolling statistics are over 1000 bars.
pub const WARM_UP_BARS: usize = 1000;

/// A sequence of bars.
#[derive(Clone, Copy, Debug)]
pub struct Timeframe {
    /// Its name in metrics and parameters.
    pub name: &'static str,
    /// Five-minute bars in one of its bars.
    pub factor: usize,
}

/// The timeframes.
pub const TIMEFRAMES: [Timeframe; 4] = [
    Timeframe { name: "5m", factor: 1 },
    Timeframe { name: "15m", factor: 3 },
    Timeframe { name: "1h", factor: 12 },
    Timeframe { name: "4h", factor: 48 },
];

/// A time to which the forecast reaches.
#[derive(Clone, Copy, Debug)]
pub struct Horizon {
    /// Its name in metrics.
    pub name: &'static str,
    /// Five-minute bars from now.
    pub bars: usize,
    /// Factor of its losses.
    pub weight: f64,
}

/// The horizons.
pub const HORIZONS: [Horizon; 4] = [
    Horizon { name: "5m", bars: 1, weight: 0.4 },
    Horizon { name: "15m", bars: 3, weight: 0.3 },
    Horizon { name: "60m", bars: 12, weight: 0.2 },
    Horizon { name: "240m", bars: 48, weight: 0.1 },
];

/// Bars to the last horizon.
pub const LONGEST: usize = 48;

/// A complete default configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// 195,088 parameters and 6,000 bars: seconds on a CPU.
    Smoke,
    /// 11,479,728 parameters and 150,000 bars.
    Medium,
}

/// The model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelConfig {
    /// Features per time step that are used, the first of 200, and width of the S4 blocks.
    pub width: usize,
    /// States per channel of an S4 block.
    pub state: usize,
    /// S4 blocks per timeframe.
    pub blocks: usize,
    /// Heads of the attention over the timeframes.
    pub heads: usize,
    /// Width of the context vector.
    pub context: usize,
    /// Width of a latent.
    pub latent: usize,
    /// Channels of the autoencoder's first convolution; they double with each stage, up to 1024.
    pub vae_channels: usize,
    /// Stages of the autoencoder, each of which halves the length of a patch.
    pub vae_stages: usize,
    /// Width of the embedding of a horizon.
    pub horizon: usize,
    /// Width of the embedding of a timestep.
    pub timestep: usize,
    /// Widths of the hidden layers of the diffusion network.
    pub head: Vec<usize>,
    /// Timesteps of the diffusion.
    pub timesteps: usize,
    /// Dropout probability.
    pub dropout: f64,
}

/// Source of the bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Source {
    /// Simulated: regimes, volatility that clusters, and heavy tails.
    Generated,
    /// Five-minute bars from the Parquet files in `data.directory`: columns `ts_utc` (when a bar begins: a timestamp,
    /// or milliseconds since 1970 as int64), `open`, `high`, `low`, `close` and `volume`, sorted by time. The last
    /// `data.bars` of them are used. Every four hours of UTC with at least one bar are filled with the last price;
    /// those without any (weekends) are left out.
    Parquet,
}

/// The data: five-minute bars.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataConfig {
    /// Source of the bars.
    pub source: Source,
    /// For `source: Parquet`: a file, or a directory of files, such as `bars/symbol=EURUSD`; of partitions `tf`, only
    /// `tf=5m` is read.
    pub directory: Option<String>,
    /// Five-minute bars. The first 80 % of the windows are for training, the others for validation.
    pub bars: usize,
    /// Time steps that a window has of each timeframe: 5m, 15m, 1h and 4h.
    pub lookback: [usize; 4],
    /// Memory of the bars and features. `Device`: all of them are copied to the device once, and a batch is the numbers
    /// of its last bars.
    pub placement: Place,
    /// Seed of the generated bars; the seed of a launch does not change it.
    pub seed: u64,
}

/// The evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Validation windows that are evaluated, evenly spaced; at most as many as there are.
    pub windows: usize,
    /// Forecasts sampled per window.
    pub samples: usize,
    /// Sampling steps of a forecast.
    pub steps: usize,
}

/// The learning rate's schedule: half a cosine wave over the launch, times a linear warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Updates of the warm-up. `settings.warmupSteps` overrides it.
    pub warmup_steps: u64,
    /// Learning rate at the end, as a fraction of `settings.learningRate`.
    pub floor: f64,
}

impl ScheduleConfig {
    /// The schedule.
    pub fn schedule(&self) -> RateSchedule {
        RateSchedule {
            warmup: Warmup::Updates(self.warmup_steps),
            starts_at_zero: false,
            decay: RateDecay::Cosine,
            decay_start: DecayStart::FirstUpdate,
            floor: self.floor,
        }
    }
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
    /// The evaluation.
    pub evaluation: EvaluationConfig,
    /// The learning rate's schedule.
    pub schedule: ScheduleConfig,
}

impl Preset {
    /// The complete configuration of the preset.
    pub fn config(self) -> Value {
        // 1e-6 of a learning rate of 2e-4.
        let schedule = |warmup: u64| json!({"warmupSteps": warmup, "floor": 0.005});
        match self {
            Self::Smoke => json!({
                "preset": self,
                "model": {"width": 40, "state": 16, "blocks": 2, "heads": 4, "context": 32, "latent": 16, "vaeChannels": 16,
                          "vaeStages": 3, "horizon": 16, "timestep": 16, "head": [32, 32, 16], "timesteps": 100, "dropout": 0.1},
                "data": {"source": "Generated", "directory": null, "bars": 6000, "lookback": [48, 16, 8, 4], "placement": "Host", "seed": 42},
                "evaluation": {"windows": 128, "samples": 16, "steps": 10},
                "schedule": schedule(20),
            }),
            Self::Medium => json!({
                "preset": self,
                "model": {"width": 200, "state": 128, "blocks": 4, "heads": 8, "context": 512, "latent": 128, "vaeChannels": 128,
                          "vaeStages": 3, "horizon": 128, "timestep": 128, "head": [512, 256, 128], "timesteps": 1000, "dropout": 0.1},
                "data": {"source": "Generated", "directory": null, "bars": 150_000, "lookback": [500, 166, 41, 10],
                         "placement": "Host", "seed": 42},
                "evaluation": {"windows": 2048, "samples": 64, "steps": 20},
                "schedule": schedule(1000),
            }),
        }
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
        let problem = "is not a preset: choose smoke or medium";
        let preset = layered::preset(&asked, "preset", Preset::Medium, problem)?;
        let config: Self = layered::parse(&layered::over(preset.config(), &asked))?;
        config.validate()?;
        Ok(config)
    }

    /// Validates what the types cannot express.
    fn validate(&self) -> Validated {
        self.model.validate()?;
        self.data.validate()?;
        let EvaluationConfig { windows, samples, steps } = self.evaluation;
        bounded("evaluation.windows", windows, 1..=1_000_000)?;
        bounded("evaluation.samples", samples, 2..=4096)?;
        bounded("evaluation.steps", steps, 1..=self.model.timesteps.min(1000))?;
        bounded("schedule.warmupSteps", self.schedule.warmup_steps as usize, 0..=100_000_000)?;
        fraction("schedule.floor", self.schedule.floor)
    }
}

impl ModelConfig {
    /// Channels of the encoder's downsampling convolutions, in order; the last one is that of the smallest length.
    pub fn encoder_channels(&self) -> Vec<usize> {
        (0..self.vae_stages).map(|stage| (self.vae_channels << stage).min(MOST_CHANNELS)).collect()
    }

    /// Channels of the decoder's upsampling convolutions, in order.
    pub fn decoder_channels(&self) -> Vec<usize> {
        let widest = self.encoder_channels().last().copied().unwrap_or(CHANNELS);
        (1..=self.vae_stages).map(|stage| (widest >> stage).max(CHANNELS)).collect()
    }

    fn validate(&self) -> Validated {
        bounded("model.width", self.width, 1..=FEATURES)?;
        for (field, value) in [
            ("model.state", self.state),
            ("model.blocks", self.blocks),
            ("model.heads", self.heads),
            ("model.context", self.context),
            ("model.latent", self.latent),
            ("model.vaeChannels", self.vae_channels),
            ("model.horizon", self.horizon),
            ("model.timestep", self.timestep),
        ] {
            bounded(field, value, 1..=4096)?;
        }
        bounded("model.vaeStages", self.vae_stages, 1..=PATCH.ilog2() as usize)?;
        bounded("model.timesteps", self.timesteps, 10..=100_000)?;
        if !self.width.is_multiple_of(self.heads) {
            let remedy = format!("must divide model.width ({})", self.width);
            return wrong("model.heads", &self.heads, &remedy);
        }
        if !self.timestep.is_multiple_of(2) {
            return wrong("model.timestep", &self.timestep, "must be even: a sine and a cosine for each wavelength");
        }
        if self.head.is_empty() || self.head.iter().any(|width| !(1..=65_536).contains(width)) {
            let value = format!("{:?}", self.head);
            return wrong("model.head", &value, "must list at least one width, each between 1 and 65536");
        }
        let widths = self.encoder_channels().into_iter().chain(self.decoder_channels());
        if let Some(width) = widths.into_iter().find(|width| !width.is_multiple_of(groups(*width))) {
            let remedy =
                format!("gives a convolution of {width} channels, which are not 8 equal groups: choose a power of 2");
            return wrong("model.vaeChannels", &self.vae_channels, &remedy);
        }
        dropout("model.dropout", self.dropout)
    }
}

impl DataConfig {
    /// Five-minute bars of the data set on the device, if it is kept there.
    pub fn resident_bars(&self) -> Option<usize> {
        (self.placement == Place::Device).then_some(self.bars)
    }

    /// The first bar at which a window can end, after the statistics have settled and with a whole lookback.
    pub fn first_bar(&self) -> usize {
        let whole = TIMEFRAMES.iter().zip(self.lookback).map(|(timeframe, length)| timeframe.factor * length).max();
        WARM_UP_BARS.max(whole.unwrap_or(0) + LONGEST)
    }

    fn validate(&self) -> Validated {
        match (self.source, &self.directory) {
            (Source::Parquet, None) => {
                let problem = "must name Parquet files of five-minute bars for `source: Parquet`";
                return wrong("data.directory", &"null", problem);
            }
            (Source::Generated, Some(directory)) => {
                let problem = "is only used with `source: Parquet`: set that, or remove it";
                return wrong("data.directory", directory, problem);
            }
            _ => {}
        }
        if let Some(length) = self.lookback.iter().find(|length| !(1..=10_000).contains(*length)) {
            return wrong("data.lookback", length, "must be between 1 and 10000 for each timeframe");
        }
        // Room for windows, the embargo between training and validation, and the last horizon.
        bounded("data.bars", self.bars, self.first_bar() + 500..=10_000_000)
    }
}
