//! The script's schema and its check.

use pawl_contract::plan::LaunchKind;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// A script: what the trainer pretends.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Script {
    /// Items per second of the whole gang with default settings.
    pub items_per_second: f64,
    /// Standard deviation of the logarithm of a launch's throughput.
    #[serde(default)]
    pub noise: f64,
    /// Seed of all noise.
    #[serde(default)]
    pub seed: u64,
    /// What settings do to throughput.
    #[serde(default)]
    pub effects: Vec<Effect>,
    /// Memory of a rank.
    #[serde(default)]
    pub memory: Memory,
    /// Losses.
    #[serde(default)]
    pub quality: Quality,
    /// Share of time waiting for data, 0 to 1.
    #[serde(default)]
    pub loader_wait_share: f64,
    /// Share of time in exposed optimizer offload, 0 to 1; reported when `optimizerOffload` is on.
    #[serde(default)]
    pub offload_share: f64,
    /// Device utilization, 0 to 1.
    #[serde(default = "Script::default_utilization")]
    pub utilization: f64,
    /// Items of an epoch.
    #[serde(default = "Script::default_epoch")]
    pub items_per_epoch: u64,
    /// Seconds that a step really takes; 0: time is virtual.
    #[serde(default)]
    pub step_seconds: f64,
    /// Planted faults.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// Where faults that happen once are remembered; absent: in `PAWL_DATA`. Pods that come and go need one that stays.
    #[serde(default)]
    pub fault_directory: Option<PathBuf>,
}

/// A factor that applies when a setting has a value.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Effect {
    /// Name of the setting, such as `batchPerGpu` or `workload.hidden`.
    pub setting: String,
    /// Its value; absent: any, if it is set.
    #[serde(default)]
    pub value: Option<Value>,
    /// The factor, above 0.
    pub factor: f64,
}

/// Memory of a rank.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Memory {
    /// Bytes of parameters and optimizer state.
    pub base_bytes: u64,
    /// Bytes of activations per item of a micro-batch.
    pub bytes_per_item: u64,
    /// Bytes of the device.
    pub limit_bytes: u64,
    /// What settings do to the activations.
    pub effects: Vec<Effect>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { base_bytes: 1 << 30, bytes_per_item: 1 << 28, limit_bytes: 80 << 30, effects: Vec::new() }
    }
}

/// Losses as a function of items, settings and seed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Quality {
    /// Loss of the first item, above 0.
    pub start_loss: f64,
    /// Loss after endless training, above 0.
    pub final_loss: f64,
    /// Items in which the distance to the final loss falls to 1/e.
    pub scale_items: f64,
    /// Standard deviation of the logarithm of the loss between seeds.
    pub seed_noise: f64,
    /// The same between launches of one seed.
    pub launch_noise: f64,
    /// What settings do to the validation loss.
    pub effects: Vec<Effect>,
    /// Settings whose value has an optimum.
    pub optima: Vec<Optimum>,
}

/// The best value of a setting: the final loss is multiplied by `1 + weight x d^2`, where d is the natural logarithm of
/// the ratio of the value to `best`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Optimum {
    /// Name of the setting, as in [`Effect`].
    pub setting: String,
    /// The best value, above 0.
    pub best: f64,
    /// How much the distance from it costs.
    pub weight: f64,
}

impl Default for Quality {
    fn default() -> Self {
        let (start_loss, final_loss, scale_items) = (2.0, 0.5, 10_000.0);
        let (effects, optima) = (Vec::new(), Vec::new());
        Self { start_loss, final_loss, scale_items, seed_noise: 0.0, launch_noise: 0.0, effects, optima }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum FaultKind {
    /// Exit 10.
    OutOfMemory,
    /// Exit 11.
    HostOutOfMemory,
    /// Exit 12.
    NonFinite,
    /// Exit 13.
    LossSpike,
    /// Exit 20, before the first step.
    Unsupported,
    /// Exit 21, before the first step.
    InvalidPlan,
    /// Exit 22.
    CompileFailed,
    /// Exit 40.
    LostPeer,
    /// No step ever again, deaf to SIGTERM.
    Hang,
    /// Takes `bytes` of memory, 16 MiB every 10 ms; exit 11 when nobody kills it for that.
    ExhaustMemory,
    /// Death by `signal`, or exit `exitCode` (default 1), without a report.
    Crash,
    /// The loader keeps steps waiting for `share` of the time: throughput falls by it.
    SlowLoader,
    /// Throughput is multiplied by `factor` from the step on.
    Slow,
    /// The validation loss is multiplied by `factor` from the step on.
    QualityLoss,
}

/// A planted fault.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// What goes wrong.
    pub fault: FaultKind,
    /// First step (of the whole training, from 0) at which it may happen.
    #[serde(default)]
    pub at_step: u64,
    /// The rank that dies. Faults that do not kill are of all ranks.
    #[serde(default)]
    pub rank: u32,
    /// Only in the first launch that reaches it.
    #[serde(default)]
    pub once: bool,
    /// Only in the n-th launch that meets the conditions, from 1.
    #[serde(default)]
    pub nth: Option<u32>,
    /// Settings that must have these values.
    #[serde(default)]
    pub settings: Vec<Condition>,
    /// Kinds of launch; none: all but Preflight (for Unsupported and InvalidPlan: all).
    #[serde(default)]
    pub kinds: Vec<LaunchKind>,
    /// Part of the launch's name.
    #[serde(default)]
    pub launch: Option<String>,
    /// For `Slow` and `QualityLoss`, above 0.
    #[serde(default)]
    pub factor: Option<f64>,
    /// For `SlowLoader`, 0 to 1.
    #[serde(default)]
    pub share: Option<f64>,
    /// For `ExhaustMemory`, at least 1.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// For `Crash`.
    #[serde(default)]
    pub exit_code: Option<u8>,
    /// For `Crash`.
    #[serde(default)]
    pub signal: Option<i32>,
}

/// A setting that has a value.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Condition {
    /// Name of the setting.
    pub setting: String,
    /// Its value; absent: any, if it is set.
    #[serde(default)]
    pub value: Option<Value>,
}

/// The script cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("workload.config{0}")]
pub struct InvalidScript(String);

impl Script {
    fn default_utilization() -> f64 {
        0.9
    }

    fn default_epoch() -> u64 {
        10_000
    }

    /// Reads and checks a plan's `workload.config`.
    ///
    /// # Errors
    /// The message names the field, the value and the remedy.
    pub fn from_config(config: &Map<String, Value>) -> Result<Self, InvalidScript> {
        let script: Self =
            serde_json::from_value(Value::Object(config.clone())).map_err(|e| InvalidScript(format!(": {e}")))?;
        script.check().map_err(InvalidScript)?;
        Ok(script)
    }

    fn check(&self) -> Result<(), String> {
        let Quality { start_loss, final_loss, scale_items, seed_noise, launch_noise, effects, optima } = &self.quality;
        above("itemsPerSecond", self.items_per_second)?;
        above("quality.startLoss", *start_loss)?;
        above("quality.finalLoss", *final_loss)?;
        above("quality.scaleItems", *scale_items)?;
        for (field, value) in
            [("noise", self.noise), ("quality.seedNoise", *seed_noise), ("quality.launchNoise", *launch_noise)]
        {
            within(field, value, 2.0)?;
        }
        within("stepSeconds", self.step_seconds, 3600.0)?;
        for (field, value) in [
            ("loaderWaitShare", self.loader_wait_share),
            ("offloadShare", self.offload_share),
            ("utilization", self.utilization),
        ] {
            within(field, value, 1.0)?;
        }
        if self.items_per_epoch == 0 {
            return Err(".itemsPerEpoch: 0: choose at least 1".to_owned());
        }
        for (list, effects) in
            [("effects", &self.effects), ("memory.effects", &self.memory.effects), ("quality.effects", effects)]
        {
            for (index, effect) in effects.iter().enumerate() {
                above(&format!("{list}[{index}].factor"), effect.factor)?;
            }
        }
        for (index, optimum) in optima.iter().enumerate() {
            above(&format!("quality.optima[{index}].best"), optimum.best)?;
            above(&format!("quality.optima[{index}].weight"), optimum.weight)?;
        }
        self.faults.iter().enumerate().try_for_each(|(index, fault)| fault.check(index))
    }
}

impl Fault {
    fn check(&self, index: usize) -> Result<(), String> {
        let field = |name: &str| format!("faults[{index}].{name}");
        match (self.fault, self.factor, self.share) {
            (FaultKind::Slow | FaultKind::QualityLoss, Some(factor), _) => above(&field("factor"), factor)?,
            (FaultKind::Slow | FaultKind::QualityLoss, None, _) => {
                return Err(format!(".{}: missing: {:?} needs a number above 0", field("factor"), self.fault));
            }
            (FaultKind::SlowLoader, _, Some(share)) => within(&field("share"), share, 0.99)?,
            (FaultKind::SlowLoader, _, None) => {
                return Err(format!(".{}: missing: SlowLoader needs a number from 0 to 0.99", field("share")));
            }
            _ => {}
        }
        if self.fault == FaultKind::ExhaustMemory && self.bytes.unwrap_or(0) == 0 {
            return Err(format!(".{}: missing: ExhaustMemory needs at least 1", field("bytes")));
        }
        if self.nth == Some(0) {
            return Err(format!(".{}: 0: choose at least 1", field("nth")));
        }
        if self.signal.is_some_and(|signal| !(1..=31).contains(&signal)) {
            return Err(format!(".{}: {}: choose 1 to 31", field("signal"), self.signal.unwrap_or(0)));
        }
        Ok(())
    }
}

fn above(field: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(format!(".{field}: {value}: choose a number above 0")) }
}

fn within(field: &str, value: f64, most: f64) -> Result<(), String> {
    if (0.0..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!(".{field}: {value}: choose a number from 0 to {most}"))
    }
}
