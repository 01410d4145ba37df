//! The status of a job: measurements, verdicts and their evidence.
//!
//! It is the only persistent state of the decision core, and is bounded: under 64 KiB of JSON for 50 phases. Numbers that
//! are not integers are decimal strings of six significant digits; times are RFC 3339.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use pawl_contract::decimal::Decimal;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Measured;
use pawl_contract::plan::LaunchKind;
use pawl_contract::settings::Settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of launches kept as evidence per trial: 7 pairs.
pub const MAX_LAUNCHES: usize = 14;

/// The status of a `TrainingJob`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainingJobStatus {
    /// Generation of the spec on which this status is based.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Reconciling, Stalled, Complete, Failed, Suspended, Degraded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Current stage.
    pub stage: Stage,
    /// Settings in effect: the baseline with all accepted patches applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective_settings: Option<Settings>,
    /// Hash of the effective settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Measurements of the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<BaselineStatus>,
    /// The phases, in the order of the spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseStatus>,
    /// All accepted phases together against the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<BundleStatus>,
    /// The training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingStatus>,
    /// Cost so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostStatus>,
    /// The current attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptStatus>,
    /// Number of the newest attempt; attempts are numbered from 1.
    pub attempts: u32,
    /// Infrastructure failures in the current trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryStatus>,
    /// Speedup over the baseline so far: the product of the accepted phases' speedups, then the speedup of the bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<Decimal>,
    /// Progress, for the printer column: `phase 3/8`, then `41%` of the training; `queued` while the job waits in its Kueue queue.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub progress: String,
    /// Settings that the preflight found invalid; the job fails with all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<InvalidSettings>,
    /// Why the job failed; it is retried after a change of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// Time since which it is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspended_since: Option<String>,
    /// Seconds for which it was suspended or queued before; they do not count towards the deadline.
    #[serde(skip_serializing_if = "is_zero")]
    pub suspended_seconds: u64,
    /// Start time of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// Completion time of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Why a job failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureStatus {
    /// Reason, in one CamelCase word, such as `InvalidPlan`.
    pub reason: String,
    /// Human-readable explanation, with the remedy.
    pub message: String,
    /// Hash of the spec that failed.
    pub spec_hash: String,
}

/// Settings that the trainer rejects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InvalidSettings {
    /// Hash of all inputs of the check.
    pub input_hash: String,
    /// Human-readable description of the error, with the remedy.
    pub message: String,
}

/// Stage of a job.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
)]
pub enum Stage {
    /// Not started.
    #[default]
    Pending,
    /// Settings are being checked and memory predicted.
    Preflight,
    /// Phases are being evaluated.
    Optimizing,
    /// Hyperparameters are being searched.
    Searching,
    /// Training is running.
    Training,
    /// All work is done.
    Complete,
    /// The job failed.
    Failed,
    /// No pods run until the job is resumed.
    Suspended,
}

/// State of a phase.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
)]
pub enum PhaseState {
    /// Not started.
    #[default]
    Pending,
    /// Its settings are being checked.
    Preflight,
    /// It is being measured.
    Measuring,
    /// A fallback is about to be tried.
    Retrying,
    /// It is being rolled back.
    RollingBack,
    /// Its patch is part of the effective settings.
    Accepted,
    /// It was rolled back, see the reason.
    RolledBack,
    /// The trainer or the device does not support it.
    Unsupported,
    /// A phase that it requires is not accepted, or a phase that it conflicts with is.
    Skipped,
    /// The evidence is not sufficient for a verdict.
    Inconclusive,
    /// Infrastructure failures exceeded `lifecycle.maxRestarts`.
    Error,
}

impl PhaseState {
    /// Whether the state is terminal: only a change of the spec, such as a pin, re-opens the phase.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Preflight | Self::Measuring | Self::Retrying | Self::RollingBack => false,
            Self::Accepted
            | Self::RolledBack
            | Self::Unsupported
            | Self::Skipped
            | Self::Inconclusive
            | Self::Error => true,
        }
    }
}

/// One phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseStatus {
    /// Name, as in the spec.
    pub name: String,
    /// Current state.
    pub state: PhaseState,
    /// Reason, in one CamelCase word, such as `SpeedAboveThreshold`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable explanation: metric, value and threshold.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Fallback with which the phase was evaluated, numbered from 1; 0: the phase without a fallback.
    pub rung: u32,
    /// Fallback in effect since a failure in training, if it differs from `rung`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_rung: Option<u32>,
    /// Whether it was accepted and reverted later: phases that were evaluated on top of it are not evaluated again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// Hashes of its completed preflight checks, one per fallback.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checked: Vec<String>,
    /// Hash of all inputs of its verdict; if it changes, the phase is measured again.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub input_hash: String,
    /// Measured speedup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<Speedup>,
    /// Measured quality.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<QualityStatus>,
    /// Measurements of its launches: the median of rates and shares, the maximum of memory.
    #[serde(flatten)]
    pub measured: Measured<Decimal>,
    /// The evidence: its newest launches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<LaunchStatus>,
}

impl PhaseStatus {
    /// Fallback whose patch is in effect when the phase is accepted, numbered from 1; 0: none.
    pub fn effective_rung(&self) -> u32 {
        self.training_rung.unwrap_or(self.rung)
    }
}

/// A speedup with its confidence interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Speedup {
    /// Geometric mean of the pairs' ratios, candidate over control.
    pub estimate: Decimal,
    /// Lower one-sided bound; absent with a single pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower: Option<Decimal>,
    /// Upper one-sided bound; absent with a single pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper: Option<Decimal>,
    /// Pairs measured.
    pub pairs: u32,
}

/// Quality against the original baseline at equal items seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QualityStatus {
    /// Mean increase of the validation loss over the baseline.
    pub loss_delta: Decimal,
    /// Upper one-sided bound of the increase; absent with a single seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_delta_upper: Option<Decimal>,
    /// Mean relative increase of gated metrics by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Decimal>,
    /// Seeds compared.
    pub seeds: u32,
    /// Items seen.
    pub items: u64,
}

/// Arm of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Arm {
    /// The settings accepted so far (A).
    Control,
    /// With the phase (B).
    Candidate,
}

/// A launch that is part of the evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LaunchStatus {
    /// Name of the launch.
    pub name: String,
    /// Purpose of the launch.
    pub kind: LaunchKind,
    /// Arm of the comparison.
    pub arm: Arm,
    /// Index of the pair (Measure) or seed (Quality), from 0.
    pub pair: u32,
    /// Seed.
    pub seed: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Measurements; of the validation, the loss and the metrics with a gate.
    #[serde(flatten)]
    pub measured: Measured<Decimal>,
    /// Devices on which it ran: only launches with equal placement form a pair.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub placement: String,
    /// Message of the trainer; empty after success.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Measurements of the baseline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BaselineStatus {
    /// Hash of all inputs of its measurement.
    pub input_hash: String,
    /// Measurements of its launches: the median of rates and shares, the maximum of memory.
    #[serde(flatten)]
    pub measured: Measured<Decimal>,
    /// Items of one pass over the training data, when the trainer reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items_per_epoch: Option<u64>,
    /// Its quality launches, one per seed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<LaunchStatus>,
}

/// Measurement of all accepted phases together against the baseline, and leave-one-out trials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BundleStatus {
    /// Hash of all inputs of its verdict.
    pub input_hash: String,
    /// Current state.
    pub state: PhaseState,
    /// Reason, in one CamelCase word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable explanation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Speedup over the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<Speedup>,
    /// Quality against the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<QualityStatus>,
    /// Measurements of its launches: the median of rates and shares, the maximum of memory.
    #[serde(flatten)]
    pub measured: Measured<Decimal>,
    /// Phases with a completed leave-one-out trial.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The evidence of the current comparison.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<LaunchStatus>,
}

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
    /// Where the job's checkpoints are; absent when it trains in a local state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// Newest complete checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointStatus>,
    /// Best complete checkpoint, by `train.checkpoint.best`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<BestCheckpointStatus>,
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

/// Cost of the job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CostStatus {
    /// Device time so far in milliseconds.
    pub device_milliseconds: u64,
    /// Device time in milliseconds by purpose: `Preflight`, `Speed`, `Quality`, `Bundle`, `LeaveOneOut`, `Train`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, u64>")]
    pub purposes: BTreeMap<Purpose, u64>,
    /// Device hours so far (process hours on the CPU).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hours: Option<Decimal>,
    /// Cost so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent: Option<Decimal>,
    /// Savings so far: the estimated cost of training the same items with the baseline, minus the cost of this training and
    /// of preflight, measurement and quality launches. Negative until the savings exceed the cost of measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<Decimal>,
    /// Savings in percent of the estimated cost of training the same items with the baseline; reported without a price too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_percent: Option<Decimal>,
    /// Currency.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub currency: String,
}

/// Purpose of an attempt.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
)]
pub enum Purpose {
    /// Checks the baseline and every phase.
    #[default]
    Preflight,
    /// Measures a phase.
    Speed,
    /// Trains for the quality gate of a phase.
    Quality,
    /// Measures all accepted phases against the baseline.
    Bundle,
    /// Measures all accepted phases against all but one.
    LeaveOneOut,
    /// Trains the model.
    Train,
}

/// The current attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AttemptStatus {
    /// `<job>-<number>`.
    pub name: String,
    /// Its purpose.
    pub purpose: Purpose,
    /// The phase that it evaluates, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Hash of its plan.
    pub plan_hash: String,
    /// Time of the start decision, or of admission by Kueue.
    pub started: String,
    /// Time since which it waits in its Kueue queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_since: Option<String>,
    /// Whether it was observed: an attempt that was observed and no longer exists was lost, one that never was is started.
    pub seen: bool,
    /// The trial it belongs to: retries are counted per trial.
    pub trial: String,
    /// Its launches.
    pub launches: Vec<String>,
    /// Launches whose results are in this status.
    pub folded: Vec<String>,
    /// Newest checkpoint of the training when the attempt was started: it must find one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumes: Option<CheckpointStatus>,
    /// Reason for stopping it; absent unless it is being stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopCause>,
}

/// Reason for stopping an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StopCause {
    /// Its launches are no longer needed.
    NotWanted,
    /// Not all of its ranks started in time.
    SchedulingTimeout,
    /// Its queue preempted it.
    Preempted,
    /// A rank was lost, and the others cannot continue without it.
    GangBroken,
}

/// Infrastructure failures in the current trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryStatus {
    /// The trial.
    pub trial: String,
    /// Outcome of the control launch, when the accepted settings failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_outcome: Option<Outcome>,
    /// Whether the failed settings are those of the baseline.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub baseline_failed: bool,
    /// Failures so far.
    pub count: u32,
    /// Earliest time of the next attempt (back-off).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<String>,
    /// The newest failure.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}
