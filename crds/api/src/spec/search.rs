//! Searches over hyperparameters, in stages.

use super::one;
use crate::duration::Span;
use pawl_contract::decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A stage of the search over hyperparameters. Trial 0 has the settings accepted so far; exactly one of `epochs` and
/// `items`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Search {
    /// Name, unique in the job.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Number of trials.
    #[schemars(range(min = 1, max = 1000))]
    pub trials: u32,
    /// Epochs of a complete trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub epochs: Option<u32>,
    /// Items of a complete trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4000000000_u64))]
    pub items: Option<u32>,
    /// How the next trial is chosen.
    #[serde(default)]
    pub sampler: Sampler,
    /// When a trial ends early.
    #[serde(default)]
    pub pruner: Pruner,
    /// Parameters of `pruner`.
    #[serde(default)]
    pub pruning: Pruning,
    /// What is optimized; of several, the first decides between trials of the Pareto set.
    #[schemars(length(min = 1, max = 4), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["metric"]))]
    pub objectives: Vec<Objective>,
    /// Number of trials that run at the same time, each in a gang of its own; at most `trials`. With pruner `None`, the
    /// results of a seed do not depend on the order in which they end.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 32))]
    pub parallelism: u32,
    /// Seed of the sampler and of the trials. Default: the first of `seeds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// Parameters to vary.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub parameters: Vec<Parameter>,
    /// What every trial satisfies, such as `batchPerGpu * accumulationSteps <= 512`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 512)))]
    pub constraints: Vec<String>,
    /// Number of best trials with which the next stage begins.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 32))]
    pub hand_on: u32,
    /// Number of best trials of the last stage that are repeated with all `seeds`.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 8))]
    pub finalists: u32,
    /// What the stage may spend.
    #[serde(default)]
    pub budget: SearchBudget,
    /// Ended trials without a better one after which no further trial starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub patience: Option<u32>,
    /// Measure the settings of trial 0 for a few steps first. The job fails if they do not run or miss one of
    /// `gates.gpuMemory`, `maxOffloadOverhead`, `minGpuUtilization`, `minItemsPerSecond` and `maxEpochSeconds`, and if
    /// trial 0 then is infeasible or ends outside of a `min` or `max` of `gates.validationMetrics`.
    #[serde(default)]
    pub dry_run: bool,
}

fn three() -> u32 {
    3
}

/// How the next trial of a search is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Sampler {
    /// Tree-structured Parzen estimator.
    #[default]
    TPE,
    /// Uniformly at random.
    Random,
    /// Every combination.
    Grid,
    /// A scrambled Sobol sequence.
    Sobol,
    /// Gaussian process: few parameters without `when`, one objective.
    GP,
}

/// When a trial of a search is ended early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Pruner {
    /// Never.
    #[default]
    None,
    /// When it is worse than the median of the other trials.
    Median,
    /// By successive halving over several brackets.
    Hyperband,
    /// By asynchronous successive halving.
    ASHA,
}

/// Parameters of a pruner, in epochs, or in items when the stage has `items`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pruning {
    /// Training up to the first comparison; of Median, also between comparisons.
    #[schemars(range(min = 1))]
    pub first: u32,
    /// The best 1/n are promoted (ASHA, Hyperband).
    #[schemars(range(min = 2, max = 64))]
    pub reduction: u32,
    /// Training before which nothing is stopped (Median).
    pub warmup: u32,
    /// Trials to compare with, at least (Median).
    #[schemars(range(min = 1, max = 1000))]
    pub least: u32,
}

impl Default for Pruning {
    fn default() -> Self {
        Self { first: 1, reduction: 3, warmup: 0, least: 4 }
    }
}

/// What a stage of a search may spend; running trials are stopped at the limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SearchBudget {
    /// GPU hours, above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hours: Option<Decimal>,
    /// Money, above 0; requires `spec.cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Decimal>,
    /// Time since the stage began, at least 1s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_time: Option<Span>,
}

/// What a search optimizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Objective {
    /// A validation metric, `itemsPerSecond` or `peakMemoryBytes`.
    #[schemars(length(min = 1, max = 63))]
    pub metric: String,
    /// Whether to minimize or maximize it.
    pub goal: Goal,
}

impl Objective {
    /// The objective that is the throughput of a launch.
    pub const ITEMS_PER_SECOND: &str = "itemsPerSecond";
    /// The objective that is its peak memory, bytes.
    pub const PEAK_MEMORY: &str = "peakMemoryBytes";

    /// Whether it is a measurement of a whole launch, and no metric of an evaluation.
    pub fn is_of_launch(&self) -> bool {
        [Self::ITEMS_PER_SECOND, Self::PEAK_MEMORY].contains(&self.metric.as_str())
    }
}

/// Direction in which an objective is optimized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Goal {
    /// Smaller is better.
    Minimize,
    /// Larger is better.
    Maximize,
}

/// A parameter of a search: a range (`min`, `max`, `scale`, `step`) or a list of `values`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameter {
    /// A setting, or the path of a workload setting such as `workload.hidden`. It has a value in `settings` or
    /// `workload.config`.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Smallest value. A workload setting is an integer when `min`, `max` and `step` are written without a decimal
    /// point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Decimal>,
    /// Largest value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Decimal>,
    /// How a range is sampled.
    #[serde(default)]
    pub scale: Scale,
    /// Only multiples of this, added to `min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Decimal>,
    /// The values of a list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 256)))]
    pub values: Vec<String>,
    /// Vary it only with certain values of another parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
}

/// Values of another parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct When {
    /// Name of an earlier parameter.
    #[schemars(length(min = 1, max = 128))]
    pub parameter: String,
    /// Its values.
    #[schemars(length(min = 1, max = 64), inner(length(max = 256)))]
    pub values: Vec<String>,
}

/// How a range is sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Scale {
    /// Evenly.
    #[default]
    Linear,
    /// Evenly in the logarithm.
    Log,
}
