//! Pods, batch Jobs and Services as the watches read them: what facts are made of, and nothing else. All other fields
//! are skipped while the JSON is read, so an event costs little and leaves nothing behind.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// A pod.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = "Pod")]
pub struct WatchedPod {
    /// Without managed fields.
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    /// What the scheduler wrote.
    #[serde(default)]
    pub spec: PodSpec,
    /// What the kubelet wrote.
    #[serde(default)]
    pub status: PodStatus,
}

/// Of a pod's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Where it runs.
    pub node_name: Option<String>,
    /// Its containers before the trainer's, and beside it.
    pub init_containers: Vec<InitContainer>,
}

/// Of an init container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InitContainer {
    /// Its name.
    pub name: String,
    /// `Always`: it is a sidecar, which the kubelet restarts.
    pub restart_policy: Option<String>,
}

/// Of a pod's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// Pending, Running, Succeeded, Failed.
    pub phase: Option<String>,
    /// Why, such as `Evicted`.
    pub reason: Option<String>,
    /// Human-readable message.
    pub message: Option<String>,
    /// Its address.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// PodScheduled, DisruptionTarget and others.
    pub conditions: Vec<Condition>,
    /// States of its containers.
    pub container_statuses: Vec<ContainerStatus>,
    /// States of its init containers.
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// A condition of a pod or a batch Job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// What it is about.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False, Unknown.
    pub status: String,
    /// Machine-readable reason.
    pub reason: Option<String>,
    /// Human-readable message.
    pub message: Option<String>,
    /// When its status last changed.
    pub last_transition_time: Option<Time>,
}

/// State of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// The image that it runs, with its digest.
    #[serde(rename = "imageID")]
    pub image_id: String,
    /// Waiting, running or terminated.
    pub state: ContainerState,
}

/// State of a container: at most one is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Not started.
    pub waiting: Option<Waiting>,
    /// It runs.
    pub running: Option<Running>,
    /// It ended.
    pub terminated: Option<Terminated>,
}

/// Why a container does not run yet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// Machine-readable reason.
    pub reason: Option<String>,
    /// Human-readable message.
    pub message: Option<String>,
}

/// A container runs.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Running {}

/// How a container ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    /// Its exit code; 128 and the signal when it was killed.
    pub exit_code: i32,
    /// Such as `OOMKilled`.
    pub reason: Option<String>,
    /// What it left as its termination message.
    pub message: Option<String>,
}

/// A batch Job.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = "Job")]
pub struct WatchedJob {
    /// Without managed fields.
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    /// The spec.
    #[serde(default)]
    pub spec: JobSpec,
    /// What the Job controller wrote.
    #[serde(default)]
    pub status: JobStatus,
}

/// Of a batch Job's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    /// No pods are made while it is true.
    pub suspend: Option<bool>,
    /// Pods at a time.
    pub parallelism: Option<i32>,
    /// Pods in all.
    pub completions: Option<i32>,
    /// Who makes its pods, if not the Job controller of this cluster.
    pub managed_by: Option<String>,
    /// What its pods are made from.
    pub template: PodTemplate,
}

/// Of a batch Job's pod template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// Of its metadata.
    pub metadata: TemplateMeta,
    /// Of its spec.
    pub spec: TemplateSpec,
}

/// Of the spec of a batch Job's pod template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TemplateSpec {
    /// Volumes. Immutable, also while it is suspended.
    pub volumes: Vec<Volume>,
}

/// Of a volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// It holds a Secret.
    pub secret: Option<SecretVolume>,
    /// It holds fields of the pod.
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<IgnoredAny>,
}

/// Of a volume with a Secret.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretVolume {
    /// Name of the Secret.
    pub secret_name: String,
}

/// Of the metadata of a batch Job's pod template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TemplateMeta {
    /// Annotations. Immutable once it was not suspended.
    pub annotations: BTreeMap<String, String>,
}

/// Of a batch Job's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// When it was last resumed.
    pub start_time: Option<Time>,
    /// Complete, Failed and others.
    pub conditions: Vec<Condition>,
}

/// A Service.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = "Service")]
pub struct WatchedService {
    /// Without managed fields.
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    /// The spec.
    #[serde(default)]
    pub spec: ServiceSpec,
}

/// Of a Service's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// Labels of the pods that it gives names.
    pub selector: Option<BTreeMap<String, String>>,
    /// Names are given before pods are ready.
    pub publish_not_ready_addresses: Option<bool>,
    /// Its address; the string `None` when it is headless.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
}

/// The metadata that facts are made of.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let meta = Meta::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        generation: meta.generation,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        labels: meta.labels,
        annotations: meta.annotations,
        owner_references: meta.owner_references,
        ..ObjectMeta::default()
    })
}

/// When the object was made; the beginning of time when it does not say.
pub(crate) fn created(meta: &ObjectMeta) -> Timestamp {
    meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::WatchEvent;

    #[test]
    fn what_is_not_needed_is_not_kept() {
        let line = r#"{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a-1-0-x","namespace":"n",
            "uid":"u","resourceVersion":"7","managedFields":[{"manager":"kubelet","fieldsV1":{"f:status":{}}}],
            "labels":{"pawl.dev/job":"a"}},
            "spec":{"nodeName":"node-1","containers":[{"name":"trainer","image":"i","env":[{"name":"A","value":"B"}]}]},
            "status":{"phase":"Running","podIP":"10.0.0.1","qosClass":"Burstable",
            "containerStatuses":[{"name":"trainer","ready":true,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}}}"#;
        let WatchEvent::Added(pod) = serde_json::from_str::<WatchEvent<WatchedPod>>(line).unwrap() else { panic!() };
        assert_eq!(pod.metadata.name.as_deref(), Some("a-1-0-x"));
        assert_eq!(pod.metadata.managed_fields, None);
        assert_eq!(pod.spec.node_name.as_deref(), Some("node-1"));
        assert!(pod.status.container_statuses[0].state.running.is_some());
    }
}
