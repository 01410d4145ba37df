//! Optimization phases and their fallbacks.

use pawl_contract::decimal::Decimal;
use pawl_contract::settings::Settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One optimization phase: a patch to the settings, and how it is judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Phase {
    /// Name, unique in the job: lower-case letters, digits and `-`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The speedup that is hoped for. Documentation and the waterfall; never a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_speedup: Option<Decimal>,
    /// The speedup that the lower confidence bound must clear. Default 1.02; 0.97 for an Enabler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_speedup: Option<Decimal>,
    /// Whether the phase changes the mathematics.
    #[serde(default)]
    pub numerics: Numerics,
    /// Whether the phase must be faster by itself.
    #[serde(default)]
    pub role: Role,
    /// Earlier phases without which this one is skipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub requires: Vec<String>,
    /// Phases with which this one does not go together: it is skipped when one of them is accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub conflicts_with: Vec<String>,
    /// The patch.
    #[serde(default)]
    pub settings: Settings,
    /// What to try instead when it fails, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub fallbacks: Vec<Fallback>,
    /// A person's word, which beats measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<Pin>,
}

impl Phase {
    /// The speedup that the lower bound must clear.
    pub fn min_speedup(&self) -> f64 {
        match (&self.min_speedup, self.role) {
            (Some(value), _) => value.value(),
            (None, Role::Optimization) => 1.02,
            (None, Role::Enabler) => 0.97,
        }
    }
}

/// Whether a phase changes the mathematics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Numerics {
    /// The same mathematics: the loss trajectory must agree.
    #[default]
    Equivalent,
    /// Other mathematics: the quality gate must be passed.
    Changed,
}

/// Whether a phase must be faster by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// It must be faster.
    #[default]
    Optimization,
    /// It may cost a little; it is kept only if a phase that requires it is accepted.
    Enabler,
}

/// A person's word on a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Pin {
    /// Keep it, unmeasured.
    Accepted,
    /// Leave it out, unmeasured.
    RolledBack,
    /// Measure and judge it, but do not keep it.
    DryRun,
}

/// A rung of a phase's ladder: a patch on top of the phase's, tried when one of `when` happened. It also answers failures of
/// the training, which then resumes with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fallback {
    /// What it answers. (Not `on`: YAML 1.1, and with it kubectl, reads that key as `true`.)
    #[schemars(length(min = 1, max = 12), extend("x-kubernetes-list-type" = "set"))]
    pub when: Vec<Trigger>,
    /// The patch.
    #[schemars(extend("minProperties" = 1))]
    pub settings: Settings,
}

/// What a fallback answers. Displayed as serialized.
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
    /// Validation is worse than the gate allows.
    QualityBelowThreshold,
    /// Peak or predicted memory is above `gates.gpuMemory`, or above the baseline's by more than `gates.gpuMemoryIncrease`.
    MemoryAboveGate,
    /// Offloading costs more than `gates.maxOffloadOverhead`.
    OffloadOverhead,
    /// The trainer cannot do what the settings ask for.
    Unsupported,
    /// A kernel of these settings does not compile, or no algorithm exists for it.
    CompileFailed,
}
