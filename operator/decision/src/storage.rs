//! Where a job's checkpoints are.

use pawl_api::TrainingJob;

/// The directory, bucket prefix or claim directory that belongs to this job alone: `train.checkpoint.storage`, then the job's
/// namespace, name and uid. A job that is deleted and created again has another uid, so it neither finds nor deletes the
/// checkpoints of the earlier one. `None` when the job names no storage.
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
    let storage = job.spec.train.checkpoint.storage.as_deref()?;
    let meta = &job.metadata;
    let parts = [meta.namespace.as_deref(), meta.name.as_deref(), meta.uid.as_deref()];
    let mut location = storage.trim_end_matches('/').to_owned();
    for part in parts.into_iter().flatten().filter(|part| !part.is_empty()) {
        location.push('/');
        location.push_str(part);
    }
    Some(location)
}

/// Whether the checkpoints of a job outlive the attempt that wrote them: in a named storage, or in the state directory of a
/// job that runs without a cluster, which has no namespace. Otherwise they are deleted with their pods.
pub(crate) fn outlives_pods(job: &TrainingJob) -> bool {
    job.spec.train.checkpoint.storage.is_some() || job.metadata.namespace.is_none()
}
