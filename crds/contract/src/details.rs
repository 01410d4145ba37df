//! Measurements that only the report of a launch contains: people read them, and no decision depends on them.

use serde::{Deserialize, Serialize};

/// Planned device memory of a rank by kind, bytes (host memory of tensors on the CPU). The sum is the rank's prediction
/// of its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryByKind {
    /// Weights: trained, frozen, and their moving averages.
    pub parameters: u64,
    /// Gradients that are summed over micro-steps. Without accumulation they are values of the step: see `activations`.
    pub gradients: u64,
    /// State of the optimizer on the device.
    pub optimizer: u64,
    /// Data sets that are kept on the device.
    #[serde(default)]
    pub data: u64,
    /// Everything else: values of a step, its inputs and outputs, and workspaces.
    pub activations: u64,
}

impl MemoryByKind {
    /// Each kind's name and bytes.
    pub fn kinds(&self) -> [(&'static str, u64); 5] {
        [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("data", self.data),
            ("activations", self.activations),
        ]
    }
}

/// Details of a launch. An absent value was not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// Seconds to compile all programs, allocation and initial values of the states included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compile_seconds: Option<f64>,
    /// Seconds of the newest complete epoch, evaluations and checkpoints in it included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_seconds: Option<f64>,
    /// Norm of the gradient of the newest optimizer step, before clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// Learning rate of the newest optimizer step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Optimizer steps that have updated the weights, those before a resumed checkpoint included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates: Option<u64>,
    /// Optimizer steps of this launch without an update, because the gradient was not finite or the loss scale too
    /// large.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped_updates: u64,
    /// Planned memory by kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryByKind>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Details {
    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
