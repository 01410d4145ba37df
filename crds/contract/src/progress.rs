//! The progress of a running launch: `progress.json` and `GET /progress`.

use crate::checkpoint::CheckpointRef;
use crate::measured::Validation;
use crate::plan::LaunchKind;
use serde::{Deserialize, Serialize};

/// A running launch, as of now; rank 0 reports for the gang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Name of the launch.
    pub launch: String,
    /// Purpose of the launch.
    pub kind: LaunchKind,
    /// Optimizer steps done.
    pub step: u64,
    /// Total number of optimizer steps of the launch, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// Items seen by the whole gang.
    pub items: u64,
    /// Index of the current epoch, from 0.
    pub epoch: u32,
    /// Newest training loss, when finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Items per second of the whole gang over the last window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_per_second: Option<f64>,
    /// Number of full throughput windows so far; the guard counts each window once.
    #[serde(default)]
    pub windows: u64,
    /// Estimated seconds until the launch is done, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<f64>,
    /// Newest evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,
    /// Newest complete checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointRef>,
    /// Human-readable description of a rank or GPU that is slower than the others: low throughput is then caused by the
    /// machine, not by the settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub straggler: Option<String>,
}
