//! What decisions need to know of a batch Job, and of the ConfigMap that holds its plan.

use crate::names;
use crate::watched::{WatchedJob, created};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use pawl_contract::report::truncated;

/// A batch Job: the gang of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct GangFacts {
    /// Uid.
    pub uid: String,
    /// Uid of the `TrainingJob` that it was made for; empty when Pawl did not make it.
    pub job_uid: String,
    /// Hash of its plan; empty when Pawl did not make it.
    pub plan_hash: String,
    /// Pods that make the gang whole.
    pub replicas: u32,
    /// Since when its pods may run: its start, or else when it was made.
    pub since: Timestamp,
    /// No pods are made yet: a queue holds it back.
    pub suspended: bool,
    /// The Job controller made it final: whether it failed, and why.
    pub finished: Option<Finished>,
    /// It is being deleted.
    pub deleting: bool,
    /// It is no longer there.
    pub gone: bool,
    /// Labels, annotations, owner and size are as they were made.
    pub intact: bool,
}

/// How the Job controller sees the end of a batch Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// It failed.
    pub failed: bool,
    /// Why, for people.
    pub message: String,
}

impl GangFacts {
    /// The facts of a batch Job; `None` when it has no name or uid.
    pub fn new(job: &WatchedJob) -> Option<Self> {
        let meta = &job.metadata;
        let made = |name: &str| job.spec.template.metadata.annotations.get(name).cloned().unwrap_or_default();
        let (plan_hash, job_uid) = (made(names::PLAN_HASH), made(names::JOB_UID));
        let says = |name: &str, value: &str| {
            meta.annotations.as_ref().and_then(|all| all.get(name)).is_some_and(|said| said == value)
        };
        let annotated = says(names::PLAN_HASH, &plan_hash) && says(names::JOB_UID, &job_uid);
        let owned = owner(meta).is_some_and(|owner| owner.uid == job_uid);
        let replicas = job.spec.completions.or(job.spec.parallelism).and_then(|n| u32::try_from(n).ok()).unwrap_or(1);
        let whole = job.spec.parallelism.is_none_or(|n| u32::try_from(n) == Ok(replicas));
        let intact = labelled(meta) && annotated && owned && whole;
        Some(Self {
            uid: meta.uid.clone()?,
            job_uid,
            plan_hash,
            replicas,
            since: job.status.start_time.as_ref().map_or_else(|| created(meta), |time| time.0),
            suspended: job.spec.suspend == Some(true),
            finished: finished(job),
            deleting: meta.deletion_timestamp.is_some(),
            gone: false,
            intact,
        })
    }
}

/// The `TrainingJob` that controls an object.
pub fn owner(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.kind == "TrainingJob" && owner.controller == Some(true))
}

/// Whether an object bears the labels of the attempt that it is named after.
pub fn labelled(meta: &ObjectMeta) -> bool {
    let Some(name) = meta.name.as_deref() else { return false };
    let Some((job, _)) = names::parse_attempt(name) else { return false };
    let Some(labels) = &meta.labels else { return false };
    let has = |label: &str, value: &str| labels.get(label).is_some_and(|found| found == value);
    has(names::NAME, names::TRAINER_NAME)
        && has(names::MANAGED_BY, names::MANAGER)
        && has(names::JOB, job)
        && has(names::ATTEMPT, name)
}

fn finished(job: &WatchedJob) -> Option<Finished> {
    let holds = |kind: &str| job.status.conditions.iter().find(|c| c.type_ == kind && c.status == "True");
    let failed = holds("Failed").or_else(|| holds("FailureTarget"));
    if let Some(condition) = failed {
        let words = [condition.reason.as_deref(), condition.message.as_deref()];
        let message = words.into_iter().flatten().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(": ");
        return Some(Finished { failed: true, message: truncated(&message, 256).to_owned() });
    }
    let complete = holds("Complete").or_else(|| holds("SuccessCriteriaMet"));
    complete.map(|_| Finished { failed: false, message: String::new() })
}

/// The ConfigMap of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFacts {
    /// Uid of the batch Job that owns it; empty when it has no owner.
    pub gang_uid: String,
    /// Its labels are as they were made.
    pub intact: bool,
}

impl PlanFacts {
    /// The facts of a ConfigMap.
    pub fn new(meta: &ObjectMeta) -> Self {
        let owner = meta.owner_references.iter().flatten().find(|owner| owner.kind == "Job");
        Self { gang_uid: owner.map(|owner| owner.uid.clone()).unwrap_or_default(), intact: labelled(meta) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn gang(change: impl FnOnce(&mut Value)) -> GangFacts {
        let mut job = json!({
            "metadata": {"name": "toy-1", "uid": "g", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"app.kubernetes.io/name": "pawl-trainer", "app.kubernetes.io/managed-by": "pawl",
                    "pawl.dev/job": "toy", "pawl.dev/attempt": "toy-1"},
                "annotations": {"pawl.dev/plan-hash": "h", "pawl.dev/job-uid": "t"},
                "ownerReferences": [{"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "name": "toy", "uid": "t",
                    "controller": true}]},
            "spec": {"completions": 2, "parallelism": 2, "template": {"metadata": {
                "annotations": {"pawl.dev/plan-hash": "h", "pawl.dev/job-uid": "t", "theirs": "x"}}}},
        });
        change(&mut job);
        GangFacts::new(&serde_json::from_value(job).unwrap()).unwrap()
    }

    #[test]
    fn what_a_person_broke_is_noticed() {
        assert!(gang(|_| {}).intact);
        assert!(!gang(|job| job["metadata"]["labels"]["pawl.dev/attempt"] = json!("toy-2")).intact);
        assert!(!gang(|job| job["metadata"]["annotations"] = json!({})).intact);
        let other = gang(|job| job["metadata"]["annotations"]["pawl.dev/plan-hash"] = json!("0"));
        assert!(!other.intact);
        assert_eq!(other.plan_hash, "h", "what it runs is not what somebody wrote on it");
        assert!(!gang(|job| job["spec"]["parallelism"] = json!(1)).intact);
        let orphan = gang(|job| job["metadata"]["ownerReferences"] = json!([]));
        assert!(!orphan.intact);
        assert_eq!(orphan.job_uid, "t");
    }

    #[test]
    fn the_wait_in_a_queue_does_not_count() {
        let since = gang(|job| job["status"] = json!({"startTime": "2026-01-01T05:00:00Z"})).since;
        assert_eq!(since, "2026-01-01T05:00:00Z".parse().unwrap());
        assert!(gang(|job| job["spec"]["suspend"] = json!(true)).suspended);
    }
}
