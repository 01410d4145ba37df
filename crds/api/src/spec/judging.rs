//! How phases are measured, what must hold, and what happens when it does not.

use super::decimal;
use crate::quantity::Bytes;
use pawl_contract::decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How phases are measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Analysis {
    /// Steps before the window.
    #[schemars(range(max = 100000))]
    pub warmup_steps: u32,
    /// Steps in the window.
    #[schemars(range(min = 1, max = 100000))]
    pub window_steps: u32,
    /// Pairs before the first look.
    #[schemars(range(min = 1, max = 7))]
    pub min_pairs: u32,
    /// Pairs after which the verdict is Inconclusive. 1 to 7.
    #[schemars(range(min = 1, max = 7))]
    pub max_pairs: u32,
    /// Error probability of a verdict in percent, shared by the looks.
    pub alpha_percent: Decimal,
    /// What an inconclusive phase becomes.
    pub on_inconclusive: OnInconclusive,
    /// Items that the quality gate trains.
    #[schemars(range(min = 1, max = 1000000000000_u64))]
    pub quality_items: u64,
    /// Whether the control launches of the phase before may be used again when the revision is the same.
    pub reuse_control: bool,
}

impl Default for Analysis {
    fn default() -> Self {
        Self {
            warmup_steps: 20,
            window_steps: 50,
            min_pairs: 3,
            max_pairs: 7,
            alpha_percent: decimal("5"),
            on_inconclusive: OnInconclusive::RollBack,
            quality_items: 200_000,
            reuse_control: false,
        }
    }
}

/// What an inconclusive phase becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnInconclusive {
    /// It is rolled back.
    #[default]
    RollBack,
    /// It is kept.
    Accept,
}

/// What must hold. What is absent is not checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gates {
    /// Speedup of all accepted phases together over the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overall_speedup: Option<Decimal>,
    /// Largest increase of the validation loss over the original baseline, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss_delta: Option<Decimal>,
    /// Largest relative increase of validation metrics over the original baseline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub validation_metrics: Vec<MetricGate>,
    /// Largest peak memory of a GPU (of a rank's tensors, on the CPU).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<Bytes>,
    /// Least device utilization, 0 to 1. Below it, training is reported as Degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_gpu_utilization: Option<Decimal>,
    /// Largest share of a step that optimizer offload may cost, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_offload_overhead: Option<Decimal>,
}

/// A bound on a validation metric for which smaller is better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetricGate {
    /// Name of the metric, such as `nrmse`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Largest relative increase over the original baseline, such as `"0.03"`.
    pub max_relative_increase: Decimal,
}

/// What happens when something does not hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rollback {
    /// What is reverted when training stops holding.
    pub scope: Scope,
    /// What happens when the accepted phases together miss a gate.
    pub on_goal_missed: OnGoalMissed,
}

/// What is reverted.
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

/// What happens when the accepted phases together miss a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnGoalMissed {
    /// Train with what was accepted, and say Degraded.
    #[default]
    KeepAccepted,
    /// Train with the baseline.
    RollBackAll,
    /// Stop and wait for a person.
    Pause,
}
