//! Where a job's checkpoints are.

use crate::draft::Draft;
use pawl_api::spec::NO_STORAGE;
use pawl_api::{TrainingJob, is_storage_url};
use std::fmt;
use std::str::FromStr;

/// The storage of jobs on a cluster that name none in `train.checkpoint.storage`.
///
/// ```
/// # use pawl_decision::storage::DefaultStorage;
/// assert_eq!("Claim".parse(), Ok(DefaultStorage::Claim));
/// assert_eq!("s3://models/runs".parse(), Ok(DefaultStorage::Url("s3://models/runs".to_owned())));
/// assert!("/models".parse::<DefaultStorage>().unwrap_err().contains("Claim, None or a storage URL"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DefaultStorage {
    /// A PersistentVolumeClaim for each job, called [`claim_name`], which the operator creates.
    #[default]
    Claim,
    /// None: checkpoints are deleted with their pods.
    None,
    /// A storage that the jobs share; each writes to a directory of its own there.
    Url(String),
}

impl fmt::Display for DefaultStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim => f.write_str("Claim"),
            Self::None => f.write_str(NO_STORAGE),
            Self::Url(url) => f.write_str(url),
        }
    }
}

impl FromStr for DefaultStorage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "Claim" => Ok(Self::Claim),
            NO_STORAGE => Ok(Self::None),
            url if is_storage_url(url) => Ok(Self::Url(url.trim_end_matches('/').to_owned())),
            other => Err(format!("{other:?}: write Claim, None or a storage URL such as s3://bucket/dir")),
        }
    }
}

/// Name of the PersistentVolumeClaim that the operator creates for the job called `job`.
pub fn claim_name(job: &str) -> String {
    format!("{job}-storage")
}

/// Sets `train.checkpoint.storage` of a job on a cluster that names none: the storage in which it has trained so far,
/// or `default`. A change of the default thus never separates a job from its checkpoints.
///
/// ```
/// # use pawl_api::TrainingJob;
/// # use pawl_decision::storage::{DefaultStorage, fill, location};
/// let mut job: TrainingJob = serde_json::from_value(serde_json::json!({
///     "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
///     "metadata": {"namespace": "team", "name": "ups", "uid": "7f3a"}, "spec": {"workload": {"name": "ups"}},
/// }))?;
/// fill(&mut job, &DefaultStorage::Claim);
/// assert_eq!(location(&job).as_deref(), Some("pvc://ups-storage/checkpoints/team/ups/7f3a"));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn fill(job: &mut TrainingJob, default: &DefaultStorage) {
    if job.spec.train.checkpoint.storage.is_some() {
        return;
    }
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let chosen = match default {
        DefaultStorage::Claim => format!("pvc://{}/checkpoints", claim_name(name)),
        DefaultStorage::None => NO_STORAGE.to_owned(),
        DefaultStorage::Url(url) => url.clone(),
    };
    job.spec.train.checkpoint.storage = Some(used(job).unwrap_or(chosen));
}

/// The storage in which the job has trained, from its status.
fn used(job: &TrainingJob) -> Option<String> {
    let location = job.status.as_ref()?.training.as_ref()?.storage.as_deref()?;
    location.strip_suffix(&own_directory(job)).map(str::to_owned)
}

/// The directory of the job in a storage, with a slash before each part: its namespace, name and uid.
fn own_directory(job: &TrainingJob) -> String {
    let meta = &job.metadata;
    let parts = [meta.namespace.as_deref(), meta.name.as_deref(), meta.uid.as_deref()];
    parts.into_iter().flatten().filter(|part| !part.is_empty()).map(|part| format!("/{part}")).collect()
}

/// The directory, bucket prefix or claim directory that belongs to this job alone: `train.checkpoint.storage`, then the
/// job's namespace, name and uid. A job that is deleted and created again has another uid, so it neither finds nor
/// deletes the checkpoints of the earlier one. `None` when the job names no storage, or `None`.
///
/// ```
/// # use pawl_api::TrainingJob;
/// let job: TrainingJob = serde_json::from_value(serde_json::json!({
///     "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
///     "metadata": {"namespace": "team", "name": "ups", "uid": "7f3a"},
///     "spec": {"workload": {"name": "ups"}, "train": {"checkpoint": {"storage": "s3://models/runs/"}}},
/// }))?;
/// assert_eq!(pawl_decision::storage::location(&job).as_deref(), Some("s3://models/runs/team/ups/7f3a"));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn location(job: &TrainingJob) -> Option<String> {
    let storage = job.spec.train.checkpoint.storage.as_deref().filter(|storage| *storage != NO_STORAGE)?;
    Some(format!("{}{}", storage.trim_end_matches('/'), own_directory(job)))
}

/// Records where an attempt that is about to train writes its checkpoints. Those of a job that named `None` until now
/// were deleted with its pods: nothing is expected of them.
pub(crate) fn settle(draft: &mut Draft<'_>) {
    let training = draft.status.training.get_or_insert_default();
    let now = if outlives_pods(draft.job) { location(draft.job) } else { Some(NO_STORAGE.to_owned()) };
    if training.storage.as_deref() == Some(NO_STORAGE) && training.storage != now {
        (training.last_checkpoint, training.best_checkpoint) = (None, None);
    }
    training.storage = now;
}

/// Whether the checkpoints of a job outlive the attempt that wrote them: in a storage, or in the state directory of a
/// job that runs without a cluster. On a cluster, every job names a storage ([`fill`]) or `None`.
pub(crate) fn outlives_pods(job: &TrainingJob) -> bool {
    job.spec.train.checkpoint.storage.as_deref() != Some(NO_STORAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn job(change: impl FnOnce(&mut Value)) -> TrainingJob {
        let mut job = json!({
            "metadata": {"namespace": "team", "name": "ups", "uid": "7f3a"}, "spec": {"workload": {"name": "ups"}},
        });
        change(&mut job);
        serde_json::from_value(job).unwrap()
    }

    fn filled(mut job: TrainingJob, default: &DefaultStorage) -> String {
        fill(&mut job, default);
        job.spec.train.checkpoint.storage.unwrap()
    }

    #[test]
    fn a_job_without_storage_gets_the_default() {
        let claim = "pvc://ups-storage/checkpoints";
        for (default, expected) in [("Claim", claim), ("None", "None"), ("gs://models/all", "gs://models/all")] {
            let default: DefaultStorage = default.parse().unwrap();
            assert_eq!(default.to_string().parse(), Ok(default.clone()));
            assert_eq!(filled(job(|_| {}), &default), expected);
            assert_eq!("s3://models/".parse(), Ok(DefaultStorage::Url("s3://models".to_owned())));
            let named = job(|job| job["spec"]["train"] = json!({"checkpoint": {"storage": "s3://own"}}));
            assert_eq!(filled(named, &default), "s3://own");
        }
    }

    #[test]
    fn a_change_of_the_default_does_not_move_a_job_that_has_trained() {
        let trained = |storage: &str| {
            let storage = format!("{storage}/team/ups/7f3a");
            job(|job| job["status"] = json!({"training": {"storage": storage}}))
        };
        assert_eq!(filled(trained("s3://old/dir"), &DefaultStorage::Claim), "s3://old/dir");
        assert_eq!(
            filled(trained("pvc://ups-storage/checkpoints"), &DefaultStorage::None),
            "pvc://ups-storage/checkpoints"
        );
        let explicit = job(|job| {
            job["status"] = json!({"training": {"storage": "s3://old/team/ups/7f3a"}});
            job["spec"]["train"] = json!({"checkpoint": {"storage": "s3://new"}});
        });
        assert_eq!(filled(explicit, &DefaultStorage::Claim), "s3://new");
    }
}
