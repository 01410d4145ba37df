//! What the administrator sets for the pods of all jobs.

use pawl_api::quantity::Bytes;
use pawl_api::spec::PodSecurity;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What the administrator sets for the pods of all jobs: the value `pods` of the chart.
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
