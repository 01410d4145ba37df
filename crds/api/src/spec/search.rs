//! Searches over hyperparameters: declared in the API, not available yet.

use super::one;
use pawl_contract::decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A search over hyperparameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Search {
    /// Name, unique in the job.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Number of trials.
    #[schemars(range(min = 1, max = 100000))]
    pub trials: u32,
    /// Epochs per trial.
    #[schemars(range(min = 1, max = 100000))]
    pub epochs: u32,
    /// How the next trial is chosen.
    #[serde(default)]
    pub sampler: Sampler,
    /// When a trial is ended early.
    #[serde(default)]
    pub pruner: Pruner,
    /// The metric to optimize.
    pub objective: Objective,
    /// Number of concurrent trials.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub parallelism: u32,
    /// Parameters to vary.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub parameters: Vec<Parameter>,
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
}

/// When a trial of a search is ended early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Pruner {
    /// Never.
    #[default]
    None,
    /// When it is worse than the median of its peers.
    Median,
    /// By successive halving over several brackets.
    Hyperband,
}

/// What a search optimizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Objective {
    /// Name of the validation metric.
    #[schemars(length(min = 1, max = 63))]
    pub metric: String,
    /// Whether to minimize or maximize it.
    pub goal: Goal,
}

/// Direction in which an objective is optimized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Goal {
    /// Smaller is better.
    Minimize,
    /// Larger is better.
    Maximize,
}

/// A parameter of a search: a range (`min`, `max`, `scale`) or a list of `values`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameter {
    /// Name of a setting, or of a workload setting.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Smallest value of a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Decimal>,
    /// Largest value of a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Decimal>,
    /// How a range is sampled.
    #[serde(default)]
    pub scale: Scale,
    /// The values of a list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 256)))]
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
