//! References to checkpoints.

use serde::{Deserialize, Serialize};

/// A checkpoint that is complete on storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointRef {
    /// Name relative to the checkpoint storage.
    pub name: String,
    /// Optimizer steps done.
    pub step: u64,
    /// Items seen by the whole gang.
    pub items: u64,
}

/// The best checkpoint by [`crate::plan::CheckpointPolicy::best`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BestCheckpoint {
    /// The checkpoint.
    pub checkpoint: CheckpointRef,
    /// Name of the validation metric by which it is the best.
    pub metric: String,
    /// Value of that metric at the checkpoint.
    pub value: f64,
}
