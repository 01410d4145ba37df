//! What the API server answers to dry runs of the job and of the objects of its gang.

use super::finding::{DryRun, Finding};
use super::gang::Gang;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use pawl_api::TrainingJob;
use pawl_controller::objects;

/// The answers about the objects of a gang; `None`: the gang has no such object.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The batch Job.
    pub job: DryRun<Job>,
    /// Its first pod: ServiceAccount, classes, limits, quotas and policies are checked for pods only.
    pub pod: DryRun<Pod>,
    /// The Service.
    pub service: Option<DryRun<Service>>,
    /// The claim.
    pub claim: Option<DryRun<PersistentVolumeClaim>>,
}

/// Whether the API server accepts the manifest, with its defaults and admission policies.
pub fn manifest(namespace: &str, object: &str, tried: &DryRun<TrainingJob>) -> Finding {
    match tried {
        DryRun::Accepted(_) | DryRun::Exists => Finding::ok(object, "the API server accepts the manifest (dry run)"),
        DryRun::Refused(message) => Finding::problem(
            object,
            format!("the API server rejects the manifest: {message}"),
            "correct the manifest, or ask the administrator of the cluster about the policy that rejects it",
        ),
        DryRun::NoNamespace => no_namespace(namespace, object),
        DryRun::Unseen(why) => Finding::unknown(object, format!("not tried: {why}")),
    }
}

fn no_namespace(namespace: &str, object: &str) -> Finding {
    let create = format!("create it: kubectl create namespace {namespace}");
    Finding::problem(object, "its namespace does not exist", create)
}

/// Whether the API server would admit the objects of the gang.
pub fn gang(namespace: &str, gang: &Gang, tried: &Tried) -> Vec<Finding> {
    let Tried { job, pod, service, claim } = tried;
    let name = gang.name();
    let template =
        "correct spec.trainer of the manifest, or ask the administrator of the namespace about what rejects it";
    let named = |name: &Option<String>| name.clone().unwrap_or_default();
    let pods = format!("Pods {namespace}/{name}-*");
    let batch = format!("Job {namespace}/{name}");
    let first = match job {
        DryRun::Accepted(made) if objects::runs_elsewhere(made) => Finding::problem(
            batch,
            "its queue would run it in another cluster (MultiKueue): the operator creates no such Job",
            "name a queue without MultiKueue in the label kueue.x-k8s.io/queue-name, or create the TrainingJob in that cluster",
        ),
        job => admitted(namespace, &batch, job, template),
    };
    let mut findings = vec![first, admitted(namespace, &pods, pod, template)];
    if let Some(service) = service {
        let name = gang.service.as_ref().map(|service| named(&service.metadata.name)).unwrap_or_default();
        let remedy = "ask the administrator of the namespace: the pods of a gang find each other by it";
        findings.push(admitted(namespace, &format!("Service {namespace}/{name}"), service, remedy));
    }
    if let Some(claim) = claim {
        let name = gang.claim.as_ref().map(|claim| named(&claim.metadata.name)).unwrap_or_default();
        let remedy = "name another storage in spec.train.checkpoint.storage, or ask the administrator of the namespace";
        findings.push(admitted(namespace, &format!("PersistentVolumeClaim {namespace}/{name}"), claim, remedy));
    }
    findings
}

fn admitted<T>(namespace: &str, object: &str, tried: &DryRun<T>, remedy: &str) -> Finding {
    match tried {
        DryRun::Accepted(_) => Finding::ok(object, "would be admitted (dry run)"),
        DryRun::Exists => Finding::ok(object, "exists already"),
        DryRun::Refused(message) => Finding::problem(object, format!("would be refused: {message}"), remedy),
        DryRun::NoNamespace => no_namespace(namespace, object),
        DryRun::Unseen(why) => Finding::unknown(object, format!("not tried: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::kubectl::preflight::finding::CheckResult::{self, Ok as Fits, Problem, Unknown};
    use crate::commands::kubectl::preflight::gang::tests;
    use serde_json::json;

    #[test]
    fn a_queue_of_other_clusters_is_a_problem() {
        let mut built = tests::gang(&json!({}));
        let mut found = |manager: &str| {
            built.job.spec.as_mut().unwrap().managed_by = Some(manager.to_owned());
            let job = DryRun::Accepted(built.job.clone());
            let tried = Tried { job, pod: DryRun::Exists, service: None, claim: None };
            gang("team", &built, &tried)[0].result
        };
        assert_eq!(found("kubernetes.io/job-controller"), Fits);
        assert_eq!(found("kueue.x-k8s.io/multikueue"), Problem);
    }

    #[test]
    fn each_object_has_its_own_finding() {
        let built = tests::gang(&json!({"replicas": 2}));
        let mut tried = Tried {
            job: DryRun::Accepted(built.job.clone()),
            pod: DryRun::Refused(
                "pods \"toy-1-0-\" is forbidden: no PriorityClass with name high was found".to_owned(),
            ),
            service: Some(DryRun::Exists),
            claim: Some(DryRun::Unseen("you may not create persistentvolumeclaims".to_owned())),
        };
        let found = gang("team", &built, &tried);
        let results: Vec<CheckResult> = found.iter().map(|finding| finding.result).collect();
        assert_eq!(results, [Fits, Problem, Fits, Unknown]);
        assert_eq!(found[1].object, "Pods team/toy-1-*");
        assert!(found[1].message.contains("no PriorityClass"), "{found:?}");
        assert_eq!(found[3].object, "PersistentVolumeClaim team/toy-storage");
        (tried.service, tried.claim) = (None, None);
        assert_eq!(gang("team", &built, &tried).len(), 2);
    }
}
