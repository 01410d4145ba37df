//! The limit of infrastructure failures, `lifecycle.maxRestarts`.

use super::{Subject, Verdict};
use crate::reason::Reason;
use crate::retry::summary;
use pawl_api::status::RetryStatus;

/// Fails when infrastructure failures, or failures of the accepted settings, exceed the limit; and a candidate that
/// fails by itself in the same way again, while others do not.
pub(super) fn exhausted(subject: &Subject<'_>) -> Option<Verdict> {
    let draft = subject.comparison.draft;
    let task = subject.comparison.task.to_string();
    let retry = draft.exhausted(&task)?;
    let budget = draft.spec.lifecycle.max_restarts;
    if draft.is_crashing(&task) {
        let message = summary(&retry, budget);
        return Some(Verdict::Fails { trigger: None, reason: Reason::Crashed, message });
    }
    Some(verdict(&retry, budget))
}

fn verdict(retry: &RetryStatus, budget: u32) -> Verdict {
    let reason = match retry.control_outcome {
        Some(_) => Reason::ControlFailed,
        None => Reason::RetriesExhausted,
    };
    Verdict::Error { reason, message: summary(retry, budget) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::exit::Outcome;

    #[test]
    fn accepted_settings_that_fail_are_another_reason_than_the_infrastructure() {
        for (control_outcome, expected) in
            [(None, Reason::RetriesExhausted), (Some(Outcome::Hang), Reason::ControlFailed)]
        {
            let retry = RetryStatus { count: 3, control_outcome, ..RetryStatus::default() };
            let Verdict::Error { reason, message } = verdict(&retry, 2) else { panic!() };
            assert!(reason == expected && message.starts_with("3 failures, lifecycle.maxRestarts is 2"), "{message}");
        }
    }
}
