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
