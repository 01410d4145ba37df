//! Where and how the trainer runs.

use super::containers::{InitContainer, PullPolicy, resources};
use super::one;
use crate::quantity::Bytes;
use k8s_openapi::api::core::v1::{
    Affinity, EnvFromSource, EnvVar, LocalObjectReference, PodResourceClaim, ResourceRequirements, Toleration,
    TopologySpreadConstraint, Volume, VolumeMount,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where and how the trainer runs. The world size is `replicas` times `gpusPerReplica` (at least 1 each).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Trainer {
    /// Image of the trainer; default: the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Pods in the gang.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 4096))]
    pub replicas: u32,
    /// GPUs per pod, one process per GPU; 0: one process per pod, on the CPU.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 64))]
    pub gpus_per_replica: u32,
    /// Name of the GPU resource, or of an entry of `podTemplate.resourceClaims`.
    #[serde(default = "default_gpu_resource")]
    #[schemars(length(min = 1, max = 253))]
    pub gpu_resource: String,
    /// Further fields of the pods; the configuration of the operator may add to them.
    #[serde(default)]
    pub pod_template: PodTemplate,
}

fn default_gpu_resource() -> String {
    "nvidia.com/gpu".to_owned()
}

impl Default for Trainer {
    fn default() -> Self {
        Self {
            image: None,
            replicas: 1,
            gpus_per_replica: 1,
            gpu_resource: default_gpu_resource(),
            pod_template: PodTemplate::default(),
        }
    }
}

impl Trainer {
    /// Ranks per pod: one per GPU, at least 1.
    pub fn ranks_per_replica(&self) -> u32 {
        self.gpus_per_replica.max(1)
    }

    /// Ranks of the gang: `replicas` times [`Self::ranks_per_replica`].
    pub fn world_size(&self) -> u32 {
        self.replicas.saturating_mul(self.ranks_per_replica())
    }

    /// The claim (dynamic resource allocation) that the GPUs come from: the entry of `podTemplate.resourceClaims` that
    /// `gpuResource` names. `None` when it names an extended resource: those names contain a `/`, names of claims none.
    pub fn gpu_claim(&self) -> Option<&PodResourceClaim> {
        self.pod_template.resource_claims.iter().find(|claim| claim.name == self.gpu_resource)
    }
}

/// Fields of the spec of the trainer's pods, under the names that Kubernetes gives them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodTemplate {
    /// Labels of the pods, such as those of a gang scheduler.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub annotations: BTreeMap<String, String>,
    /// Node labels required by the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<Toleration>,
    /// Scheduling constraints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Spreading over failure domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Resources of the trainer's container, besides its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "resources")]
    pub resources: Option<ResourceRequirements>,
    /// Claims of devices (dynamic resource allocation), for `resources.claims` and `gpuResource`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub resource_claims: Vec<PodResourceClaim>,
    /// Environment of the trainer's container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// ConfigMaps and Secrets whose keys are variables of the trainer's container; `env` takes precedence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env_from: Vec<EnvFromSource>,
    /// When the trainer's image is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Containers that run before the trainer's in each pod, in this order, or from then on beside it (sidecars).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub init_containers: Vec<InitContainer>,
    /// Volumes of the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "volumes")]
    pub volumes: Vec<Volume>,
    /// Where the trainer's container mounts them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mountPath"]))]
    pub volume_mounts: Vec<VolumeMount>,
    /// Ids of the container's user and groups. Default: those of the operator's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodSecurity>,
    /// Service account of the pods; its token is never mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service_account_name: Option<String>,
    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
    /// Scheduler of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub scheduler_name: Option<String>,
    /// Runtime class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub runtime_class_name: Option<String>,
    /// Secrets for pulling the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Size of `/dev/shm`. Default 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<Bytes>,
}

/// Ids of the container's user and groups. The policy of the operator says which ids a job may set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodSecurity {
    /// User id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub run_as_user: Option<i64>,
    /// Group id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub run_as_group: Option<i64>,
    /// Group id that owns the volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub fs_group: Option<i64>,
    /// Further group ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(range(min = 0, max = 2_147_483_647)))]
    pub supplemental_groups: Vec<i64>,
}

/// Types of volumes that the policy of the operator may allow.
pub const VOLUME_TYPES: [&str; 4] = ["downwardAPI", "image", "nfs", "projected"];

/// Types of volumes that are always allowed, and those whose names are checked.
pub(crate) const COMMON_VOLUME_TYPES: [&str; 7] =
    ["persistentVolumeClaim", "configMap", "emptyDir", "ephemeral", "csi", "secret", "hostPath"];

/// The schema of volumes: the types that are always allowed, and those that a policy may allow. The API server drops or
/// refuses the others.
fn volumes(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut volume = Volume::json_schema(generator);
    if let Some(properties) = volume.get_mut("properties").and_then(serde_json::Value::as_object_mut) {
        let known = |name: &str| COMMON_VOLUME_TYPES.contains(&name) || VOLUME_TYPES.contains(&name);
        properties.retain(|name, _| name == "name" || known(name));
    }
    schemars::json_schema!({
        "type": "array",
        "items": volume,
        "maxItems": 64,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}
