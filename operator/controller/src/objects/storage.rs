//! Where checkpoints go.

use super::paths;
use pawl_api::TrainingJob;

/// Where checkpoints go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// URL or path, as passed to the trainer.
    pub location: String,
    /// The claim to mount, if one is named.
    pub claim: Option<String>,
}

/// Where the checkpoints of `job` go: its own directory in a claim, an object store or a directory that the pod
/// template mounts; or else the pod's own storage, which ends with it.
pub fn storage(job: &TrainingJob) -> Storage {
    match pawl_decision::storage::location(job) {
        None => Storage { location: format!("{}/checkpoints", paths::WORK), claim: None },
        Some(url) => mounted(&url, paths::CHECKPOINTS),
    }
}

/// The checkpoints of another job from which `job` starts.
pub fn resumed(job: &TrainingJob) -> Option<Storage> {
    let from = job.spec.train.resume_from.as_ref()?;
    Some(mounted(from.storage.trim_end_matches('/'), paths::RESUME_FROM))
}

/// The storage at `url`, where a claim is mounted at `path`.
pub(super) fn mounted(url: &str, path: &str) -> Storage {
    let Some(rest) = url.strip_prefix("pvc://") else { return Storage { location: url.to_owned(), claim: None } };
    let (claim, directory) = rest.split_once('/').unwrap_or((rest, ""));
    let slash = if directory.is_empty() { "" } else { "/" };
    Storage { location: format!("{path}{slash}{directory}"), claim: Some(claim.to_owned()) }
}
