//! Conditions, as kstatus reads them.

use crate::draft::{Draft, bounded};
use crate::reason::Reason;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use pawl_api::status::{PhaseState, Stage};

/// The conditions of a job. Displayed as their types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
enum Kind {
    Reconciling,
    Stalled,
    Complete,
    Failed,
    Suspended,
    Degraded,
}

struct State {
    holds: bool,
    reason: String,
    message: String,
}

/// Sets every condition; the time of one changes only when its status does.
pub(crate) fn set(draft: &mut Draft<'_>) {
    let states = [
        (Kind::Reconciling, reconciling(draft)),
        (Kind::Stalled, failed(draft)),
        (Kind::Complete, complete(draft)),
        (Kind::Failed, failed(draft)),
        (Kind::Suspended, suspended(draft)),
        (Kind::Degraded, degraded(draft)),
    ];
    let old = std::mem::take(&mut draft.status.conditions);
    draft.status.conditions = states.into_iter().map(|(kind, state)| condition(draft, &old, kind, state)).collect();
}

fn condition(draft: &Draft<'_>, old: &[Condition], kind: Kind, state: State) -> Condition {
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

fn state(holds: bool, reason: impl ToString, message: &str) -> State {
    State { holds, reason: reason.to_string(), message: message.to_owned() }
}

fn reconciling(draft: &Draft<'_>) -> State {
    match draft.status.stage {
        Stage::Pending | Stage::Preflight | Stage::Optimizing | Stage::Searching | Stage::Training => {
            let attempt = draft.status.attempt.as_ref();
            match attempt.and_then(|attempt| Some((&attempt.name, attempt.queued_since.as_deref()?))) {
                Some((name, since)) => state(true, Reason::Queued, &format!("{name} waits in its queue since {since}")),
                None => state(true, Reason::Stage(draft.status.stage), &draft.status.progress),
            }
        }
        Stage::Complete | Stage::Failed | Stage::Suspended => state(false, Reason::Stage(draft.status.stage), ""),
    }
}

fn complete(draft: &Draft<'_>) -> State {
    let done = draft.status.stage == Stage::Complete;
    state(done, if done { Reason::Complete } else { Reason::NotComplete }, "")
}

fn failed(draft: &Draft<'_>) -> State {
    match &draft.status.failure {
        Some(failure) => state(true, &failure.reason, &failure.message),
        None => state(false, Reason::NoFailure, ""),
    }
}

fn suspended(draft: &Draft<'_>) -> State {
    let suspended = draft.status.stage == Stage::Suspended;
    match (suspended, draft.spec.suspend) {
        (true, true) => state(true, Reason::SpecSuspend, "spec.suspend is true: set it to false to go on"),
        (true, false) => {
            let missed = draft.status.bundle.as_ref().map(|bundle| bundle.message.as_str()).unwrap_or_default();
            state(true, Reason::GoalMissed, &format!("{missed}: change the spec to go on"))
        }
        (false, _) => state(false, Reason::NotSuspended, ""),
    }
}

fn degraded(draft: &Draft<'_>) -> State {
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
