//! Safety: a single failed launch of the candidate is sufficient.

use super::{Subject, Verdict};
use crate::comparison::Comparison;
use crate::reason::Reason;
use pawl_api::spec::Trigger;
use pawl_api::status::LaunchStatus;
use pawl_contract::exit::Outcome;

/// The trigger that corresponds to an outcome; `None` when the launch is done, or its outcome is not evidence about the
/// settings.
pub(crate) fn unsafe_outcome(outcome: Outcome) -> Option<Trigger> {
    match outcome {
        Outcome::OutOfMemory => Some(Trigger::OutOfMemory),
        Outcome::HostOutOfMemory => Some(Trigger::HostOutOfMemory),
        Outcome::NonFinite => Some(Trigger::NonFinite),
        Outcome::LossSpike => Some(Trigger::LossSpike),
        Outcome::Hang => Some(Trigger::Hang),
        Outcome::Unsupported => Some(Trigger::Unsupported),
        Outcome::CompileFailed => Some(Trigger::CompileFailed),
        Outcome::Done
        | Outcome::InvalidPlan
        | Outcome::CheckpointUnreadable
        | Outcome::StorageFull
        | Outcome::Stopped
        | Outcome::LostPeer
        | Outcome::Failed => None,
    }
}

/// The first failed launch of the candidate.
pub(crate) fn broken<'a>(comparison: &Comparison<'a>) -> Option<&'a LaunchStatus> {
    comparison.candidates().find(|launch| launch.outcome != Outcome::Done)
}

/// Human-readable description of a failed launch.
pub(crate) fn description(launch: &LaunchStatus) -> String {
    let text = if launch.message.is_empty() { "no message" } else { &launch.message };
    format!("launch {} ended with {}: {text}", launch.name, launch.outcome)
}

/// Fails a candidate that ran out of memory, diverged, hung, or cannot run.
pub(super) fn candidate(subject: &Subject<'_>) -> Option<Verdict> {
    let launch = broken(&subject.comparison)?;
    if launch.outcome == Outcome::InvalidPlan {
        let place =
            subject.phase.map_or_else(|| "all accepted phases".to_owned(), |phase| format!("phase {}", phase.name));
        return Some(Verdict::InvalidPlan { message: format!("{place}: {}", launch.message) });
    }
    let trigger = unsafe_outcome(launch.outcome)?;
    Some(Verdict::Broken { trigger, reason: Reason::Outcome(launch.outcome), message: description(launch) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use strum::IntoEnumIterator;

    #[test]
    fn outcomes_that_are_evidence_against_settings_have_the_trigger_of_their_name() {
        for outcome in Outcome::iter() {
            let other = matches!(outcome, Outcome::Done | Outcome::InvalidPlan | Outcome::CheckpointUnreadable);
            let against = outcome.is_evidence() && !other;
            let trigger = unsafe_outcome(outcome).map(|trigger| trigger.to_string());
            assert_eq!(trigger, against.then(|| outcome.to_string()));
        }
    }
}
