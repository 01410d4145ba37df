//! The objects of an attempt, built from the plan and the spec. Pure: nothing is read, nothing is written.
//!
//! | object | when | owner |
//! |---|---|---|
//! | PersistentVolumeClaim `<job>-storage` | the job's storage is the default `Claim` | none, or the `TrainingJob` |
//! | batch Job `<attempt>` | always | the `TrainingJob` |
//! | Secret `pawl-tokens-<mark>` with the token | more than one pod, once for 32 gangs | the first one's job |
//! | ConfigMap `<attempt>` with the plan, last | the pods do not carry it | the batch Job |
//! | headless Service `pawl-trainers` | more than one pod, once a namespace | none |
//!
//! The batch Job comes before what it owns, which is deleted with it; a pod waits for its mounts meanwhile.
//! A plan that is small is an annotation of the pods ([`carries_plan`]): one object fewer to create, to watch and to
//! delete. The ConfigMap of an attempt that may be the last one of its job also holds what outlives the job
//! ([`record()`]).

mod claim;
mod companions;
mod container;
mod defaults;
mod gang;
mod paths;
mod pod;
mod reader;
mod storage;
#[cfg(test)]
mod tests;
mod volumes;

pub use claim::{Claim, DEFAULT_CLAIM_SIZE, Retention, StorageConfig, claim};
pub use companions::{carries_plan, events, plan, plan_repair, record, service, tokens};
pub use defaults::{DirectorySizes, PodDefaults};
pub(crate) use gang::job_owner;
pub use gang::{gang, gang_repair, runs_elsewhere, template_hash};
pub use pawl_decision::storage::DefaultStorage;
pub use reader::reader;
pub use storage::{Storage, storage};

use crate::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use pawl_api::TrainingJob;
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use std::collections::BTreeMap;

/// The operator's own images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// The trainer of jobs that name no image.
    pub trainer: String,
    /// The image whose agent is installed into foreign images: the operator's.
    pub agent: String,
}

/// Where the token of a gang is. Its pods mount this key alone, and none of the others in that Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRef {
    /// Name of the Secret.
    pub secret: String,
    /// Key in it.
    pub key: String,
}

/// What an attempt's objects are built from.
#[derive(Clone, Copy, Debug)]
pub struct Blueprint<'a> {
    /// The job.
    pub job: &'a TrainingJob,
    /// What the attempt runs.
    pub plan: &'a AttemptPlan,
    /// Hash of the plan.
    pub plan_hash: &'a str,
    /// Where its token is, for the batch Job of a gang that is made.
    pub token: Option<&'a TokenRef>,
    /// The operator's images.
    pub images: &'a Images,
    /// How the operator stores checkpoints of jobs that name no storage.
    pub storage: &'a StorageConfig,
    /// What the administrator sets for all pods.
    pub pods: &'a PodDefaults,
    /// Nodes on which its pods run only if no other one has room.
    pub avoided: &'a [String],
    /// What the attempt puts into the records of the job, if it does: [`record`].
    pub record: Option<&'a str>,
}

impl Blueprint<'_> {
    fn name(&self) -> &str {
        &self.plan.attempt
    }

    /// Whether the job's storage is a claim that the operator creates.
    fn has_own_claim(&self) -> bool {
        let name = self.job.metadata.name.as_deref().unwrap_or_default();
        let claim = storage(self.job).claim;
        self.storage.default == DefaultStorage::Claim && claim == Some(pawl_decision::storage::claim_name(name))
    }

    /// Whether the attempt has to prove its storage: the job trains, and no preflight mounts the claim.
    fn proves_storage(&self) -> bool {
        self.has_own_claim() && !self.is_preflight() && self.job.spec.train.is_asked_for()
    }

    /// Whether the attempt only checks that the settings are supported, without GPUs.
    fn is_preflight(&self) -> bool {
        self.plan.launches.iter().any(|launch| launch.kind == LaunchKind::Preflight)
    }

    /// Whether the attempt trains the model.
    fn trains(&self) -> bool {
        self.plan.launches.iter().any(|launch| launch.kind == LaunchKind::Train)
    }

    /// Seconds between SIGTERM and SIGKILL of the ranks.
    fn stop_grace_seconds(&self) -> u64 {
        let grace = pawl_decision::stop_grace(&self.job.spec, self.job.status.as_ref(), self.plan);
        // A fraction of a second is not worth less.
        grace.as_secs() + u64::from(grace.subsec_nanos() > 0)
    }

    fn namespace(&self) -> &str {
        self.job.metadata.namespace.as_deref().unwrap_or("default")
    }

    /// Whether the image is the user's: it contains no agent.
    fn is_foreign(&self) -> bool {
        !self.job.spec.workload.command.is_empty()
    }

    /// Hash of what the attempt's pods are made from.
    pub(crate) fn template_hash(&self) -> String {
        template_hash(self.job, self.pods, self.trains())
    }

    /// Whether the gang has more than one pod: then its pods need to find and to trust each other.
    pub(crate) fn is_gang(&self) -> bool {
        self.plan.replicas > 1
    }
}

/// The labels of every object of an attempt.
fn labels(job: &str, attempt: &str) -> BTreeMap<String, String> {
    let pairs = [
        (names::NAME, names::TRAINER_NAME),
        (names::MANAGED_BY, names::MANAGER),
        (names::JOB, job),
        (names::ATTEMPT, attempt),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The annotations of a batch Job and of its pods: the plan, and the job that it was made for.
fn annotations(job: &TrainingJob, plan_hash: &str) -> BTreeMap<String, String> {
    let uid = job.metadata.uid.clone().unwrap_or_default();
    BTreeMap::from([(names::PLAN_HASH.to_owned(), plan_hash.to_owned()), (names::JOB_UID.to_owned(), uid)])
}

/// The batch Job as the owner of what goes with it.
fn gang_owner(attempt: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "Job".to_owned(),
        name: attempt.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// A list or map, unless it is empty.
fn some<T: Clone + Default + PartialEq>(value: &T) -> Option<T> {
    (*value != T::default()).then(|| value.clone())
}
