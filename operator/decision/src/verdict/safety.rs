//! Safety: one launch of the candidate that broke is enough.

use super::{Trial, Verdict};
use crate::comparison::Comparison;
use pawl_api::spec::Trigger;
use pawl_api::status::LaunchStatus;
use pawl_contract::exit::Outcome;

/// What a launch's outcome means for the settings that it ran; `None` when it is done or says nothing about them.
pub(crate) fn unsafe_outcome(outcome: Outcome) -> Option<(Trigger, &'static str)> {
    match outcome {
        Outcome::OutOfMemory => Some((Trigger::OutOfMemory, "OutOfMemory")),
        Outcome::HostOutOfMemory => Some((Trigger::HostOutOfMemory, "HostOutOfMemory")),
        Outcome::NonFinite => Some((Trigger::NonFinite, "NonFinite")),
        Outcome::LossSpike => Some((Trigger::LossSpike, "LossSpike")),
        Outcome::Hang => Some((Trigger::Hang, "Hang")),
        Outcome::Unsupported => Some((Trigger::Unsupported, "Unsupported")),
        Outcome::CompileFailed => Some((Trigger::CompileFailed, "CompileFailed")),
        Outcome::Done | Outcome::InvalidPlan | Outcome::Stopped | Outcome::LostPeer | Outcome::Failed => None,
    }
}

/// The first launch of the candidate that did not end well.
pub(crate) fn broken<'a>(comparison: &Comparison<'a>) -> Option<&'a LaunchStatus> {
    comparison.candidates().find(|launch| launch.outcome != Outcome::Done)
}

/// What a broken launch said, for people.
pub(crate) fn told(launch: &LaunchStatus) -> String {
    let said = if launch.message.is_empty() { "no message" } else { &launch.message };
    format!("launch {} ended with {:?}: {said}", launch.name, launch.outcome)
}

/// The candidate ran out of memory, diverged, hung, or cannot run at all.
pub(super) fn candidate(trial: &Trial<'_>) -> Option<Verdict> {
    let launch = broken(&trial.comparison)?;
    if launch.outcome == Outcome::InvalidPlan {
        return Some(Verdict::InvalidPlan { message: format!("phase {}: {}", trial.phase.name, launch.message) });
    }
    let (trigger, reason) = unsafe_outcome(launch.outcome)?;
    Some(Verdict::Fails { trigger: Some(trigger), reason, message: told(launch) })
}
