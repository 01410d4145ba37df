//! The status of a job: measurements, verdicts and their evidence.
//!
//! It is the only persistent state of the decision core, and is bounded: under 64 KiB of JSON for 50 phases. Numbers
//! that are not integers are decimal strings of six significant digits; times are RFC 3339.

mod attempt;
mod phase;
mod search;
mod training;

pub use attempt::{AttemptStatus, Manner, OwnFailure, Purpose, RetryStatus, StopCause};
pub use phase::{Arm, BaselineStatus, BundleStatus, LaunchStatus, PhaseState, PhaseStatus, QualityStatus, Speedup};
pub use search::{BestTrial, FinalistStatus, SearchArm, SearchComparison, SearchState, SearchStatus};
pub use training::{
    BestCheckpointStatus, CheckpointStatus, CusumStatus, EarlierTraining, MomentsStatus, ReplacedSettings,
    SegmentStatus, SlowMachine, SlowdownStatus, TrainingStatus, differing,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use pawl_contract::decimal::Decimal;
use pawl_contract::settings::Settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of launches kept as evidence per task: the pairs of the last look, each of which may have been
/// repeated, and what the looks before it repeated.
pub const MAX_LAUNCHES: usize = 32;

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
    /// Settings in effect: the baseline with all accepted patches, and the winner of the search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective_settings: Option<Settings>,
    /// Hash of the effective settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Measurements of the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<BaselineStatus>,
    /// The trainer that ran last; the evidence is about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trainer: Option<TrainerStatus>,
    /// The phases, in the order of the spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseStatus>,
    /// All accepted phases together against the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<BundleStatus>,
    /// The stages of the search, in the order of the spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<SearchStatus>,
    /// The training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingStatus>,
    /// Cost so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostStatus>,
    /// The current attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptStatus>,
    /// Further attempts, while a search runs several trials at the same time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parallel: Vec<AttemptStatus>,
    /// Number of the newest attempt; attempts are numbered from 1.
    pub attempts: u32,
    /// Infrastructure failures in the current task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryStatus>,
    /// Infrastructure failures of further tasks that run at the same time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retries: Vec<RetryStatus>,
    /// Speedup over the baseline so far: the product of the accepted phases' speedups, then the speedup of the bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<Decimal>,
    /// Progress, for the printer column: `phase 3/8`, then `41%` of the training; `queued` while the job waits in its
    /// Kueue queue.
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

impl TrainingJobStatus {
    /// The attempts that have not ended: one, or several while a search runs several trials at the same time.
    pub fn under_way(&self) -> impl Iterator<Item = &AttemptStatus> {
        self.attempt.iter().chain(&self.parallel)
    }

    /// As [`Self::under_way`].
    pub fn under_way_mut(&mut self) -> impl Iterator<Item = &mut AttemptStatus> {
        self.attempt.iter_mut().chain(&mut self.parallel)
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// A build of the trainer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainerStatus {
    /// `spec.trainer.image`; absent: the default image, or the built-in trainer of `pawl run`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// Digest of the image that ran, or version of the built-in trainer.
    pub build: String,
    /// The first attempt that was seen to run it: what older ones run says nothing new.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub attempt: String,
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

/// Cost of the job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CostStatus {
    /// Device time so far in milliseconds.
    pub device_milliseconds: u64,
    /// Device time in milliseconds by purpose: `Preflight`, `Speed`, `Quality`, `Bundle`, `LeaveOneOut`, `Search`,
    /// `Train`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, u64>")]
    pub purposes: BTreeMap<Purpose, u64>,
    /// Device hours so far (process hours on the CPU).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hours: Option<Decimal>,
    /// Cost so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent: Option<Decimal>,
    /// Savings so far: the estimated cost of training the same items with the baseline, minus the cost of this training
    /// and of preflight, measurement and quality launches. Negative until the savings exceed the cost of measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<Decimal>,
    /// Savings in percent of the estimated cost of training the same items with the baseline; reported without a price
    /// too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_percent: Option<Decimal>,
    /// Currency.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub currency: String,
}
