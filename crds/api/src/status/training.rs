//! The training and its checkpoints.

use pawl_contract::decimal::Decimal;
use pawl_contract::measured::Measured;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Newest complete checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointStatus>,
    /// Best complete checkpoint, by `train.checkpoint.best`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<BestCheckpointStatus>,
    /// Seconds from SIGTERM to the end of a checkpoint, as estimated by the trainer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_seconds: Option<u64>,
    /// Consecutive windows below the expected throughput.
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
    /// Why training is slower or worse than measured, when no phase is left to roll back.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub degraded: String,
    /// Hash of the training target that has been reached.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub completed: String,
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
