//! Plans: what an attempt runs and what one launch does.

use crate::settings::Settings;
use serde::{Deserialize, Serialize};

/// What a launch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum LaunchKind {
    /// Checks settings and predicts memory; runs no kernel.
    Preflight,
    /// Measures speed over a window of steps.
    Measure,
    /// Trains a number of items and evaluates, for the quality gate.
    Quality,
    /// One trial of a search.
    Search,
    /// Trains for real, with checkpoints.
    Train,
}

/// What to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadPlan {
    /// Name of a built-in workload; `None` for a foreign image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The workload's own configuration, checked by the workload.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub config: serde_json::Map<String, serde_json::Value>,
}

/// How long a launch runs. Exactly what the kind needs is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// Steps before the window (Measure).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// Steps in the window (Measure).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_steps: Option<u64>,
    /// Items to train (Quality, Train): the launch ends with the first step that reaches them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<u64>,
    /// Epochs to train (Train).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u32>,
    /// Items between evaluations (Train); evaluation at the end is always made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_every_items: Option<u64>,
    /// End early when validation stops improving (Train).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStopping>,
}

/// End training when the validation loss has not improved by more than `min_delta` for `patience` evaluations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EarlyStopping {
    /// Evaluations without improvement before the end.
    pub patience: u32,
    /// The least improvement that counts.
    pub min_delta: f64,
}

/// When a launch writes checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointPolicy {
    /// Seconds between checkpoints.
    pub every_seconds: f64,
    /// Complete checkpoints kept; older ones are deleted.
    pub keep: u32,
    /// Start from the newest complete checkpoint, if there is one.
    pub resume: bool,
    /// Resume from no checkpoint that has seen more items than this: what came later is damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_not_after_items: Option<u64>,
}

/// One launch: fresh processes on every rank, one seed, nothing carried over. This is `plan.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaunchPlan {
    /// Contract version.
    pub contract: u32,
    /// Name of the job.
    pub job: String,
    /// Name of the attempt.
    pub attempt: String,
    /// Name of the launch, unique within the job and deterministic.
    pub launch: String,
    /// What it is for.
    pub kind: LaunchKind,
    /// What to train.
    pub workload: WorkloadPlan,
    /// The folded settings: baseline and every patch that applies.
    pub settings: Settings,
    /// Seed of weights and data order.
    pub seed: u64,
    /// How long it runs.
    pub budget: Budget,
    /// Checkpoints, for [`LaunchKind::Train`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointPolicy>,
    /// Seconds without a step after which the rank counts as hung.
    pub hang_timeout_seconds: f64,
}

/// An attempt: one gang that runs launches in order on the same devices, then ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptPlan {
    /// Contract version.
    pub contract: u32,
    /// Name of the job.
    pub job: String,
    /// `<job>-<attempt number>`.
    pub attempt: String,
    /// Agents in the gang.
    pub replicas: u32,
    /// Ranks per agent.
    pub ranks_per_replica: u32,
    /// GPUs per agent; 0 when the ranks run on the CPU.
    pub gpus_per_replica: u32,
    /// The gang that the launches are checked for, when that is not this one: in the first attempt of a job, one rank
    /// without a GPU checks for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<Shape>,
    /// Program and arguments of a rank; empty: the trainer that is built in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Seconds within which all agents must have met, counted by each from its own start; absent: the agent's own limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gather_seconds: Option<f64>,
    /// What to run, in order.
    pub launches: Vec<LaunchPlan>,
    /// Whether the first launch that does not end [`crate::exit::Outcome::Done`] ends the attempt.
    pub stop_on_failure: bool,
}

impl AttemptPlan {
    /// Number of ranks that run.
    pub fn ranks(&self) -> u32 {
        self.replicas * self.ranks_per_replica
    }

    /// Number of ranks that each rank is told of: of those that run, or of the gang that is checked.
    pub fn world_size(&self) -> u32 {
        self.checks.map_or_else(|| self.ranks(), |gang| gang.replicas * gang.ranks_per_replica)
    }
}

/// How large a gang is, and on what it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// Agents.
    pub replicas: u32,
    /// Ranks per agent.
    pub ranks_per_replica: u32,
    /// GPUs per agent; 0 when the ranks run on the CPU.
    pub gpus_per_replica: u32,
}
