//! What the administrator sets for the pods of all jobs.

use k8s_openapi::api::core::v1::{EnvVar, LocalObjectReference, Toleration};
use pawl_api::quantity::Bytes;
use pawl_api::spec::PodSecurity;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::str::FromStr;

/// What the administrator sets for the pods of all jobs: the value `pods` of the chart.
///
/// A field that is added later is not written while it is empty: a hash over these defaults changes only when an
/// administrator sets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodDefaults {
    /// Ids of the user and groups. An id that is not set here nor by the job is chosen by the cluster, as OpenShift's
    /// `restricted-v2` requires.
    #[serde(default)]
    pub security_context: PodSecurity,
    /// Size limits of the directories on the node's disk.
    #[serde(default)]
    pub empty_dirs: DirectorySizes,
    /// Secrets for pulling images, besides those of the job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Runtime class, unless the job sets one.
    #[serde(default, deserialize_with = "name", skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Priority class, unless the job sets one.
    #[serde(default, deserialize_with = "name", skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Node labels required by the pods, except for keys that the job sets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate, except for those of a key and an effect that the job sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Labels of the pods, except for keys that the job or the operator sets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods, except for keys that the job or the operator sets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Variables of the trainer and of the job's init containers, except for those that the job or the operator sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
}

/// Reads a name. In the values of a chart, an empty one is none.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.filter(|name| !name.is_empty()))
}

/// Size limits of `emptyDir` volumes; the kubelet evicts a pod that exceeds one. Without a limit, a pod can fill the
/// node's disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DirectorySizes {
    /// The agent's files: plans, reports and logs, and checkpoints of jobs without storage.
    pub work: Option<Bytes>,
    /// Data that workloads generate.
    pub data: Option<Bytes>,
    /// `/tmp`.
    pub tmp: Option<Bytes>,
}

/// User and group of the trainer: the customary `nonroot`.
const USER: i64 = 65532;

impl Default for PodDefaults {
    fn default() -> Self {
        let size = |text: &str| text.parse().ok();
        Self {
            security_context: PodSecurity {
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                fs_group: Some(USER),
                supplemental_groups: Vec::new(),
            },
            empty_dirs: DirectorySizes { work: size("100Gi"), data: size("200Gi"), tmp: size("50Gi") },
            image_pull_secrets: Vec::new(),
            runtime_class_name: None,
            priority_class_name: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            env: Vec::new(),
        }
    }
}

impl FromStr for PodDefaults {
    type Err = serde_json::Error;

    /// Reads the defaults in JSON. What is absent is not set.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        serde_json::from_str(text)
    }
}
