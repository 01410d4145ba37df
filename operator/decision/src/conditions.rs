//! Conditions in the form that kstatus interprets.

use crate::draft::{Draft, bounded};
use crate::reason::Reason;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use pawl_api::status::{PhaseState, Stage};

/// Type of a condition. Displayed as in the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
enum ConditionType {
    Reconciling,
    Stalled,
    Complete,
    Failed,
    Suspended,
    Degraded,
}

struct ConditionState {
    holds: bool,
    reason: String,
    message: String,
}

/// Sets every condition; `lastTransitionTime` changes only with the status of the condition.
pub(crate) fn set(draft: &mut Draft<'_>) {
    let states = [
        (ConditionType::Reconciling, reconciling(draft)),
        (ConditionType::Stalled, failed(draft)),
        (ConditionType::Complete, complete(draft)),
        (ConditionType::Failed, failed(draft)),
        (ConditionType::Suspended, suspended(draft)),
        (ConditionType::Degraded, degraded(draft)),
    ];
    let old = std::mem::take(&mut draft.status.conditions);
    draft.status.conditions = states.into_iter().map(|(kind, state)| condition(draft, &old, kind, state)).collect();
}

fn condition(draft: &Draft<'_>, old: &[Condition], kind: ConditionType, state: ConditionState) -> Condition {
    let status = if state.holds { "True" } else { "False" };
    let same = old.iter().find(|old| old.type_ == kind.to_string() && old.status == status);
    Condition {
        last_transition_time: same.map_or(Time(draft.now), |old| old.last_transition_time.clone()),
        message: bounded(&state.message),
        observed_generation: draft.job.metadata.generation,
        reason: state.reason,
        status: status.to_owned(),
        type_: kind.to_string(),
    }
}

fn state(holds: bool, reason: impl ToString, message: &str) -> ConditionState {
    ConditionState { holds, reason: reason.to_string(), message: message.to_owned() }
}

fn reconciling(draft: &Draft<'_>) -> ConditionState {
    match draft.status.stage {
        Stage::Pending | Stage::Preflight | Stage::Optimizing | Stage::Searching | Stage::Training => {
            let attempt = draft.status.attempt.as_ref();
            match attempt.and_then(|attempt| Some((&attempt.name, attempt.queued_since.as_deref()?))) {
                Some((name, since)) => {
                    state(true, Reason::Queued, &format!("{name} has been waiting in its queue since {since}"))
                }
                None => state(true, Reason::Stage(draft.status.stage), &draft.status.progress),
            }
        }
        Stage::Complete | Stage::Failed | Stage::Suspended => state(false, Reason::Stage(draft.status.stage), ""),
    }
}

fn complete(draft: &Draft<'_>) -> ConditionState {
    let done = draft.status.stage == Stage::Complete;
    state(done, if done { Reason::Complete } else { Reason::NotComplete }, "")
}

fn failed(draft: &Draft<'_>) -> ConditionState {
    match &draft.status.failure {
        Some(failure) => state(true, &failure.reason, &failure.message),
        None => state(false, Reason::NoFailure, ""),
    }
}

fn suspended(draft: &Draft<'_>) -> ConditionState {
    let suspended = draft.status.stage == Stage::Suspended;
    match (suspended, draft.spec.suspend) {
        (true, true) => state(true, Reason::SpecSuspend, "spec.suspend is true: set it to false to resume"),
        (true, false) => {
            let missed = draft.status.bundle.as_ref().map(|bundle| bundle.message.as_str()).unwrap_or_default();
            state(true, Reason::GoalMissed, &format!("{missed}: change the spec to resume"))
        }
        (false, _) => state(false, Reason::NotSuspended, ""),
    }
}

fn degraded(draft: &Draft<'_>) -> ConditionState {
    let status = &draft.status;
    if let Some(training) = &status.training {
        if !training.straggler.is_empty() {
            return state(true, Reason::Straggler, &training.straggler);
        }
        if !training.degraded.is_empty() {
            return state(true, Reason::TrainingDegraded, &training.degraded);
        }
    }
    if let Some(bundle) = &status.bundle
        && (Reason::GoalMissed.is(&bundle.reason) || bundle.state == PhaseState::Error)
    {
        return state(true, &bundle.reason, &bundle.message);
    }
    if let Some(phase) = status.phases.iter().find(|phase| phase.state == PhaseState::Error) {
        return state(true, Reason::PhaseError, &format!("phase {}: {}", phase.name, phase.message));
    }
    state(false, Reason::AsPlanned, "")
}
