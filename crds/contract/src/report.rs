//! Reports: what a launch found.

use crate::CONTRACT_VERSION;
use crate::exit::Outcome;
use crate::measured::Measured;
use crate::plan::{LaunchKind, LaunchPlan};
use crate::progress::{BestCheckpoint, CheckpointRef};
use serde::{Deserialize, Serialize};

pub use crate::termination::{Folded, fold, unfold};

/// Longest message that a [`LaunchResult`] carries, in bytes.
pub const MAX_MESSAGE: usize = 200;
/// Longest termination message of a pod, in bytes; Kubernetes cuts there.
pub const MAX_TERMINATION_MESSAGE: usize = 4096;

/// A point of the training loss curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LossPoint {
    /// Items seen by the whole gang.
    pub items: u64,
    /// Mean training loss since the point before.
    pub loss: f64,
}

/// Where and on what a launch died.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Rank that failed first, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Optimizer steps done before.
    pub step: u64,
    /// Items seen before by the whole gang; a checkpoint with more items is damaged.
    pub items: u64,
}

/// `report.json`. Rank 0's is the launch's; any other rank's only says what killed it. Every number is finite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Contract version.
    pub contract: u32,
    /// Name of the launch.
    pub launch: String,
    /// What the launch was for.
    pub kind: LaunchKind,
    /// Rank that wrote this.
    pub rank: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// What happened and what to do about it, for people. Empty when all is well.
    #[serde(default)]
    pub message: String,
    /// What was measured: its fields stand beside the others in the JSON.
    #[serde(flatten)]
    pub measured: Measured,
    /// The training loss curve, at most 64 points, evenly spaced in items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<LossPoint>,
    /// Items of one pass over the training data, when the workload has an end; also of a Preflight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_per_epoch: Option<u64>,
    /// Newest complete checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointRef>,
    /// Best complete checkpoint, by the plan's `checkpoint.best` (Train).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<BestCheckpoint>,
    /// Where it died, unless it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

impl Report {
    /// A report that says only how rank `rank` of a launch ended; every measurement is absent.
    pub fn bare(plan: &LaunchPlan, rank: u32, outcome: Outcome) -> Self {
        Self {
            contract: CONTRACT_VERSION,
            launch: plan.launch.clone(),
            kind: plan.kind,
            rank,
            outcome,
            message: String::new(),
            measured: Measured::default(),
            losses: Vec::new(),
            items_per_epoch: None,
            last_checkpoint: None,
            best_checkpoint: None,
            failure: None,
        }
    }
}

/// The compact form of a finished launch, on which decisions are made: at most about 500 bytes of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaunchResult {
    /// Name of the launch.
    pub launch: String,
    /// How it ended.
    pub outcome: Outcome,
    /// First [`MAX_MESSAGE`] bytes of the message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What was measured, at six significant digits: its fields stand beside the others in the JSON.
    #[serde(flatten)]
    pub measured: Measured,
    /// Items of one pass over the training data, when the workload has an end; also of a Preflight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_per_epoch: Option<u64>,
    /// Newest complete checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointRef>,
    /// Best complete checkpoint, by the plan's `checkpoint.best`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<BestCheckpoint>,
    /// Items seen before the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_at_items: Option<u64>,
}

impl LaunchResult {
    /// A result that says only how a launch ended.
    pub fn bare(launch: &str, outcome: Outcome) -> Self {
        Self {
            launch: launch.to_owned(),
            outcome,
            message: String::new(),
            measured: Measured::default(),
            items_per_epoch: None,
            checkpoint: None,
            best_checkpoint: None,
            failed_at_items: None,
        }
    }
}

/// The first `limit` bytes of `text`, cut at a character.
pub fn truncated(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let end = (0..=limit).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    &text[..end]
}

/// Mean loss over the last quarter of a loss curve.
fn final_loss(losses: &[LossPoint]) -> Option<f64> {
    let tail = &losses[losses.len() - losses.len().div_ceil(4)..];
    (!tail.is_empty()).then(|| tail.iter().map(|point| point.loss).sum::<f64>() / tail.len() as f64)
}

impl From<&Report> for LaunchResult {
    fn from(report: &Report) -> Self {
        let mut measured = report.measured.rounded();
        if measured.loss.is_none() {
            measured = Measured { loss: final_loss(&report.losses), ..measured }.rounded();
        }
        if report.kind != LaunchKind::Train {
            measured.first_validation = None;
        }
        Self {
            launch: report.launch.clone(),
            outcome: report.outcome,
            message: truncated(&report.message, MAX_MESSAGE).to_owned(),
            measured,
            items_per_epoch: report.items_per_epoch,
            checkpoint: report.last_checkpoint.clone(),
            best_checkpoint: report.best_checkpoint.clone(),
            failed_at_items: report.failure.as_ref().map(|f| f.items),
        }
    }
}
