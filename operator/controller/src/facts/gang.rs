//! What decisions need to know of a batch Job, and of the ConfigMap that holds its plan.

use crate::names;
use crate::watched::{Condition, WatchedJob, created};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use pawl_contract::attempt::AttemptName;
use pawl_contract::report::truncated;

/// `spec.managedBy` of a batch Job whose pods the Job controller of this cluster makes.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// A batch Job: the gang of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct GangFacts {
    /// Uid.
    pub uid: String,
    /// Uid of the `TrainingJob` that it was made for; empty when Pawl did not make it.
    pub job_uid: String,
    /// Hash of its plan; empty when Pawl did not make it.
    pub plan_hash: String,
    /// Hash of what its pods were made from; empty when an earlier version made it.
    pub template: String,
    /// Its pods carry the plan, so that it has no ConfigMap.
    pub carries_plan: bool,
    /// Name of the Secret with its token, if its pods mount one.
    pub token_secret: Option<String>,
    /// Pods that make the gang whole.
    pub replicas: u32,
    /// Since when its pods may run: its start, or else when it was made.
    pub since: Timestamp,
    /// When the Job controller last began to make pods.
    pub started: Option<Timestamp>,
    /// No pods are made: held by a queue, or just admitted and not yet started by the Job controller.
    pub suspended: bool,
    /// It was suspended again after it could run: it was preempted by its queue.
    pub taken: bool,
    /// The Job controller made it final: whether it failed, and why.
    pub finished: Option<Finished>,
    /// It is being deleted.
    pub deleting: bool,
    /// It is no longer there.
    pub gone: bool,
    /// Labels, annotations, owner and size are as they were made.
    pub intact: bool,
    /// Who makes its pods, such as `kueue.x-k8s.io/multikueue`; empty: the Job controller of this cluster.
    pub manager: String,
}

/// How the Job controller sees the end of a batch Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// It failed.
    pub failed: bool,
    /// Human-readable reason.
    pub message: String,
}

impl GangFacts {
    /// The facts of a batch Job; `None` when it has no name or uid.
    pub fn new(job: &WatchedJob) -> Option<Self> {
        let meta = &job.metadata;
        let made = |name: &str| job.spec.template.metadata.annotations.get(name).cloned().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let volume = |name: &str| job.spec.template.spec.volumes.iter().find(|volume| volume.name == name);
        // What the operator creates is never named by what others may change: annotations of a Job that is suspended.
        let secret = volume(names::TOKEN_VOLUME).and_then(|volume| volume.secret.as_ref());
        let token_secret = secret.map(|secret| secret.secret_name.clone());
        let (plan_hash, job_uid) = (made(names::PLAN_HASH), made(names::JOB_UID));
        let annotated = |name: &str, value: &str| {
            meta.annotations.as_ref().and_then(|all| all.get(name)).is_some_and(|found| found == value)
        };
        let annotated = annotated(names::PLAN_HASH, &plan_hash) && annotated(names::JOB_UID, &job_uid);
        let owned = owner(meta).is_some_and(|owner| owner.uid == job_uid);
        let replicas = job.spec.completions.or(job.spec.parallelism).and_then(|n| u32::try_from(n).ok()).unwrap_or(1);
        let whole = job.spec.parallelism.is_none_or(|n| u32::try_from(n) == Ok(replicas));
        let intact = labelled(meta) && annotated && owned && whole;
        let started = job.status.start_time.as_ref().map(|time| time.0);
        Some(Self {
            uid: meta.uid.clone()?,
            job_uid,
            plan_hash,
            template: made(names::TEMPLATE_HASH),
            carries_plan: volume(names::PLAN_VOLUME).is_some_and(|volume| volume.downward_api.is_some()),
            token_secret: token_secret.filter(|secret| names::is_token_secret(secret, name)),
            replicas,
            since: started.unwrap_or_else(|| created(meta)),
            started,
            // Its age has no meaning until the Job controller has set a new start time.
            suspended: job.spec.suspend == Some(true) || holds(job, "Suspended").is_some() && started.is_none(),
            taken: false,
            finished: finished(job),
            deleting: meta.deletion_timestamp.is_some(),
            gone: false,
            intact,
            manager: manager(job.spec.managed_by.as_deref()),
        })
    }
}

/// [`GangFacts::manager`], from `spec.managedBy`.
pub(crate) fn manager(managed_by: Option<&str>) -> String {
    managed_by.filter(|manager| *manager != JOB_CONTROLLER).unwrap_or_default().to_owned()
}

/// The `TrainingJob` that controls an object.
pub fn owner(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.kind == "TrainingJob" && owner.controller == Some(true))
}

/// Whether an object bears the labels of the attempt that it is named after.
pub fn labelled(meta: &ObjectMeta) -> bool {
    let Some(name) = meta.name.as_deref() else { return false };
    let Some(attempt) = AttemptName::parse(name) else { return false };
    let Some(labels) = &meta.labels else { return false };
    let has = |label: &str, value: &str| labels.get(label).is_some_and(|found| found == value);
    has(names::NAME, names::TRAINER_NAME)
        && has(names::MANAGED_BY, names::MANAGER)
        && has(names::JOB, attempt.job)
        && has(names::ATTEMPT, name)
}

/// A condition that is true.
fn holds<'a>(job: &'a WatchedJob, kind: &str) -> Option<&'a Condition> {
    job.status.conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True")
}

fn finished(job: &WatchedJob) -> Option<Finished> {
    let holds = |kind: &str| holds(job, kind);
    let failed = holds("Failed").or_else(|| holds("FailureTarget"));
    if let Some(condition) = failed {
        let parts = [condition.reason.as_deref(), condition.message.as_deref()];
        let message = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
        return Some(Finished { failed: true, message: truncated(&message, 256).to_owned() });
    }
    let complete = holds("Complete").or_else(|| holds("SuccessCriteriaMet"));
    complete.map(|_| Finished { failed: false, message: String::new() })
}

/// The ConfigMap of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFacts {
    /// Its uid.
    pub uid: String,
    /// Uid of the batch Job that owns it; empty when it has no owner.
    pub gang_uid: String,
    /// Its labels are as they were made.
    pub intact: bool,
}

impl PlanFacts {
    /// The facts of a ConfigMap.
    pub fn new(meta: &ObjectMeta) -> Self {
        let owner = meta.owner_references.iter().flatten().find(|owner| owner.kind == "Job");
        let gang_uid = owner.map(|owner| owner.uid.clone()).unwrap_or_default();
        Self { uid: meta.uid.clone().unwrap_or_default(), gang_uid, intact: labelled(meta) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::{Facts, Jobs, Listing};
    use crate::key::Key;
    use kube::runtime::watcher::Event;
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
        assert_eq!(other.plan_hash, "h", "what it runs is not what its annotation was changed to");
        assert!(!gang(|job| job["spec"]["parallelism"] = json!(1)).intact);
        let orphan = gang(|job| job["metadata"]["ownerReferences"] = json!([]));
        assert!(!orphan.intact);
        assert_eq!(orphan.job_uid, "t");
    }

    #[test]
    fn the_wait_in_a_queue_does_not_count() {
        let since = gang(|job| job["status"] = json!({"startTime": "2026-01-01T05:00:00Z"})).since;
        assert_eq!(since, "2026-01-01T05:00:00Z".parse().unwrap());
        let held = gang(|job| job["spec"]["suspend"] = json!(true));
        let let_go = |start: Value| {
            gang(|job| {
                job["spec"]["suspend"] = json!(false);
                job["status"] = json!({"startTime": start, "conditions": [{"type": "Suspended", "status": "True"}]});
            })
        };
        assert!(held.suspended && let_go(Value::Null).suspended, "the Job controller did not start it yet");
        assert!(!let_go(json!("2026-01-01T05:00:00Z")).suspended);
    }

    #[test]
    fn a_gang_that_is_suspended_again_is_taken_for_good() {
        let taken = |seen: &[(bool, Value)]| {
            let (facts, key) = (Facts::new(Jobs::default()), Key::new("n", "toy"));
            for (suspended, start) in seen {
                let there = gang(|job| {
                    job["spec"]["suspend"] = json!(suspended);
                    job["status"] = json!({"startTime": start});
                });
                facts.assume(&key, "toy-1", there);
            }
            facts.of(&key)[0].gang.as_ref().unwrap().taken
        };
        let (none, first, second) = (Value::Null, json!("2026-01-01T05:00:00Z"), json!("2026-01-01T06:00:00Z"));
        let waited = [(true, none.clone()), (false, none.clone()), (false, first.clone()), (false, first.clone())];
        assert!(!taken(&waited), "it waited, and runs");
        let again = [(true, none.clone()), (false, none.clone())];
        assert!(taken(&[&waited, &again[..1]].concat()));
        assert!(taken(&[&waited, &again[..]].concat()), "its turn comes again, but its pods would be new ones");
        // A watch that was interrupted reports only the last state.
        assert!(taken(&[&waited[..], &[(false, second)]].concat()));
    }

    /// A job is deleted and created again while a pod of the first one is on a node that does not answer.
    #[test]
    fn a_gang_is_seen_although_a_released_one_of_its_name_left_a_pod() {
        let (facts, key) = (Facts::new(Jobs::default()), Key::new("n", "toy"));
        let stuck = json!({"metadata": {"namespace": "n", "name": "toy-1-0-x", "uid": "p", "labels": {
            "batch.kubernetes.io/job-name": "toy-1", "batch.kubernetes.io/controller-uid": "g",
            "batch.kubernetes.io/job-completion-index": "0"}}});
        facts.assume(&key, "toy-1", gang(|_| {}));
        facts.pod(Event::Apply(serde_json::from_value(stuck).unwrap()), &mut Listing::new(None));
        facts.release(&key, "toy-1");
        facts.gang_gone(&key, "toy-1", "g");
        assert!(facts.of(&key)[0].released && facts.of(&key)[0].gang.is_none());
        facts.assume(&key, "toy-1", gang(|job| job["metadata"]["uid"] = json!("h")));
        let seen = &facts.of(&key)[0];
        assert!(!seen.released, "its results are in no status");
        assert_eq!(seen.pods.len(), 1, "what may still run is not forgotten");
    }
}
