//! Where checkpoints go.

use super::volumes;
use pawl_api::TrainingJob;

/// Where checkpoints go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// URL or path, as passed to the trainer.
    pub location: String,
    /// The claim to mount, if one is named.
    pub claim: Option<String>,
}

/// Where the checkpoints of `job` go: a claim, an object store, a directory that the pod template mounts, or else the
/// pod's own storage, which ends with it.
pub fn storage(job: &TrainingJob) -> Storage {
    let given = job.spec.train.checkpoint.storage.as_deref();
    match given {
        None => Storage { location: format!("{}/checkpoints", volumes::WORK), claim: None },
        Some(url) => match url.strip_prefix("pvc://") {
            Some(rest) => {
                let (claim, directory) = rest.split_once('/').unwrap_or((rest, ""));
                let directory = directory.trim_matches('/');
                let slash = if directory.is_empty() { "" } else { "/" };
                let location = format!("{}{slash}{directory}", volumes::CHECKPOINTS);
                Storage { location, claim: Some(claim.to_owned()) }
            }
            None => Storage { location: url.to_owned(), claim: None },
        },
    }
}
