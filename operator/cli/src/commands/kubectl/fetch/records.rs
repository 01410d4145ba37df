//! Copies the records of a job ([`pawl_contract::record`]), also after its object is gone.

use super::{archived, location};
use crate::commands::kubectl::error::ClusterError;
use crate::commands::kubectl::session::Session;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use pawl_api::TrainingJob;
use pawl_contract::record::FOLDER;
use pawl_local::state::StateDir;
use serde_json::json;
use std::path::Path;
use std::{fs, io};

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
    replace(&copy, &target, &partial.path().join("replaced"))
}

/// Moves the directory `copy` to `target`, and what was there to `aside`, so that it is not lost if that fails.
fn replace(copy: &Path, target: &Path, aside: &Path) -> Result<(), ClusterError> {
    if StateDir::new(target).has_run() {
        let problem = format!("{}: is the state of a `pawl run`: choose another directory with -o", target.display());
        return Err(ClusterError::Nothing(problem));
    }
    let place = || {
        target.parent().map_or(Ok(()), fs::create_dir_all)?;
        if let Err(error) = fs::rename(target, aside)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        fs::rename(copy, target).inspect_err(|_| {
            // Nothing else can be done: the first error is reported.
            let _ = fs::rename(aside, target);
        })
    };
    place().map_err(|error| ClusterError::File(format!("{}: {error}", target.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_replaces_an_earlier_one_whole_and_no_state_of_a_run() {
        let directory = tempfile::tempdir().unwrap();
        let [copy, target, aside] = ["copy", "out/.pawl/_records", "aside"].map(|name| directory.path().join(name));
        let write = |place: &Path, file: &str| {
            fs::create_dir_all(place).unwrap();
            fs::write(place.join(file), "").unwrap();
        };
        write(&copy, "first");
        replace(&copy, &target, &aside).unwrap();
        assert!(replace(&copy, &target, &aside).is_err(), "there is no other copy");
        assert!(target.join("first").exists() && !aside.exists());
        write(&copy, "second");
        replace(&copy, &target, &aside).unwrap();
        assert!(target.join("second").exists() && !target.join("first").exists());
        write(&copy, "third");
        write(&target, "events.jsonl");
        let error = replace(&copy, &target, &directory.path().join("more")).unwrap_err().to_string();
        assert!(error.contains("_records") && target.join("second").exists(), "{error}");
    }
}
