//! The state of a running attempt, as agent 0 serves it at `GET /attempt`.

use crate::progress::Progress;
use crate::report::LaunchResult;
use serde::{Deserialize, Serialize};

/// Maximum size of an [`Attempt`] in bytes of JSON; readers reject more.
pub const MAX_ATTEMPT: usize = 1 << 20;

/// A running attempt, as of now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Name of the attempt: a response about another attempt is from other pods at the same address.
    pub attempt: String,
    /// The launches that have ended, in the order of the plan. The oldest are omitted when not all fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<LaunchResult>,
    /// Progress of the running launch, once its rank 0 has reported any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}
