//! The budget of infrastructure failures.

use super::{Trial, Verdict};

/// The infrastructure failed too often, or the accepted settings did.
pub(super) fn exhausted(trial: &Trial<'_>) -> Option<Verdict> {
    let draft = trial.comparison.draft;
    let retry = draft.exhausted(&trial.comparison.trial)?;
    let reason = match retry.control_outcome {
        Some(_) => "ControlFailed",
        None => "RetriesExhausted",
    };
    let budget = draft.spec.lifecycle.max_restarts;
    let message = format!("{} failures, lifecycle.maxRestarts is {budget}; the last: {}", retry.count, retry.message);
    Some(Verdict::Error { reason, message })
}
