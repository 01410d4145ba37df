//! The volume claim of a job that names no storage.

use super::{Blueprint, labels};
use crate::names;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use pawl_api::quantity::Bytes;
use pawl_decision::storage::{DefaultStorage, claim_name};
use std::collections::BTreeMap;
use std::str::FromStr;

/// Default size of a claim. The chart has the same default, which a test compares.
pub const DEFAULT_CLAIM_SIZE: &str = "50Gi";

/// How the operator stores checkpoints of jobs that name no storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageConfig {
    /// Their storage.
    pub default: DefaultStorage,
    /// The claim of each job, for [`DefaultStorage::Claim`].
    pub claim: Claim,
}

/// The claim of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Requested size.
    pub size: Bytes,
    /// StorageClass; `None`: the default of the cluster.
    pub class: Option<String>,
    /// Access mode; `None`: `ReadWriteOnce` for jobs with one replica, `ReadWriteMany` for jobs with several, or with a
    /// search that runs several trials at the same time, whose pods may run on different nodes.
    pub access_mode: Option<String>,
    /// What happens to it when the job is deleted.
    pub retention: Retention,
}

impl Default for Claim {
    fn default() -> Self {
        Self {
            size: DEFAULT_CLAIM_SIZE.parse().expect("a literal of this file"),
            class: None,
            access_mode: None,
            retention: Retention::default(),
        }
    }
}

/// What happens to the claim of a job when the job is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::Display)]
pub enum Retention {
    /// It is kept, and with it the trained model.
    #[default]
    Retain,
    /// It is deleted with the job.
    Delete,
}

impl FromStr for Retention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "Retain" => Ok(Self::Retain),
            "Delete" => Ok(Self::Delete),
            other => Err(format!("{other:?}: write Retain or Delete")),
        }
    }
}

/// The claim of the job; `None` when its storage is another one, and for a preflight, which does not mount it.
pub fn claim(blueprint: &Blueprint<'_>) -> Option<PersistentVolumeClaim> {
    if !blueprint.has_own_claim() || blueprint.is_preflight() {
        return None;
    }
    let Blueprint { job, storage, .. } = blueprint;
    let wanted = &storage.claim;
    let name = job.name_any();
    let mut own_labels = labels(&name, blueprint.name());
    // It belongs to the job, not to an attempt.
    own_labels.remove(names::ATTEMPT);
    let parallel = job.spec.search.iter().any(|search| search.parallelism > 1);
    let mode = if job.spec.trainer.replicas > 1 || parallel { "ReadWriteMany" } else { "ReadWriteOnce" };
    let owned = wanted.retention == Retention::Delete;
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(claim_name(&name)),
            namespace: job.namespace(),
            labels: Some(own_labels),
            owner_references: owned.then(|| vec![super::gang::job_owner(job)]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![wanted.access_mode.clone().unwrap_or_else(|| mode.to_owned())]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), Quantity(wanted.size.as_str().to_owned()))])),
                limits: None,
            }),
            storage_class_name: wanted.class.clone(),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    })
}
