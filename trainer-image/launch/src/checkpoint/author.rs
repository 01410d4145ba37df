//! Who writes a checkpoint, and what trained it.

use super::hash;
use pawl_contract::attempt::AttemptName;
use pawl_contract::checkpoint::TrainedPart;
use pawl_contract::env;
use pawl_contract::plan::LaunchPlan;
use serde::{Deserialize, Serialize};

/// The job, attempt and launch that write a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Author {
    /// Namespace of the job; empty without a cluster.
    pub namespace: String,
    /// Name of the job.
    pub job: String,
    /// Unique identifier of the job; empty when the trainer was started by hand.
    pub uid: String,
    /// Generation of the job's spec when the attempt was started; 0 when unknown.
    pub generation: i64,
    /// `<job>-<attempt number>`.
    pub attempt: String,
    /// Name of the launch.
    pub launch: String,
    /// Hash of the workload, its configuration and the seed; empty when written by an earlier version. A training
    /// resumes no checkpoint of another one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trains: String,
    /// The launches that trained the model, the oldest first. The names of launches end in a hash of all their inputs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trained: Vec<TrainedPart>,
}

/// Maximum number of parts; the oldest are dropped.
const MAX_PARTS: usize = 64;

/// Hash of the workload, its configuration and the seed of a plan, 16 digits.
fn trains(plan: &LaunchPlan) -> String {
    // Keys of the configuration are in order: a map of JSON is sorted.
    let what = serde_json::json!([plan.workload.name, plan.workload.config, plan.seed]);
    hash(what.to_string().as_bytes())[..16].to_owned()
}

impl Author {
    /// The author of a launch's checkpoints, with what the environment adds to its plan.
    pub fn of(plan: &LaunchPlan) -> Self {
        let text = |name| std::env::var(name).unwrap_or_default();
        Self {
            namespace: text(env::JOB_NAMESPACE),
            job: plan.job.clone(),
            uid: text(env::JOB_UID),
            generation: text(env::JOB_GENERATION).parse().unwrap_or_default(),
            attempt: plan.attempt.clone(),
            launch: plan.launch.clone(),
            trains: trains(plan),
            trained: vec![TrainedPart { from_items: 0, attempt: plan.attempt.clone(), launch: plan.launch.clone() }],
        }
    }

    /// Whether a checkpoint of `other` is one of the same training, as far as both say so.
    pub(super) fn trains_as(&self, other: &Self) -> bool {
        self.trains.is_empty() || other.trains.is_empty() || self.trains == other.trains
    }

    /// Resumes a checkpoint of `before` at `items`.
    pub(super) fn resume(&mut self, before: &Self, items: u64) {
        let own = std::mem::take(&mut self.trained);
        self.trained.clone_from(&before.trained);
        if self.trained.last().is_none_or(|last| last.launch != self.launch) {
            self.trained.extend(own.into_iter().map(|part| TrainedPart { from_items: items, ..part }));
        }
        self.trained.drain(..self.trained.len().saturating_sub(MAX_PARTS));
    }

    /// Number of the attempt; 0 when it is not named as one.
    pub(super) fn attempt_number(&self) -> u64 {
        AttemptName::number_of(&self.attempt).into()
    }
}
