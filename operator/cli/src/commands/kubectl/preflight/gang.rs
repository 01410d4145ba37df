//! The objects of the gang that would train a job: what the operator would create, and the first pod of its batch Job.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use pawl_api::TrainingJob;
use pawl_controller::objects::{self, Blueprint, TokenRef};
use pawl_controller::{Config, names};
use pawl_decision::storage;

/// The batch Job that does not exist has no uid yet; labels of its pods hold one.
const UID: &str = "00000000-0000-0000-0000-000000000000";

/// The Secret with the token of its gang.
pub const TOKEN_SECRET: &str = "pawl-token-preflight";

/// The objects of an attempt with all replicas.
#[derive(Clone, Debug)]
pub struct Gang {
    /// The batch Job.
    pub job: Job,
    /// Its first pod.
    pub pod: Pod,
    /// Pods in the gang.
    pub replicas: u32,
    /// The Service of a gang of several pods.
    pub service: Option<Service>,
    /// The claim that the operator creates.
    pub claim: Option<PersistentVolumeClaim>,
}

impl Gang {
    /// The next attempt of `job` under an operator with this configuration: a training, whose pods need most.
    pub fn of(mut job: TrainingJob, config: &Config) -> Self {
        storage::fill(&mut job, &config.storage.default);
        let name = job.metadata.name.clone().unwrap_or_default();
        let mut plan = pawl_decision::preview(&job);
        let attempts = job.status.as_ref().map_or(0, |status| status.attempts);
        plan.attempt = format!("{name}-{}", attempts + 1);
        let token = TokenRef { secret: TOKEN_SECRET.to_owned(), key: "0".to_owned() };
        let blueprint = Blueprint {
            job: &job,
            plan: &plan,
            plan_hash: "preflight",
            token: (plan.replicas > 1).then_some(&token),
            images: &config.images,
            storage: &config.storage,
            pods: &config.pods,
            avoided: &[],
            record: None,
        };
        let mut batch = objects::gang(&blueprint);
        let mut claim = objects::claim(&blueprint);
        // The operator may set an owner that blocks its deletion; the user who asks need not.
        batch.metadata.owner_references = None;
        claim.iter_mut().for_each(|claim| claim.metadata.owner_references = None);
        let namespace = job.metadata.namespace.clone().unwrap_or_default();
        Self {
            pod: pod(&batch),
            replicas: plan.replicas,
            service: (plan.replicas > 1).then(|| objects::service(&namespace)),
            claim,
            job: batch,
        }
    }

    /// Name of the attempt.
    pub fn name(&self) -> &str {
        self.job.metadata.name.as_deref().unwrap_or_default()
    }
}

/// The first pod of an Indexed Job, as the Job controller creates it (`pkg/controller/job/indexed_job_utils.go` of
/// kubernetes 1.34).
fn pod(batch: &Job) -> Pod {
    let name = batch.metadata.name.clone().unwrap_or_default();
    let template = batch.spec.clone().unwrap_or_default().template;
    let mut metadata = template.metadata.unwrap_or_default();
    let index = (names::BATCH_INDEX, "0");
    let own = [
        (names::BATCH_JOB, name.as_str()),
        (names::BATCH_JOB_UID, UID),
        ("job-name", &name),
        ("controller-uid", UID),
        index,
    ];
    let labels = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    metadata.labels.get_or_insert_default().extend(labels);
    metadata.annotations.get_or_insert_default().insert(index.0.to_owned(), index.1.to_owned());
    let mut spec = template.spec.unwrap_or_default();
    spec.hostname = Some(format!("{name}-0"));
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container.env.get_or_insert_default().push(completion_index());
    }
    // Policies may demand an owner. The right to let it block its deletion is the Job controller's.
    let owner = OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "Job".to_owned(),
        name: name.clone(),
        uid: UID.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let metadata = ObjectMeta {
        owner_references: Some(vec![owner]),
        generate_name: Some(format!("{name}-0-")),
        namespace: batch.metadata.namespace.clone(),
        finalizers: Some(vec!["batch.kubernetes.io/job-tracking".to_owned()]),
        ..metadata
    };
    Pod { metadata, spec: Some(spec), status: None }
}

fn completion_index() -> EnvVar {
    let field =
        ObjectFieldSelector { api_version: None, field_path: format!("metadata.labels['{}']", names::BATCH_INDEX) };
    EnvVar {
        name: "JOB_COMPLETION_INDEX".to_owned(),
        value: None,
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::commands::kubectl::preflight::configuration::chart_defaults;
    use serde_json::{Value, json};

    /// The gang of a job with this trainer under the defaults of the chart.
    pub fn gang(trainer: &Value) -> Gang {
        let job = json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "toy", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "gpus"}},
            "spec": {"workload": {"name": "ups"}, "trainer": trainer, "train": {"items": 100}},
        });
        Gang::of(serde_json::from_value(job).unwrap(), &chart_defaults("pawl-system"))
    }

    #[test]
    fn the_gang_is_that_which_trains_with_the_labels_of_the_job_controller() {
        let gang = gang(&json!({"replicas": 3, "gpusPerReplica": 4}));
        assert_eq!((gang.name(), gang.replicas), ("toy-1", 3));
        assert_eq!(gang.job.metadata.owner_references, None);
        assert_eq!(gang.job.metadata.labels.as_ref().unwrap()["kueue.x-k8s.io/queue-name"], "gpus");
        let pod = gang.pod.spec.unwrap();
        assert_eq!(pod.containers[0].resources.as_ref().unwrap().limits.as_ref().unwrap()["nvidia.com/gpu"].0, "4");
        let labels = gang.pod.metadata.labels.unwrap();
        assert_eq!(labels["batch.kubernetes.io/job-name"], "toy-1");
        assert_eq!(labels["app.kubernetes.io/managed-by"], "pawl", "policies select by it");
        assert_eq!(gang.pod.metadata.owner_references.unwrap()[0].name, "toy-1");
        let claim = gang.claim.unwrap();
        assert_eq!(claim.metadata.name.as_deref(), Some("toy-storage"));
        assert_eq!(claim.spec.unwrap().access_modes.unwrap(), ["ReadWriteMany"]);
        assert!(gang.service.is_some());
    }

    #[test]
    fn a_single_pod_needs_no_service_and_a_named_storage_no_claim() {
        assert!(gang(&json!({})).service.is_none());
        let mut config = chart_defaults("pawl-system");
        config.storage.default = "s3://models".parse().unwrap();
        let job = json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"}, "train": {"items": 100}}});
        assert!(Gang::of(serde_json::from_value(job).unwrap(), &config).claim.is_none());
    }
}
