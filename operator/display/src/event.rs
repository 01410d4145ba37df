//! Events for display.

use jiff::Timestamp;
use pawl_contract::happened::Happened;
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

impl EventRecord {
    /// This as the records keep it.
    pub fn happened(&self) -> Happened {
        let Self { time, warning, reason, message, phase } = self.clone();
        let time = time.as_second().try_into().unwrap_or_default();
        Happened { time, warning, reason, message, phase }.bounded()
    }
}

impl From<&Happened> for EventRecord {
    fn from(event: &Happened) -> Self {
        let Happened { time, warning, reason, message, phase } = event.clone();
        let time = i64::try_from(time).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
        Self { time: time.unwrap_or_default(), warning, reason, message, phase }
    }
}
