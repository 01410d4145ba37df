//! Verdicts and their evidence: the launches of the baseline, of each phase, and of all phases together.

use pawl_contract::decimal::Decimal;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Measured;
use pawl_contract::plan::LaunchKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

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
    /// It is not measured: a phase that it requires is not accepted, a phase that it conflicts with is, or it has no
    /// effect.
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
    #[serde(rename = "rung")]
    pub fallback: u32,
    /// Fallback in effect since a failure in training, if it is another one.
    #[serde(rename = "trainingRung", skip_serializing_if = "Option::is_none")]
    pub training_fallback: Option<u32>,
    /// Whether it was accepted and reverted later: phases that were evaluated on top of it are not evaluated again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// Hashes of its completed preflight checks, one per fallback.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checked: Vec<String>,
    /// Hash of all inputs of its verdict; if it changes, the phase is measured again.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub input_hash: String,
    /// Why it is judged by the quality gates although it declares `numerics: Equivalent`: its training losses agree or
    /// differ less clearly than a verdict needs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub judged_as_changed: String,
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
    pub fn effective_fallback(&self) -> u32 {
        self.training_fallback.unwrap_or(self.fallback)
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
    /// Pairs counted.
    pub pairs: u32,
    /// Those of them that were disturbed from outside, such as by other programs on the CPUs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub disturbed: u32,
}

impl Speedup {
    /// Bounds of a speedup that say something: two pairs may give others, of thirty digits.
    pub const MEANT: Range<f64> = 1e-3..1e3;
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
    /// Mean training loss of each quarter of the launch (Measure), if its curve can be compared with that of others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<Decimal>,
    /// Devices on which it ran: only launches with equal placement form a pair.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub placement: String,
    /// Number of the attempt that ran it (Measure), until the other launch of its pair has run there, too: only
    /// launches of the same attempt form a pair. Absent: they have, or it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Build of the trainer, if it is not `trainer.build`: such a launch is not compared with newer ones.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trainer: String,
    /// Message of the trainer; empty after success.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl LaunchStatus {
    /// Number of an attempt that was lost, when another is created under its name: no launch of that one forms a pair
    /// with its own.
    pub const LOST_ATTEMPT: u32 = i32::MAX.cast_unsigned();
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

/// Measurement of all accepted phases together against the baseline.
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
    /// Hash of the settings that were measured.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// Whether other settings are in effect since, as after a rollback in training: those were not measured together.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub outdated: bool,
    /// Speedup over the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<Speedup>,
    /// Quality against the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<QualityStatus>,
    /// Measurements of its launches: the median of rates and shares, the maximum of memory.
    #[serde(flatten)]
    pub measured: Measured<Decimal>,
    /// The evidence of the current comparison.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<LaunchStatus>,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}
