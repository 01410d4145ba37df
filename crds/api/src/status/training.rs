//! The training and its checkpoints.

use super::LaunchStatus;
use pawl_contract::decimal::Decimal;
use pawl_contract::measured::Measured;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainingStatus {
    /// Measurements so far: speed over the newest window.
    #[serde(flatten)]
    pub measured: Measured<Decimal>,
    /// Index of the current epoch, from 0.
    pub epoch: u32,
    /// Items per second expected from the measurements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promised_items_per_second: Option<Decimal>,
    /// Estimated completion time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<String>,
    /// Fraction of training GPU time spent on productive steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput: Option<Decimal>,
    /// Where the job's checkpoints are; `None` when they are deleted with its pods, absent in a local state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// Directory of its checkpoints in the storage; absent: the storage itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub directory: Option<String>,
    /// Newest complete checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointStatus>,
    /// Best complete checkpoint, by `train.checkpoint.best`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<BestCheckpointStatus>,
    /// Seconds from SIGTERM to the end of a checkpoint, as estimated by the trainer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_seconds: Option<u64>,
    /// Consecutive windows below the expected throughput: those since `cusum.sum` was last 0.
    pub slow_windows: u32,
    /// Number of the newest throughput window that was counted.
    pub window: u64,
    /// Restarts after infrastructure failures.
    pub restarts: u32,
    /// Training resumes from no checkpoint with more items than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_not_after_items: Option<u64>,
    /// Hash of the settings in use.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// Items at the newest evaluation that passed the gate.
    pub last_good_items: u64,
    /// Start time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// Description of a slow rank or device.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub straggler: String,
    /// Why training is slower than measured, or its loss worse, and no phase is rolled back for it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub degraded: String,
    /// What of the newest evaluation looks worse than the baseline, and why no phase is rolled back for it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub worse: String,
    /// Items at the newest evaluation, comparable with the baseline's, that violated a gate: the next such one decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub violated_at_items: Option<u64>,
    /// Detection of a slow-down from the throughput windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cusum: Option<CusumStatus>,
    /// Consecutive windows below a gate on throughput.
    #[serde(skip_serializing_if = "is_zero")]
    pub gate_windows: u32,
    /// Consecutive windows as fast as measured.
    #[serde(skip_serializing_if = "is_zero")]
    pub good_windows: u32,
    /// Training with settings that were replaced since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<ReplacedSettings>,
    /// A slow-down whose cause is being measured, while the training waits at its checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<SlowdownStatus>,
    /// Devices that are slower than measured, whatever the settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_machine: Option<SlowMachine>,
    /// Slow-downs whose cause was measured so far.
    #[serde(skip_serializing_if = "is_zero")]
    pub slowdowns: u32,
    /// Throughput windows before the cause of another slow-down may be measured.
    #[serde(skip_serializing_if = "is_zero")]
    pub quiet_windows: u32,
    /// Hash of the training target that has been reached.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub completed: String,
    /// Hash of the settings that training began with or resumed with, without what training itself reverted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub wanted: String,
    /// Checkpoints in the storage that are damaged, or may be: never resumed. Names, as the newest attempt found them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub quarantined: Vec<String>,
    /// What trained the model, in order of the items.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<SegmentStatus>,
    // The launches by which a trainer names the parts of a checkpoint that it resumes are looked up here, too.
    /// What attempts trained with whose part of the model was not seen, or is not in it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<SegmentStatus>,
    /// Trainings of this job before a change of what is trained, the newest last. Their checkpoints are kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<EarlierTraining>,
}

impl TrainingStatus {
    /// Path of one of its checkpoints in the storage.
    ///
    /// ```
    /// use pawl_api::status::TrainingStatus;
    ///
    /// let first = TrainingStatus::default();
    /// assert_eq!(first.path("0001"), "0001");
    /// let second = TrainingStatus { directory: Some("pawl-training-4".to_owned()), ..first };
    /// assert_eq!(second.path("0001"), "pawl-training-4/0001");
    /// ```
    pub fn path(&self, checkpoint: &str) -> String {
        match &self.directory {
            Some(directory) => format!("{directory}/{checkpoint}"),
            None => checkpoint.to_owned(),
        }
    }
}

/// A part of a training, and what trained it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SegmentStatus {
    /// Items before it.
    pub from_items: u64,
    /// Items at its end.
    pub to_items: u64,
    /// Hash of the workload, its command and the seed.
    pub workload: String,
    /// Hash of the settings on which the model depends.
    pub numerics: String,
    /// All settings in effect, by name, and `train.items` or `train.epochs`.
    pub settings: BTreeMap<String, String>,
    /// Names of the accepted phases.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<String>,
    /// Seed of weights and data order.
    pub seed: u32,
    /// Build of the trainer, in short; empty when unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trainer: String,
    /// The newest attempt that trained it.
    pub attempt: String,
    /// Names of the launches that train with this, the newest last; empty when an earlier version recorded it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<String>,
    /// Whether it stands for several of the oldest segments, of which it describes the last.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub merged: bool,
}

/// Names of the settings of two segments that differ. The length of the training counts where both name it: earlier
/// versions did not.
pub fn differing<'a>(a: &'a BTreeMap<String, String>, b: &'a BTreeMap<String, String>) -> BTreeSet<&'a str> {
    let is_length = |name: &str| name.starts_with("train.");
    let has_length = |settings: &BTreeMap<String, String>| settings.keys().any(|name| is_length(name));
    let compares = has_length(a) && has_length(b);
    let names = a.keys().chain(b.keys()).filter(|name| a.get(*name) != b.get(*name));
    names.map(String::as_str).filter(|name| compares || !is_length(name)).collect()
}

/// A training of this job that is not continued.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EarlierTraining {
    /// Directory of its checkpoints in the storage; absent: the storage itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Optimizer steps done.
    pub steps: u64,
    /// Items trained.
    pub items: u64,
    /// Newest complete checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointStatus>,
    /// Best complete checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<BestCheckpointStatus>,
    /// Hash of the training target that has been reached.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub completed: String,
    /// Training resumes from no checkpoint with more items than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_not_after_items: Option<u64>,
    /// What trained it.
    pub segments: Vec<SegmentStatus>,
}

/// For `skip_serializing_if`.
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A CUSUM of the shortfall of the throughput windows: the logarithm of expected over measured items per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CusumStatus {
    /// Sum of the shortfalls beyond the allowance, at least 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sum: Option<Decimal>,
    /// Shortfall of the newest window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest: Option<Decimal>,
    /// The windows before the sum last left 0.
    #[serde(skip_serializing_if = "MomentsStatus::is_empty")]
    pub before: MomentsStatus,
    /// Those since.
    #[serde(skip_serializing_if = "MomentsStatus::is_empty")]
    pub since: MomentsStatus,
    /// Sum of measured over expected items per second of those since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speeds: Option<Decimal>,
}

/// Number of windows, and sums over them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MomentsStatus {
    /// Windows; older ones count less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<Decimal>,
    /// Sum of the shortfalls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sum: Option<Decimal>,
    /// Sum of their squares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub squares: Option<Decimal>,
    /// Sum of their products with the shortfall of the window before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub products: Option<Decimal>,
}

impl MomentsStatus {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Training with settings that were replaced since, as after a rollback.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplacedSettings {
    /// Items that the training with the settings in effect did not have to train again.
    pub items: u64,
    /// Seconds that all items trained with earlier settings took, at the measured speeds.
    pub seconds: Decimal,
}

/// A slow-down of the training whose cause is being measured: pairs of launches with and without the phases in
/// question, on the same devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SlowdownStatus {
    /// Hash of the settings that became slow.
    pub revision: String,
    /// Items per second of the training over its newest window.
    pub items_per_second: Option<Decimal>,
    /// Items per second that were expected.
    pub promised_items_per_second: Option<Decimal>,
    /// Devices on which the training was slow.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub placement: String,
    /// Human-readable description of the slow-down.
    pub message: String,
    /// Whether the settings are slower than before relative to those without any phase: one of the phases is the cause.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_a_phase: bool,
    /// Phases without which the training would be as slow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cleared: Vec<String>,
    /// The evidence of the current comparison.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<LaunchStatus>,
}

/// Devices that are slower than measured, whatever the settings: the training there is compared with its own speed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlowMachine {
    /// The devices.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub placement: String,
    /// Items per second of the training there.
    pub items_per_second: Decimal,
}

/// A complete checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointStatus {
    /// Name relative to the storage.
    pub name: String,
    /// Optimizer steps done.
    pub step: u64,
    /// Items seen.
    pub items: u64,
}

/// The best checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BestCheckpointStatus {
    /// The checkpoint.
    pub checkpoint: CheckpointStatus,
    /// The validation metric by which it is the best.
    pub metric: String,
    /// The value of the metric.
    pub value: Decimal,
}
