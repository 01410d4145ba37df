//! How phases are measured, the acceptance criteria, and the actions when they are not met.

use super::{JudgingBudget, decimal};
use crate::quantity::Bytes;
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::{Better, WindowLimit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How phases are measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Analysis {
    /// Warm-up steps before the measured window.
    #[schemars(range(max = 100000))]
    pub warmup_steps: u32,
    /// Steps in the measured window.
    #[schemars(range(min = 1, max = 100000))]
    pub window_steps: u32,
    /// Longest time of the warm-up and of the window, seconds each: where steps are slow, they end before `warmupSteps`
    /// and `windowSteps`, after a quarter of these steps and 10 steps of the window at least.
    #[serde(skip_serializing_if = "is_usual_window")]
    #[schemars(range(min = 1, max = 86400))]
    pub max_window_seconds: u32,
    /// Pairs before the first interim analysis.
    #[schemars(range(min = 1, max = 7))]
    pub min_pairs: u32,
    /// Pairs after which the verdict is Inconclusive. 1 to 7.
    #[schemars(range(min = 1, max = 7))]
    pub max_pairs: u32,
    /// Type I error rate of a verdict over all interim analyses, in percent, above 0 and below 50.
    pub alpha_percent: Decimal,
    /// Treatment of inconclusive phases.
    pub on_inconclusive: OnInconclusive,
    /// Number of items trained for the quality gates. At most one of `qualityItems` and `qualityEpochs`; default:
    /// 200000 items.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000000000_u64))]
    pub quality_items: Option<u64>,
    /// Number of epochs trained for the quality gates, instead of `qualityItems`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub quality_epochs: Option<u32>,
    /// Number of comparisons of the quality gates: with 3, after a sixteenth, a quarter and all of `qualityItems`. Two
    /// clear results in a row end the test early. Needs two seeds.
    #[serde(skip_serializing_if = "is_one")]
    #[schemars(range(min = 1, max = 5))]
    pub quality_looks: u32,
    /// How much longer judging and training together may take than the training with the baseline: percent, 1 to 1000,
    /// or `Unlimited`. A phase whose launches do not fit, or save less than they take, is Inconclusive. Default: 10;
    /// without a training there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_percent: Option<JudgingBudget>,
    /// No longer has an effect: each pair has a control of its own.
    pub reuse_control: bool,
}

impl Default for Analysis {
    fn default() -> Self {
        Self {
            warmup_steps: 20,
            window_steps: 50,
            max_window_seconds: Self::DEFAULT_MAX_WINDOW_SECONDS,
            min_pairs: 3,
            max_pairs: 7,
            alpha_percent: decimal("5"),
            on_inconclusive: OnInconclusive::RollBack,
            quality_items: None,
            quality_epochs: None,
            quality_looks: 1,
            budget_percent: None,
            reuse_control: false,
        }
    }
}

// serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_one(value: &u32) -> bool {
    *value == 1
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_usual_window(seconds: &u32) -> bool {
    *seconds == Analysis::DEFAULT_MAX_WINDOW_SECONDS
}

impl Analysis {
    /// Items that a launch trains for the quality gates when neither items nor epochs are given.
    pub const DEFAULT_QUALITY_ITEMS: u64 = 200_000;
    /// Longest time of a window, seconds, when none is given.
    pub const DEFAULT_MAX_WINDOW_SECONDS: u32 = WindowLimit::SECONDS as u32;

    /// What judging may take if there is a training: as given, or the default.
    pub fn budget(&self) -> JudgingBudget {
        self.budget_percent.unwrap_or_default()
    }
}

/// Treatment of inconclusive phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnInconclusive {
    /// It is rolled back.
    #[default]
    RollBack,
    /// It is accepted.
    Accept,
}

/// Acceptance criteria. An absent gate is not checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gates {
    /// Minimum speedup of all accepted phases together over the baseline, a ratio above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overall_speedup: Option<Decimal>,
    /// Maximum increase of the validation loss over the original baseline, absolute, at least 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss_delta: Option<Decimal>,
    /// Maximum relative difference of the validation loss from the original baseline's, in either direction: `"0.01"`
    /// allows 1 % more and 1 % less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss_within: Option<Decimal>,
    /// Maximum relative difference of the final training loss from the original baseline's, in either direction. It is
    /// compared at the end of the quality launches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training_loss_within: Option<Decimal>,
    /// Bounds on validation metrics: relative to the original baseline, or absolute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub validation_metrics: Vec<MetricGate>,
    /// Maximum peak memory of a GPU (of a rank's tensors, on the CPU).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<Bytes>,
    /// Maximum relative increase of the peak memory over the original baseline's, at least 0: `"0.2"` allows 20 % more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_increase: Option<Decimal>,
    /// Minimum device utilization of all accepted phases together, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_gpu_utilization: Option<Decimal>,
    /// Minimum items per second of all accepted phases together, and of the training. Above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_items_per_second: Option<Decimal>,
    /// Maximum seconds per epoch, above 0, of all accepted phases together, and of the training: the items of an epoch
    /// divided by the measured items per second, without evaluations and checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_epoch_seconds: Option<Decimal>,
    /// Maximum share of a step spent on optimizer offload, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_offload_overhead: Option<Decimal>,
}

impl Gates {
    /// Whether any gate on validation metrics is set: phases that change the numerics require one.
    pub fn has_quality(&self) -> bool {
        // Destructured without `..`: whether a new gate is one of these is decided here.
        let Self {
            overall_speedup: _,
            validation_loss_delta,
            validation_loss_within,
            training_loss_within: _,
            validation_metrics,
            gpu_memory: _,
            gpu_memory_increase: _,
            min_gpu_utilization: _,
            min_items_per_second: _,
            max_epoch_seconds: _,
            max_offload_overhead: _,
        } = self;
        validation_loss_delta.is_some() || validation_loss_within.is_some() || !validation_metrics.is_empty()
    }
}

/// Bounds on a validation metric; at least one is required. A regression is a difference from the original baseline in
/// the direction opposite to `better`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetricGate {
    /// Name of the metric, such as `nrmse`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Which direction of the metric is an improvement.
    #[serde(default)]
    pub better: Better,
    /// Maximum regression relative to the original baseline, at least 0, such as `"0.03"` for 3 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_relative_regression: Option<Decimal>,
    /// Maximum difference relative to the original baseline in either direction, at least 0: `"0.005"` allows half a
    /// percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_relative_difference: Option<Decimal>,
    /// Maximum regression in the unit of the metric, at least 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_regression: Option<Decimal>,
    /// Minimum value of the metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Decimal>,
    /// Maximum value of the metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Decimal>,
}

/// Rollback policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rollback {
    /// Scope of a rollback during training.
    pub scope: Scope,
    /// Action when the accepted phases together miss a gate.
    pub on_goal_missed: OnGoalMissed,
}

/// Scope of a rollback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Scope {
    /// The responsible phase, and those that require it.
    #[default]
    Phase,
    /// The responsible phase and every phase accepted after it.
    Dependents,
    /// Every phase.
    All,
}

/// Action when the accepted phases together miss a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnGoalMissed {
    /// Train with the accepted phases, and set the condition Degraded.
    #[default]
    KeepAccepted,
    /// Train with the baseline.
    RollBackAll,
    /// Suspend the job until the spec changes.
    Pause,
}
