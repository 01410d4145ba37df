//! The progress of a running launch: `progress.json` and `GET /progress`.
//!
//! # Signs of life
//! The agent ends a launch as [`crate::exit::Outcome::Hang`] when its rank 0 shows no sign of life for too long. Signs
//! of life are a completed step, an evaluation, a checkpoint, and another [`Progress::phase`]. An increased
//! [`Progress::heartbeat`] is one only in a phase other than training: while a launch trains, or reports no phase,
//! steps are expected, and a checkpoint that is written meanwhile proves nothing about them.
//!
//! While it trains, the limit is `hangTimeoutSeconds` of the plan; in any other phase, and before the first step, the
//! agent's start allowance is added. Each phase other than training also has a maximum duration
//! ([`RankPhase::longest`]), whatever its heartbeats: an operation that is retried forever is a hang.
//!
//! A trainer that saves, evaluates or prepares data for longer than that allowance reports the two fields; both are
//! optional.
//!
//! ```
//! use pawl_contract::progress::{Progress, RankPhase};
//!
//! let saving: Progress = serde_json::from_value(serde_json::json!({
//!     "launch": "train-0badcafe", "kind": "Train", "step": 40, "items": 320, "epoch": 0,
//!     "phase": "Saving", "heartbeat": 268_435_456,
//! }))?;
//! assert_eq!((saving.phase, saving.heartbeat), (Some(RankPhase::Saving), 268_435_456));
//! # Ok::<(), serde_json::Error>(())
//! ```

use crate::checkpoint::{CheckpointRef, TrainedPart};
use crate::measured::Validation;
use crate::plan::LaunchKind;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a rank is doing. Unrelated to the optimization phases of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display, strum::EnumIter)]
pub enum RankPhase {
    /// Reading the plan, opening devices, connecting to the other ranks.
    Starting,
    /// Generating, downloading or verifying data.
    DataGeneration,
    /// Compiling kernels, or choosing algorithms.
    Compiling,
    /// Reading a checkpoint.
    Resuming,
    /// Running optimizer steps. A checkpoint that is written meanwhile is no phase of its own.
    Training,
    /// Evaluating.
    Validating,
    /// Writing a checkpoint, while no step runs.
    Saving,
    /// A name that this version does not know.
    #[serde(other)]
    Other,
}

impl RankPhase {
    /// The maximum duration of a phase without a completed step, whatever its heartbeats. `None`: the hang timeout
    /// alone applies.
    pub const fn longest(self) -> Option<Duration> {
        const HOUR: u64 = 3600;
        let hours = match self {
            Self::Training => return None,
            Self::Starting | Self::Other => 1,
            Self::Compiling | Self::Resuming | Self::Saving => 6,
            Self::Validating => 24,
            Self::DataGeneration => 168,
        };
        Some(Duration::from_secs(hours * HOUR))
    }
}

/// A running launch, as of now; rank 0 reports for the gang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Name of the launch.
    pub launch: String,
    /// Purpose of the launch.
    pub kind: LaunchKind,
    /// What rank 0 is doing; absent: it does not report phases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<RankPhase>,
    /// Counter that increases as the work of the phase advances: bytes read or written, shards generated, kernels
    /// compiled, batches evaluated. Never increased by a timer, which would keep running in a deadlock. Not a sign of
    /// life while the launch trains or reports no phase.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub heartbeat: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Total number of optimizer steps of the launch, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// Items seen by the whole gang.
    pub items: u64,
    /// Items at which this launch resumed a checkpoint of its own job, 0 if it began from none. Absent: not known. What
    /// trained the items before is then only as well known as the newest checkpoint that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_items: Option<u64>,
    /// The parts of the model, from the manifest of the checkpoint that this launch resumed, and this launch as the
    /// last one: the newest 16. Empty: not known. Attempts of which nothing was seen are known by it alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trained: Vec<TrainedPart>,
    /// Checkpoints in the storage that are damaged, or may be: never resumed. Names, the newest 8, as of when this
    /// launch resumed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<String>,
    /// Index of the current epoch, from 0.
    pub epoch: u32,
    /// Newest training loss, when finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Optimizer steps of this launch without an update, because the gradient was not finite or the loss scale too
    /// large.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped_updates: u64,
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
    /// Estimated seconds from SIGTERM to the exit after a checkpoint: the longest step, and twice the longest
    /// checkpoint write, because one may be in progress. Absent before the first checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_seconds: Option<f64>,
}

impl Progress {
    /// The progress of a launch before its first step.
    pub fn at_start(launch: &str, kind: LaunchKind) -> Self {
        Self {
            launch: launch.to_owned(),
            kind,
            phase: None,
            heartbeat: 0,
            step: 0,
            total_steps: None,
            items: 0,
            resumed_items: None,
            trained: Vec::new(),
            quarantined: Vec::new(),
            epoch: 0,
            loss: None,
            skipped_updates: 0,
            items_per_second: None,
            windows: 0,
            eta_seconds: None,
            validation: None,
            last_checkpoint: None,
            straggler: None,
            stop_seconds: None,
        }
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_phase_of_a_later_version_is_not_an_error() {
        let plain = json!({"launch": "l", "kind": "Train", "step": 1, "items": 2, "epoch": 0});
        let read = |value| serde_json::from_value::<Progress>(value).unwrap();
        assert_eq!((read(plain.clone()).phase, read(plain.clone()).heartbeat), (None, 0));
        let mut later = plain;
        later["phase"] = json!("Quantizing");
        assert_eq!(read(later).phase, Some(RankPhase::Other));
    }
}
