//! Reports: what a launch found.

use crate::CONTRACT_VERSION;
use crate::exit::Outcome;
use crate::plan::{LaunchKind, LaunchPlan};
use crate::progress::{BestCheckpoint, CheckpointRef, Validation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use crate::termination::{Folded, fold, unfold};

/// Longest message that a [`LaunchResult`] carries, in bytes.
pub const MAX_MESSAGE: usize = 200;
/// Longest termination message of a pod, in bytes; Kubernetes cuts there.
pub const MAX_TERMINATION_MESSAGE: usize = 4096;

/// Median and spread of a measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spread {
    /// 10th percentile.
    pub p10: f64,
    /// Median.
    pub median: f64,
    /// 90th percentile.
    pub p90: f64,
}

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
    /// Optimizer steps done.
    #[serde(default)]
    pub steps: u64,
    /// Items seen by the whole gang, those before a resumed checkpoint included.
    #[serde(default)]
    pub items: u64,
    /// Items per second of the whole gang over the window: data loading included, evaluation and checkpoints excluded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_per_second: Option<f64>,
    /// Seconds per optimizer step over the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<Spread>,
    /// The training loss curve, at most 64 points, evenly spaced in items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<LossPoint>,
    /// Evaluation before the first step (Train, Quality).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_validation: Option<Validation>,
    /// Newest evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,
    /// Device memory (host memory of tensors on the CPU) at its peak, bytes, largest rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// What the memory plan predicted, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_memory_bytes: Option<u64>,
    /// Share of the window that a step waited for data, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader_wait_share: Option<f64>,
    /// Share of the window that a step waited for collectives, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective_wait_share: Option<f64>,
    /// Share of the window spent on optimizer offload that nothing hid, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_share: Option<f64>,
    /// Device utilization over the window, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
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
    /// Seconds from the start of the process to this report.
    #[serde(default)]
    pub wall_seconds: f64,
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
            steps: 0,
            items: 0,
            items_per_second: None,
            step_seconds: None,
            losses: Vec::new(),
            first_validation: None,
            validation: None,
            peak_memory_bytes: None,
            predicted_memory_bytes: None,
            loader_wait_share: None,
            collective_wait_share: None,
            offload_share: None,
            utilization: None,
            items_per_epoch: None,
            last_checkpoint: None,
            best_checkpoint: None,
            failure: None,
            wall_seconds: 0.0,
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
    /// Optimizer steps done.
    #[serde(default)]
    pub steps: u64,
    /// Items seen.
    #[serde(default)]
    pub items: u64,
    /// Items per second of the whole gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_per_second: Option<f64>,
    /// Mean loss over the last quarter of the loss curve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_loss: Option<f64>,
    /// Of a training: validation metrics before its first step.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub first_validation: BTreeMap<String, f64>,
    /// Newest validation metrics; `loss` is always among them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub validation: BTreeMap<String, f64>,
    /// Peak memory, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Predicted memory, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_memory_bytes: Option<u64>,
    /// Share of time waiting for data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader_wait_share: Option<f64>,
    /// Share of time in exposed optimizer offload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_share: Option<f64>,
    /// Device utilization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    /// Items of one pass over the training data.
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
    /// Seconds it ran.
    #[serde(default)]
    pub wall_seconds: f64,
}

/// Six significant digits: enough for a decision, short in a message.
pub(crate) fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// The first `limit` bytes of `text`, cut at a character.
pub fn truncated(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let end = (0..=limit).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    &text[..end]
}

fn metrics(validation: Option<&Validation>) -> BTreeMap<String, f64> {
    let all = validation.into_iter().flat_map(|validation| &validation.metrics);
    all.map(|(name, &value)| (name.clone(), rounded(value))).collect()
}

impl From<&Report> for LaunchResult {
    fn from(report: &Report) -> Self {
        let tail = &report.losses[report.losses.len() - report.losses.len().div_ceil(4)..];
        let final_loss =
            (!tail.is_empty()).then(|| rounded(tail.iter().map(|p| p.loss).sum::<f64>() / tail.len() as f64));
        Self {
            launch: report.launch.clone(),
            outcome: report.outcome,
            message: truncated(&report.message, MAX_MESSAGE).to_owned(),
            steps: report.steps,
            items: report.items,
            items_per_second: report.items_per_second.map(rounded),
            final_loss,
            first_validation: metrics(report.first_validation.as_ref().filter(|_| report.kind == LaunchKind::Train)),
            validation: metrics(report.validation.as_ref()),
            peak_memory_bytes: report.peak_memory_bytes,
            predicted_memory_bytes: report.predicted_memory_bytes,
            loader_wait_share: report.loader_wait_share.map(rounded),
            offload_share: report.offload_share.map(rounded),
            utilization: report.utilization.map(rounded),
            items_per_epoch: report.items_per_epoch,
            checkpoint: report.last_checkpoint.clone(),
            best_checkpoint: report.best_checkpoint.clone(),
            failed_at_items: report.failure.as_ref().map(|f| f.items),
            wall_seconds: rounded(report.wall_seconds),
        }
    }
}
