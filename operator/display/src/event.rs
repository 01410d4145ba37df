//! Events for display.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One event of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventRecord {
    /// Time of the event.
    pub time: Timestamp,
    /// Whether it requires attention: a Kubernetes event of type Warning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warning: bool,
    /// Reason, in one CamelCase word.
    pub reason: String,
    /// What happened.
    pub message: String,
    /// The phase that it concerns, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}
