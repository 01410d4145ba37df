//! The configuration of Vision-BDH: a preset, and overrides of it.

use crate::layered;
use crate::placement::Place;
use crate::rules::{Validated, dropout, fraction, wrong};
use crate::schedule::{DecayStart, RateDecay, RateSchedule, Warmup};
use crate::workload::WorkloadError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Side of an image, pixels.
pub const SIDE: usize = 32;
/// Channels of an image.
pub const CHANNELS: usize = 3;
/// Side of a patch, pixels.
pub const PATCH: usize = 4;
/// Classes.
pub const CLASSES: usize = 10;
/// Tokens of an image: its patches and the class token, which is first.
pub const TOKENS: usize = (SIDE / PATCH) * (SIDE / PATCH) + 1;

/// Most images of a split.
const MOST_IMAGES: usize = 10_000_000;

/// A complete default configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// 61,306 parameters and 256 generated images: seconds on a CPU.
    Smoke,
    /// 3,562,954 parameters and 4,096 generated images.
    Medium,
    /// 3,562,954 parameters and CIFAR-10.
    Full,
}

/// How attention weighs the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Scores {
    /// Softmax of the scaled products of keys.
    Softmax,
    /// The products of keys, without scale and softmax.
    Raw,
}

/// The model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelConfig {
    /// Width of a token.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Neurons of all heads as a multiple of `width`.
    pub multiplier: usize,
    /// Recurrent levels, which share their weights.
    pub levels: usize,
    /// Dropout probability of the gated neurons.
    pub dropout: f64,
    /// How attention weighs the tokens.
    pub scores: Scores,
}

impl ModelConfig {
    /// Neurons per head: the width of a key.
    pub fn neurons(&self) -> usize {
        self.multiplier * self.width / self.heads
    }
}

/// Source of the images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Source {
    /// Sums of plane waves by class, with noise; generated when the launch starts.
    Generated,
    /// The binary version of CIFAR-10 in `data.directory`: `data_batch_1.bin` to `data_batch_5.bin`, and
    /// `test_batch.bin`.
    Cifar10,
}

/// Random changes of training images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Augmentation {
    /// Images are used as they are.
    None,
    /// A crop of 80 % to 100 % of the area, resized to the image's size; half of the images are mirrored.
    CropFlip,
}

/// How a program gets its images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageInput {
    /// Input `images`: float32, as the model uses them.
    Prepared,
    /// Input `pixels`: bytes in words, see [`packed`](super::device_images::packed).
    Bytes,
    /// Input `items`: rows of the state with all images, as bytes in words.
    Resident {
        /// Number of all images.
        images: usize,
    },
}

/// The data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataConfig {
    /// Source of the images.
    pub source: Source,
    /// The directory of the files, for `source: Cifar10`.
    pub directory: Option<String>,
    /// Training images.
    pub training: usize,
    /// Validation images.
    pub validation: usize,
    /// Test images, with which the best checkpoint is evaluated at the end of the training; 0 for none.
    pub test: usize,
    /// Random changes of training images; validation and test images are used as they are.
    pub augmentation: Augmentation,
    /// Place of the images. `Device`: all of them are copied to the device once, as bytes, and a batch is their
    /// numbers.
    pub placement: Place,
    /// Place where training images are converted to float32 and changed; null: the same as `placement`. `Device` with
    /// `placement: Host` copies a batch as bytes, a quarter of its size in float32. Both places use the same random
    /// numbers and differ by rounding only.
    pub augment_on: Option<Place>,
    /// Seed of generated images, and of the split of CIFAR-10; the seed of a launch changes neither.
    pub seed: u64,
}

/// The learning rate's schedule: it rises linearly from 0 in the first update, then decays until the end of the launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Updates of the warm-up. `settings.warmupSteps` overrides it.
    pub warmup_steps: Option<u64>,
    /// Length of the warm-up as a fraction of all updates, instead of `warmupSteps`.
    pub warmup_fraction: Option<f64>,
    /// Decay after the warm-up.
    pub decay: RateDecay,
    /// Learning rate at the end of the decay, as a fraction of `settings.learningRate`.
    pub floor: f64,
}

impl ScheduleConfig {
    /// The schedule.
    pub fn schedule(&self) -> RateSchedule {
        let updates = Warmup::Updates(self.warmup_steps.unwrap_or(0));
        RateSchedule {
            warmup: self.warmup_fraction.map_or(updates, Warmup::Fraction),
            starts_at_zero: true,
            decay: self.decay,
            decay_start: DecayStart::AfterWarmup,
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
    /// The learning rate's schedule.
    pub schedule: ScheduleConfig,
}

impl Preset {
    /// The complete configuration of the preset.
    pub fn config(self) -> Value {
        let (width, heads, multiplier, levels) = match self {
            Self::Smoke => (48, 3, 8, 2),
            Self::Medium | Self::Full => (192, 6, 32, 6),
        };
        let (source, training, validation, test, warmup) = match self {
            Self::Smoke => (Source::Generated, 256, 64, 64, 100),
            Self::Medium => (Source::Generated, 4096, 512, 512, 100),
            Self::Full => (Source::Cifar10, 40_000, 10_000, 10_000, 1000),
        };
        json!({
            "preset": self,
            "model": {"width": width, "heads": heads, "multiplier": multiplier, "levels": levels, "dropout": 0.1, "scores": "Softmax"},
            "data": {"source": source, "directory": null, "training": training, "validation": validation, "test": test,
                     "augmentation": "CropFlip", "placement": "Host", "augmentOn": null, "seed": 42},
            "schedule": {"warmupSteps": warmup, "warmupFraction": null, "decay": "Cosine", "floor": 0.0},
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
        let preset = layered::preset(&asked, "preset", Preset::Full, problem)?;
        let mut complete = layered::over(preset.config(), &asked);
        // An explicit fraction replaces the preset's number of updates.
        let asked_for =
            |field: &str| asked.pointer(&format!("/schedule/{field}")).is_some_and(|value| !value.is_null());
        if asked_for("warmupFraction") && !asked_for("warmupSteps") {
            complete["schedule"]["warmupSteps"] = Value::Null;
        }
        let config: Self = layered::parse(&complete)?;
        config.validate()?;
        Ok(config)
    }

    /// Validates what the types cannot express.
    fn validate(&self) -> Validated {
        self.model.validate()?;
        self.data.validate()?;
        self.schedule.validate()
    }
}

impl ModelConfig {
    fn validate(&self) -> Validated {
        let sizes = [
            ("model.width", self.width),
            ("model.heads", self.heads),
            ("model.multiplier", self.multiplier),
            ("model.levels", self.levels),
        ];
        if let Some((field, value)) = sizes.into_iter().find(|&(_, value)| value == 0 || value > 65_536) {
            return wrong(field, &value, "must be between 1 and 65536");
        }
        let neurons = self.multiplier * self.width;
        if !neurons.is_multiple_of(2 * self.heads) {
            let remedy = format!("must divide multiplier x width ({neurons}) into an even number of neurons per head");
            return wrong("model.heads", &self.heads, &remedy);
        }
        dropout("model.dropout", self.dropout)
    }
}

impl DataConfig {
    /// Images of all splits.
    pub fn images(&self) -> usize {
        self.training + self.validation + self.test
    }

    /// How training programs get their images.
    pub fn input(&self) -> ImageInput {
        match (self.placement, self.augment_on) {
            (Place::Device, _) => ImageInput::Resident { images: self.images() },
            (Place::Host, Some(Place::Device)) => ImageInput::Bytes,
            (Place::Host, Some(Place::Host) | None) => ImageInput::Prepared,
        }
    }

    fn validate(&self) -> Validated {
        for (field, value, least) in
            [("data.training", self.training, 1), ("data.validation", self.validation, 1), ("data.test", self.test, 0)]
        {
            if value < least || value > MOST_IMAGES {
                return wrong(field, &value, &format!("must be between {least} and {MOST_IMAGES}"));
            }
        }
        if (self.placement, self.augment_on) == (Place::Device, Some(Place::Host)) {
            return wrong(
                "data.augmentOn",
                &"Host",
                "cannot be combined with `placement: Device`, where the loader does not have the images: remove it, or set Device",
            );
        }
        match (self.source, &self.directory) {
            (Source::Cifar10, None) => wrong(
                "data.directory",
                &"null",
                "must name the directory of CIFAR-10's binary version for `source: Cifar10`; `source: Generated` needs no files",
            ),
            (Source::Generated, Some(directory)) => {
                wrong("data.directory", directory, "is only used with `source: Cifar10`: set that, or remove it")
            }
            _ => Ok(()),
        }
    }
}

impl ScheduleConfig {
    fn validate(&self) -> Validated {
        if let (Some(_), Some(fraction)) = (self.warmup_steps, self.warmup_fraction) {
            return wrong("schedule.warmupFraction", &fraction, "conflicts with warmupSteps: set only one of them");
        }
        if let Some(warmup) = self.warmup_fraction {
            fraction("schedule.warmupFraction", warmup)?;
        }
        if let Some(steps) = self.warmup_steps.filter(|steps| *steps > 100_000_000) {
            return wrong("schedule.warmupSteps", &steps, "must be at most 100000000");
        }
        fraction("schedule.floor", self.floor)
    }
}
