//! Containers of the trainer's pods besides the trainer's.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, ResourceRequirements, VolumeMount};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A container that runs before the trainer's, or beside it: a sidecar, which the kubelet ends after the trainer's. It
/// has those fields of a Kubernetes container that need no other rights than the trainer's has; its security context is
/// the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InitContainer {
    /// Name, unique in the pod.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Image.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// When the image is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// `Always`: a sidecar, which is started before what follows and runs until the trainer has ended. Without it, the
    /// container must exit with 0 before the next one starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RestartPolicy>,
    /// Entry point; default: the image's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub command: Vec<String>,
    /// Arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub args: Vec<String>,
    /// Working directory; default: the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub working_dir: Option<String>,
    /// Environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// ConfigMaps and Secrets whose keys are variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env_from: Vec<EnvFromSource>,
    /// Resources.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "resources")]
    pub resources: Option<ResourceRequirements>,
    /// Where it mounts volumes of the pod template.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mountPath"]))]
    pub volume_mounts: Vec<VolumeMount>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// At each start of a pod.
    Always,
    /// Unless the node has it.
    IfNotPresent,
    /// Never: the node must have it.
    Never,
}

/// When an init container is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartPolicy {
    /// Whenever it ends: it is a sidecar.
    Always,
}

impl PullPolicy {
    /// The value of `imagePullPolicy` of a container.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Deserializes resources whose quantities may be plain numbers (`cpu: 4`), as the API server does; `k8s-openapi`
/// accepts strings only.
pub(super) fn resources<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ResourceRequirements>, D::Error> {
    let Some(mut value) = Option::<serde_json::Value>::deserialize(deserializer)? else { return Ok(None) };
    for list in ["limits", "requests"] {
        let quantities = value.get_mut(list).and_then(serde_json::Value::as_object_mut);
        for quantity in quantities.into_iter().flat_map(serde_json::Map::values_mut).filter(|q| q.is_number()) {
            *quantity = serde_json::Value::String(quantity.to_string());
        }
    }
    serde_json::from_value(value).map(Some).map_err(serde::de::Error::custom)
}
