//! What agent 0 says of the attempt that it runs: `GET /attempt`.

use crate::progress::Progress;
use crate::report::LaunchResult;
use serde::{Deserialize, Serialize};

/// Most bytes of JSON that an [`Attempt`] takes; a reader refuses more.
pub const MAX_ATTEMPT: usize = 1 << 20;

/// A running attempt, as of now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Name of the attempt: an answer of another attempt comes from other pods at the same address.
    pub attempt: String,
    /// The launches that have ended, in the order of the plan. Oldest ones are missing when all do not fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<LaunchResult>,
    /// The launch that runs, once its rank 0 has said something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}
