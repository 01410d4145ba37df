//! Who writes a checkpoint.

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
        }
    }

    /// Number of the attempt; 0 when its name ends in none.
    pub(super) fn attempt_number(&self) -> u64 {
        self.attempt.rsplit_once('-').and_then(|(_, number)| number.parse().ok()).unwrap_or_default()
    }
}
