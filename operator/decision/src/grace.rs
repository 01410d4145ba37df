//! The time that ranks get for a checkpoint between SIGTERM and SIGKILL.

use pawl_api::spec::TrainingJobSpec;
use pawl_api::status::TrainingJobStatus;
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use pawl_contract::pod::{CHECKPOINT_GRACE_SECONDS, STOP_GRACE_SECONDS};
use std::time::Duration;

/// Longest estimate that is used, seconds: a pod that stops holds its devices.
const MAX_ESTIMATE: u64 = 3600;

/// Time between SIGTERM and SIGKILL of the ranks of an attempt. When it trains: `lifecycle.checkpointGrace`, or else
/// what the trainer estimates from its longest step and its slowest checkpoint, at least [`CHECKPOINT_GRACE_SECONDS`].
/// Otherwise [`STOP_GRACE_SECONDS`].
///
/// It is not part of the plan, which must not change while an attempt runs.
pub fn stop_grace(spec: &TrainingJobSpec, status: Option<&TrainingJobStatus>, plan: &AttemptPlan) -> Duration {
    if !plan.launches.iter().any(|launch| launch.kind == LaunchKind::Train) {
        return Duration::from_secs(STOP_GRACE_SECONDS);
    }
    let estimated = status.and_then(|status| status.training.as_ref()?.stop_seconds).unwrap_or_default();
    let default = || Duration::from_secs(estimated.max(CHECKPOINT_GRACE_SECONDS));
    spec.lifecycle.checkpoint_grace.as_ref().map_or_else(default, |grace| grace.get())
}

/// The longer of two estimates, whole seconds, at most [`MAX_ESTIMATE`]; an estimate that is not a time is ignored.
pub(crate) fn longer(known: Option<u64>, reported: Option<f64>) -> Option<u64> {
    let reported =
        reported.filter(|seconds| seconds.is_finite() && *seconds >= 0.0).map(|seconds| seconds.ceil() as u64);
    known.max(reported).map(|seconds| seconds.min(MAX_ESTIMATE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_api::status::TrainingStatus;
    use serde_json::json;

    fn plan(kind: &str) -> AttemptPlan {
        let launch = json!({"contract": 1, "job": "toy", "attempt": "toy-1", "launch": "l", "kind": kind, "workload": {},
                            "settings": {}, "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0});
        serde_json::from_value(
            json!({"contract": 1, "job": "toy", "attempt": "toy-1", "replicas": 1, "ranksPerReplica": 1,
                                      "gpusPerReplica": 0, "launches": [launch], "stopOnFailure": true}),
        )
        .unwrap()
    }

    #[test]
    fn a_slow_checkpoint_extends_the_grace_unless_the_job_sets_it() {
        let spec =
            |lifecycle| serde_json::from_value(json!({"workload": {"name": "ups"}, "lifecycle": lifecycle})).unwrap();
        let status = |seconds| {
            let training = Some(TrainingStatus { stop_seconds: seconds, ..TrainingStatus::default() });
            TrainingJobStatus { training, ..TrainingJobStatus::default() }
        };
        let grace =
            |lifecycle, seconds, kind| stop_grace(&spec(lifecycle), Some(&status(seconds)), &plan(kind)).as_secs();
        assert_eq!(grace(json!({}), None, "Train"), 60);
        assert_eq!(grace(json!({}), Some(7), "Train"), 60);
        assert_eq!(grace(json!({}), Some(400), "Train"), 400);
        assert_eq!(grace(json!({"checkpointGrace": "90s"}), Some(400), "Train"), 90);
        assert_eq!(grace(json!({"checkpointGrace": "90s"}), Some(400), "Measure"), 15);
        assert_eq!(stop_grace(&spec(json!({})), None, &plan("Train")).as_secs(), 60);
    }

    #[test]
    fn estimates_only_grow() {
        assert_eq!(longer(None, None), None);
        assert_eq!(longer(Some(3), Some(7.2)), Some(8));
        assert_eq!(longer(Some(9), Some(7.2)), Some(9));
        assert_eq!(longer(Some(3), Some(f64::NAN)), Some(3));
        assert_eq!(longer(Some(3), Some(1e30)), Some(3600));
    }
}
