//! References to checkpoints.

use serde::{Deserialize, Serialize};

/// Beginning of the names of directories in the storage that hold the checkpoints of another training of the job.
const TRAINING: &str = "pawl-training-";

/// Name of the directory in the storage of a training that began with the attempt of this number beside an earlier one.
///
/// ```
/// assert_eq!(pawl_contract::checkpoint::training_directory(4), "pawl-training-4");
/// ```
pub fn training_directory(attempt: u32) -> String {
    format!("{TRAINING}{attempt}")
}

/// Whether an entry of the storage is the directory of another training of the job, or of a trial of a search: it is no
/// checkpoint.
///
/// ```
/// use pawl_contract::checkpoint::is_directory;
///
/// assert!(is_directory("pawl-training-4") && is_directory("search-0-1a2b-t17"));
/// assert!(!is_directory("checkpoint-400") && !is_directory("training-4") && !is_directory("search-4"));
/// ```
pub fn is_directory(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let of_training = || name.strip_prefix(TRAINING).is_some_and(number);
    let of_trial = || {
        let parts: Vec<&str> = name.split('-').collect();
        let [search, stage, _, trial] = parts[..] else { return false };
        search == "search" && number(stage) && trial.strip_prefix('t').is_some_and(number)
    };
    of_training() || of_trial()
}

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

/// A part of a training. The parts of a model are its chain, the oldest first: each trained until the next one begins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainedPart {
    /// Items before it.
    pub from_items: u64,
    /// The attempt that began it.
    pub attempt: String,
    /// The launch that trained it. The names of launches end in a hash of all their inputs.
    pub launch: String,
}

/// Maximum number of parts that progress and reports contain; the oldest are dropped.
pub const MAX_REPORTED_PARTS: usize = 16;

/// The newest parts of a chain, as many as progress and reports contain.
///
/// ```
/// use pawl_contract::checkpoint::{MAX_REPORTED_PARTS, TrainedPart, reported};
///
/// let part = |from_items| TrainedPart { from_items, attempt: "j-1".to_owned(), launch: "train-0badcafe".to_owned() };
/// let chain: Vec<_> = (0..20).map(part).collect();
/// assert_eq!(reported(&chain), &chain[4..]);
/// assert_eq!(reported(&chain).len(), MAX_REPORTED_PARTS);
/// ```
pub fn reported(chain: &[TrainedPart]) -> &[TrainedPart] {
    &chain[chain.len().saturating_sub(MAX_REPORTED_PARTS)..]
}

/// Maximum number of quarantined checkpoints that progress and reports name; the oldest are omitted.
pub const MAX_QUARANTINED: usize = 8;

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
