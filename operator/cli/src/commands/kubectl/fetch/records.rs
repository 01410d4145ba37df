//! Copies the records of a job ([`pawl_contract::record`]), also after its object is gone.

use super::{archived, location};
use crate::commands::kubectl::error::ClusterError;
use crate::commands::kubectl::session::Session;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use pawl_api::TrainingJob;
use pawl_contract::record::FOLDER;
use serde_json::json;
use std::path::Path;

/// A job of which only the name and the storage are known.
///
/// # Errors
/// [`ClusterError::Nothing`] when `storage` is no URL of a storage.
pub fn of_storage(session: &Session, name: &str, storage: &str) -> Result<(TrainingJob, String), ClusterError> {
    let storage = storage.trim_end_matches('/');
    if !pawl_api::is_storage_url(storage) {
        let example = format!("pvc://{name}-storage/checkpoints/{}/{name}/UID", session.namespace);
        let problem = format!("--storage {storage:?}: is no URL of a storage: write the job's, such as {example}");
        return Err(ClusterError::Nothing(problem));
    }
    let metadata = json!({"name": name, "namespace": session.namespace});
    let job = serde_json::from_value(json!({"metadata": metadata, "spec": {"workload": {"name": "ups"}}}));
    Ok((job.map_err(|error| ClusterError::File(error.to_string()))?, storage.to_owned()))
}

/// The storage of a job, which may not have trained yet.
///
/// # Errors
/// [`ClusterError::Nothing`] when it has none.
pub fn of_job(job: &TrainingJob) -> Result<String, ClusterError> {
    let named = || pawl_decision::storage::location(job);
    location(job).or_else(named).ok_or_else(|| {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let remedy = "set spec.train.checkpoint.storage, or wait until it has trained";
        ClusterError::Nothing(format!("TrainingJob {name:?} has no storage, and so no records\n  {remedy}"))
    })
}

/// Copies the records through the running pod to `directory`, instead of those that were copied there before.
pub async fn copy(session: &Session, pods: &Api<Pod>, pod: &str, directory: &Path) -> Result<(), ClusterError> {
    let partial = archived(session, pods, pod, FOLDER, directory).await?;
    let (copy, target) = (partial.path().join(FOLDER), directory.join(FOLDER));
    let place = || {
        std::fs::create_dir_all(target.parent().unwrap_or(directory))?;
        match std::fs::remove_dir_all(&target) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => std::fs::rename(copy, &target),
        }
    };
    place().map_err(|error| ClusterError::File(format!("{}: {error}", target.display())))
}
