//! The status of a search: its trials in a compact form, the finalists, the winner.

use pawl_contract::decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// State of a stage of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, strum::Display)]
pub enum SearchState {
    /// Its trials run.
    #[default]
    Running,
    /// The best trials are repeated with further seeds.
    Repeating,
    /// It has ended.
    Done,
}

/// One stage of a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SearchStatus {
    /// Name, as in the spec.
    pub name: String,
    /// Current state.
    pub state: SearchState,
    /// Why it ended, in one CamelCase word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable explanation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Hash of all inputs of the trials, the base settings excepted; if it changes, the trials that do not fit any more
    /// are discarded.
    pub input_hash: String,
    /// Hash of the inputs of a trial's result, beside its settings.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub results_hash: String,
    /// The parameters by which the trials are written, as JSON: those that fit are kept when they change. Empty when it
    /// is too long.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub space: String,
    /// Hash of the settings of trial 0.
    pub base: String,
    /// Hash of the stage that was completed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub completed: String,
    /// Whether the measurement of the dry run passed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Start time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// Device time of searches before this stage, milliseconds.
    pub spent_before: u64,
    /// The trials by number: `state;target;values;reports;items per second;point`, read by `kubectl pawl`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<String>,
    /// The best complete trial so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<BestTrial>,
    /// The repeated trials.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalists: Vec<FinalistStatus>,
    /// The best trial of the last stage against the settings accepted before the search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<SearchComparison>,
    /// The trial whose settings are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub winner: Option<BestTrial>,
    /// Trials that no other one dominates, with several objectives.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pareto: Vec<u32>,
}

/// A trial with its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BestTrial {
    /// Its number.
    pub trial: u32,
    /// Values of the objectives; of a repeated trial, the mean over its seeds.
    pub values: Vec<Decimal>,
    /// Values of the parameters by name.
    pub parameters: BTreeMap<String, String>,
}

/// A trial against the settings accepted before the search, with seeds that chose neither.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SearchComparison {
    /// Number of the trial.
    pub trial: u32,
    /// The trial's settings.
    pub candidate: SearchArm,
    /// The settings accepted before the search.
    pub accepted: SearchArm,
    /// Whether those are kept: the trial is not better by more than the noise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
}

/// Repetitions of the same settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SearchArm {
    /// The objective by seed.
    pub values: Vec<Decimal>,
    /// Items per second by seed; 0 if unknown.
    pub items_per_second: Vec<Decimal>,
    /// Whether a repetition failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// A trial that is repeated with further seeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FinalistStatus {
    /// Its number.
    pub trial: u32,
    /// The objective by seed, the first that of the trial.
    pub values: Vec<Decimal>,
    /// Whether a repetition failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}
