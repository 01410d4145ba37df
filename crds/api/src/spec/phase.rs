//! Optimization phases and their fallbacks.

use pawl_contract::decimal::Decimal;
use pawl_contract::settings::Settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One optimization phase: a patch to the settings, and how it is evaluated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Phase {
    /// Name, unique in the job: lower-case letters, digits and `-`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Expected speedup, a ratio above 0, shown in reports; not a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_speedup: Option<Decimal>,
    /// Minimum lower confidence bound of the speedup, a ratio above 0. Default 1.02; 0.97 for an Enabler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_speedup: Option<Decimal>,
    /// Whether the phase changes the numerics.
    #[serde(default)]
    pub numerics: Numerics,
    /// Whether the phase must be faster on its own.
    #[serde(default)]
    pub role: Role,
    /// Earlier phases that must be accepted; otherwise this phase is skipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub requires: Vec<String>,
    /// Phases that are incompatible with this one: it is skipped if one of them is accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub conflicts_with: Vec<String>,
    /// Patch to the settings.
    #[serde(default)]
    pub settings: Settings,
    /// Fallback settings, tried in order if the phase fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub fallbacks: Vec<Fallback>,
    /// Manual override of the measured verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<Pin>,
}

impl Phase {
    /// Minimum lower confidence bound of the speedup, a ratio above 0: the field, or else the default of the role,
    /// which is 1.02 for an Optimization and 0.97 for an Enabler.
    pub fn min_speedup(&self) -> f64 {
        match (&self.min_speedup, self.role) {
            (Some(value), _) => value.value(),
            (None, Role::Optimization) => 1.02,
            (None, Role::Enabler) => 0.97,
        }
    }
}

/// Whether a phase changes the numerics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Numerics {
    /// Equivalent numerics: the training loss must agree with that of the control; where that is unclear, the quality
    /// gates apply.
    #[default]
    Equivalent,
    /// Changed numerics: the quality gates apply.
    Changed,
}

/// Whether a phase must be faster on its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// It must be faster.
    #[default]
    Optimization,
    /// It may be slightly slower; it remains accepted only if a phase that requires it is accepted.
    Enabler,
}

/// Manual override of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, strum::Display)]
pub enum Pin {
    /// Apply it without measurement.
    Accepted,
    /// Do not apply it, without measurement.
    RolledBack,
    /// Measure and evaluate it, but do not apply it.
    DryRun,
}

/// A fallback of a phase: a patch on top of the phase's patch, tried when one of the conditions `when` occurs. After a
/// failure in training, training resumes with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fallback {
    /// Conditions that trigger this fallback. (Not `on`: YAML 1.1, and with it kubectl, reads that key as `true`.)
    #[schemars(length(min = 1, max = 12), extend("x-kubernetes-list-type" = "set"))]
    pub when: Vec<Trigger>,
    /// Patch to the settings.
    #[schemars(extend("minProperties" = 1))]
    pub settings: Settings,
}

/// Condition that triggers a fallback.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, strum::Display,
)]
pub enum Trigger {
    /// A device ran out of memory, or the memory plan predicts it.
    OutOfMemory,
    /// The host ran out of memory.
    HostOutOfMemory,
    /// A loss or gradient became NaN or infinite.
    NonFinite,
    /// The loss spiked.
    LossSpike,
    /// A rank made no progress.
    Hang,
    /// Steps wait for data.
    LoaderBound,
    /// The speedup is below `minSpeedup`.
    SpeedBelowThreshold,
    /// Validation metrics violate a quality gate.
    QualityBelowThreshold,
    /// Peak or predicted memory is above `gates.gpuMemory`, or above the baseline's by more than
    /// `gates.gpuMemoryIncrease`.
    MemoryAboveGate,
    /// Offloading costs more than `gates.maxOffloadOverhead`.
    OffloadOverhead,
    /// The trainer does not support the settings.
    Unsupported,
    /// A kernel of these settings does not compile, or no algorithm exists for it.
    CompileFailed,
}
