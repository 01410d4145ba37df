//! The spec of a `TrainingJob`: the desired state, written by the user.
//!
//! The bounds of the fields are part of the schema: the API server enforces them, and so does the manifest reader.
//! Every list, map and string is bounded; otherwise the API server cannot estimate the cost of the validation rules
//! (`crate::rules`).

mod budget;
mod containers;
mod judging;
mod phase;
mod pods;
mod search;
mod train;

pub use budget::JudgingBudget;
pub use containers::{InitContainer, PullPolicy, RestartPolicy};
pub use judging::{Analysis, Gates, MetricGate, OnGoalMissed, OnInconclusive, Rollback, Scope};
pub use phase::{Fallback, Numerics, Phase, Pin, Role, Trigger};
pub(crate) use pods::COMMON_VOLUME_TYPES;
pub use pods::{PodSecurity, PodTemplate, Trainer, VOLUME_TYPES};
pub use search::{Goal, Objective, Parameter, Pruner, Pruning, Sampler, Scale, Search, SearchBudget, When};
pub use train::{Checkpoint, Cost, EarlyStopping, Guard, Lifecycle, NO_STORAGE, OnChange, Train};

use pawl_contract::decimal::Decimal;
use pawl_contract::effect::Trainer as EffectTrainer;
use pawl_contract::script::Monitor;
use pawl_contract::settings::Settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A training job: what to train, a baseline, an ordered list of optimization phases, and gates. Pawl measures each
/// phase against the settings accepted so far, accepts it or rolls it back, then trains with the accepted settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainingJobSpec {
    /// Write a checkpoint, then release all GPUs until set to false again.
    #[serde(default)]
    pub suspend: bool,
    /// What to train.
    pub workload: Workload,
    /// Where and how the trainer runs.
    #[serde(default)]
    pub trainer: Trainer,
    /// The baseline: every phase is a patch to these settings.
    #[serde(default)]
    pub settings: Settings,
    /// Seeds of the launches. The quality gate needs several to estimate the variance.
    #[serde(default = "default_seeds")]
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "set"))]
    pub seeds: Vec<u32>,
    /// Optimization phases, in the order in which they are tried. Names are unique.
    #[serde(default)]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub phases: Vec<Phase>,
    /// How phases are measured and evaluated.
    #[serde(default)]
    pub analysis: Analysis,
    /// Acceptance criteria.
    #[serde(default)]
    pub gates: Gates,
    /// Rollback policy.
    #[serde(default)]
    pub rollback: Rollback,
    /// Stages of the search over hyperparameters, in order, after the phases; training uses the winner.
    #[serde(default)]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub search: Vec<Search>,
    /// The training after the phases.
    #[serde(default)]
    pub train: Train,
    /// Price of a GPU hour or a machine hour.
    #[serde(default)]
    pub cost: Cost,
    /// Deadlines and retry limits.
    #[serde(default)]
    pub lifecycle: Lifecycle,
}

impl TrainingJobSpec {
    /// The trainer, as far as it decides which settings have an effect.
    pub fn effect_trainer(&self) -> EffectTrainer {
        EffectTrainer {
            built_in: self.workload.command.is_empty(),
            world_size: self.trainer.world_size(),
            on_gpus: self.trainer.gpus_per_replica > 0,
        }
    }
}

fn default_seeds() -> Vec<u32> {
    vec![42, 43, 44]
}

/// What to train: a workload of the built-in trainer by name, or the command of a custom image. Exactly one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    /// Name of a built-in workload, such as `ups`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// The workload's own configuration; preflight checks it.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    #[schemars(extend("maxProperties" = 64, "x-kubernetes-preserve-unknown-fields" = true))]
    pub config: serde_json::Map<String, serde_json::Value>,
    /// Program of a custom trainer, with placeholders: $(settings.batchPerGpu) is the value in each launch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub command: Vec<String>,
    /// Arguments of `command`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 4096)))]
    pub args: Vec<String>,
    /// For a script that does not implement the trainer contract: how it is followed. Every setting needs a
    /// placeholder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<Monitor>,
}

pub(crate) fn one() -> u32 {
    1
}

pub(crate) fn decimal(text: &str) -> Decimal {
    text.parse().expect("a literal of this file")
}
