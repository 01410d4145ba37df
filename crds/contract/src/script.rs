//! Scripts that do not implement the contract: how their launches are configured and measured.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a custom command needs beyond the contract.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScriptPlan {
    /// Environment variables whose values contain placeholders ([`crate::template`]).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// How the agent follows a script that writes no report; absent: the script implements the contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<Monitor>,
}

impl ScriptPlan {
    /// Whether the command needs nothing beyond the contract.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How the agent follows a script that does not implement the trainer contract.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Monitor {
    /// Where steps and losses come from.
    #[serde(default)]
    pub source: MonitorSource,
    /// For `Log`: regular expression of a line of rank 0's output that reports training. Groups: `step` or `items`
    /// (optimizer steps, or items of all ranks, so far, or of the epoch), and optionally `loss` and `epoch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub training: Option<String>,
    /// Regular expression of a line that reports validation. Groups: `loss`, any other metric, and optionally `step` or
    /// `items`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub validation: Option<String>,
}

/// Where the agent reads the steps of a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline))]
pub enum MonitorSource {
    /// In the output of rank 0, by the pattern `training`.
    #[default]
    Log,
    /// In the updates that the KubeflowCallback of Hugging Face Transformers sends.
    Kubeflow,
}
