//! The batch Job of an attempt.

use super::{Blueprint, PodDefaults, annotations, labels, pod, storage};
use crate::names;
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use pawl_api::TrainingJob;
use pawl_api::status::AttemptStatus;
use serde_json::json;
use std::collections::BTreeMap;

/// The batch Job: all pods at once, none replaced, all terminated when one fails. Pawl decides about the next attempt.
pub fn gang(blueprint: &Blueprint<'_>) -> Job {
    let size = i32::try_from(blueprint.plan.replicas).unwrap_or(i32::MAX);
    let meta = metadata(blueprint.job, blueprint.name(), blueprint.plan_hash);
    let suspend = meta.labels.as_ref().is_some_and(|labels| labels.contains_key(names::QUEUE));
    let spec = JobSpec {
        completion_mode: Some("Indexed".to_owned()),
        completions: Some(size),
        parallelism: Some(size),
        backoff_limit: Some(0),
        pod_replacement_policy: Some("Failed".to_owned()),
        pod_failure_policy: Some(failure_policy()),
        suspend: suspend.then_some(true),
        template: pod::template(blueprint),
        ..JobSpec::default()
    };
    Job { metadata: meta, spec: Some(spec), status: None }
}

/// Whether a batch Job, as the API server answers its creation, runs in another cluster: its queue has a MultiKueue
/// admission check.
pub fn runs_elsewhere(made: &Job) -> bool {
    made.spec.as_ref().and_then(|spec| spec.managed_by.as_deref()) == Some(names::MULTIKUEUE)
}

/// A patch that restores the mutable part of a batch Job: labels, annotations, owner and size. The pod template is
/// immutable, and `suspend` belongs to its queue.
pub fn gang_repair(job: &TrainingJob, attempt: &AttemptStatus) -> serde_json::Value {
    let size = pawl_decision::gang(&job.spec, attempt.purpose).replicas;
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job, &attempt.name, &attempt.plan_hash),
        "spec": {"parallelism": size, "completions": size},
    })
}

fn metadata(job: &TrainingJob, attempt: &str, plan_hash: &str) -> ObjectMeta {
    let mut labels = labels(&job.name_any(), attempt);
    // Kueue reads them here: the queue that holds the batch Job back until there is quota, and its priority there.
    labels.extend(kueue(job).map(|(name, value)| (name.clone(), value.clone())));
    ObjectMeta {
        name: Some(attempt.to_owned()),
        namespace: job.namespace(),
        labels: Some(labels),
        annotations: Some(annotations(job, plan_hash)),
        owner_references: Some(vec![job_owner(job)]),
        ..ObjectMeta::default()
    }
}

/// Hash of what the user and the administrator say about an attempt's pods and its queue, and the plan does not: when
/// it changes, a gang that waits is replaced. The operator's own images are not part of it: every upgrade would take
/// their turn from all gangs that wait.
pub fn template_hash(job: &TrainingJob, defaults: &PodDefaults, trains: bool) -> String {
    let grace = job.spec.lifecycle.checkpoint_grace.as_ref().filter(|_| trains);
    let kueue: BTreeMap<_, _> = kueue(job).collect();
    let location = storage(job).location;
    pawl_decision::fingerprint(&json!([job.spec.trainer, grace, kueue, location, defaults]), 16)
}

/// Kueue's labels of a job.
fn kueue(job: &TrainingJob) -> impl Iterator<Item = (&String, &String)> {
    job.labels().iter().filter(|(name, _)| name.starts_with(names::KUEUE))
}

/// The `TrainingJob` as the owner of what is deleted with it.
pub(crate) fn job_owner(job: &TrainingJob) -> OwnerReference {
    OwnerReference {
        api_version: TrainingJob::api_version(&()).into_owned(),
        kind: TrainingJob::kind(&()).into_owned(),
        name: job.name_any(),
        uid: job.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// One failed pod ends the gang, whatever its exit code; so does a disruption. `backoffLimit` would have the same
/// effect, but seconds later.
fn failure_policy() -> PodFailurePolicy {
    let failed = PodFailurePolicyOnExitCodesRequirement {
        container_name: Some(names::CONTAINER.to_owned()),
        operator: "NotIn".to_owned(),
        values: vec![0],
    };
    let disrupted = PodFailurePolicyOnPodConditionsPattern {
        type_: "DisruptionTarget".to_owned(),
        status: Some("True".to_owned()),
    };
    let rule = |codes, conditions| PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        on_exit_codes: codes,
        on_pod_conditions: conditions,
    };
    PodFailurePolicy { rules: vec![rule(Some(failed), None), rule(None, Some(vec![disrupted]))] }
}
