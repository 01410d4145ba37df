//! Conditions in the form that kstatus interprets.

use crate::attempt::starting_until;
use crate::draft::{Draft, MAX_MESSAGE, bounded};
use crate::observed::{AttemptState, QUEUE, WaitsFor};
use crate::reason::Reason;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use pawl_api::TrainingJobStatus;
use pawl_api::status::{AttemptStatus, PhaseState, SearchState, SearchStatus, Stage};
use pawl_contract::report::truncated;
use std::str::FromStr;

/// Label of the pods of an attempt.
const ATTEMPT: &str = "pawl.dev/attempt";

/// Type of a condition. Displayed as in the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString)]
enum ConditionType {
    Reconciling,
    Stalled,
    Complete,
    Failed,
    Suspended,
    Degraded,
    /// Absent unless it holds.
    RestartNeeded,
    /// Absent unless it holds.
    UnknownFields,
}

/// The condition `Stalled` of a job that cannot be read, instead of a decision: a shell writes it into `conditions`,
/// the list of the status, and nothing else.
///
/// ```
/// let conditions = pawl_decision::unreadable(&[], Some(2), "spec.settings.compile: \"Turbo\"", jiff::Timestamp::UNIX_EPOCH);
/// assert_eq!((conditions[0].type_.as_str(), conditions[0].status.as_str()), ("Stalled", "True"));
/// ```
pub fn unreadable(conditions: &[Condition], generation: Option<i64>, message: &str, now: Timestamp) -> Vec<Condition> {
    with_stalled(conditions, generation, state(true, Reason::Unreadable, message), now)
}

/// The same for a job about which nothing can be decided until somebody acts.
pub fn obstructed(conditions: &[Condition], generation: Option<i64>, message: &str, now: Timestamp) -> Vec<Condition> {
    with_stalled(conditions, generation, state(true, Reason::ActionRequired, message), now)
}

fn with_stalled(old: &[Condition], generation: Option<i64>, state: ConditionState, now: Timestamp) -> Vec<Condition> {
    let kind = ConditionType::Stalled;
    let others = old.iter().filter(|known| known.type_ != kind.to_string()).cloned();
    let stalled = condition((now, generation), old, kind, state);
    others.chain([stalled]).collect()
}

/// What somebody has to remove, as the condition `Stalled` of a status reports it.
pub fn obstacle(status: &TrainingJobStatus) -> Option<&str> {
    let of = ConditionType::Stalled.to_string();
    let stalled = status.conditions.iter().find(|known| known.type_ == of && known.status == "True")?;
    Reason::ActionRequired.is(&stalled.reason).then_some(stalled.message.as_str())
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
        (ConditionType::Stalled, stalled(draft)),
        (ConditionType::Complete, complete(draft)),
        (ConditionType::Failed, failed(draft)),
        (ConditionType::Suspended, suspended(draft)),
        (ConditionType::Degraded, degraded(draft)),
    ];
    let unknown = (!draft.unknown_fields.is_empty()).then(|| (ConditionType::UnknownFields, unknown_fields(draft)));
    let restart = restart_needed(draft).map(|state| (ConditionType::RestartNeeded, state));
    let about = (draft.now, draft.job.metadata.generation);
    let old = std::mem::take(&mut draft.status.conditions);
    let is_new = |kind: ConditionType| old.iter().all(|known| known.type_ != kind.to_string());
    if let Some((_, state)) = restart.as_ref().filter(|(kind, _)| is_new(*kind)) {
        draft.normal(Reason::TemplateChanged, &state.message, None);
    }
    // Those of a later version are kept.
    let later = old.iter().filter(|known| ConditionType::from_str(&known.type_).is_err());
    let ours =
        states.into_iter().chain(restart).chain(unknown).map(|(kind, state)| condition(about, &old, kind, state));
    draft.status.conditions = ours.chain(later.cloned()).collect();
}

fn condition(
    (now, observed_generation): (Timestamp, Option<i64>),
    old: &[Condition],
    kind: ConditionType,
    state: ConditionState,
) -> Condition {
    let status = if state.holds { "True" } else { "False" };
    let same = old.iter().find(|old| old.type_ == kind.to_string() && old.status == status);
    Condition {
        last_transition_time: same.map_or(Time(now), |old| old.last_transition_time.clone()),
        message: bounded(&state.message),
        observed_generation,
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
            let (reason, message) = match draft.queued_since() {
                Some(since) => (Reason::Queued, queued(draft, since)),
                None => late(draft).unwrap_or((Reason::Stage(draft.status.stage), draft.status.progress.clone())),
            };
            state(true, reason, &message)
        }
        Stage::Complete | Stage::Failed | Stage::Suspended => state(false, Reason::Stage(draft.status.stage), ""),
    }
}

/// What is wrong, and what to do about it: however long the first is, the second is not cut.
fn advised(what: &str, remedy: &str) -> String {
    let remedy = format!("; remedy: {remedy}");
    format!("{}{remedy}", truncated(what, MAX_MESSAGE.saturating_sub(remedy.len())))
}

/// What can be done about what a pending attempt waits for.
fn remedy(waits_for: WaitsFor, attempt: &str) -> String {
    match waits_for {
        WaitsFor::Containers => {
            format!(
                "kubectl describe pods -l {ATTEMPT}={attempt} shows what to correct, in spec.trainer or in the cluster"
            )
        }
        WaitsFor::Admission => {
            "correct spec.trainer, or ask the administrator of the namespace about what rejects them".to_owned()
        }
        WaitsFor::Pods => format!(
            "kubectl describe job {attempt} shows what to correct; if it shows no event, look whether the \
             kube-controller-manager runs"
        ),
        WaitsFor::Quota => "wait until others give some back, or raise the quota that the message names".to_owned(),
        WaitsFor::Devices => {
            "wait until others give some back, or add nodes; if no node of the cluster fits, correct spec.trainer"
                .to_owned()
        }
        WaitsFor::MoreDevices => {
            "free devices for its other pods: without them, it gives back those that it has after \
             lifecycle.schedulingTimeout, and tries again"
                .to_owned()
        }
    }
}

/// What the attempts wait for in their turn, in the words of the queue, the API server or the scheduler about the first
/// of them.
fn queued(draft: &Draft<'_>, since: &str) -> String {
    let names: Vec<&str> = draft.under_way().map(|attempt| attempt.name.as_str()).collect();
    let (names, first) = (names.join(", "), names.first().copied().unwrap_or_default());
    let state = draft.attempts.iter().find(|facts| facts.name == first).map(|facts| &facts.state);
    let (what, remedy) = match state {
        Some(AttemptState::Pending { message, waits_for, .. }) => {
            let what = match waits_for {
                WaitsFor::Quota => format!("waits for quota: {message}"),
                WaitsFor::Pods => "its pods are not created".to_owned(),
                WaitsFor::Containers | WaitsFor::Admission | WaitsFor::Devices | WaitsFor::MoreDevices => {
                    format!("waits for free devices: {message}")
                }
            };
            (what, remedy(*waits_for, first))
        }
        Some(AttemptState::Queued | AttemptState::Running | AttemptState::Leaving(_) | AttemptState::Ended(_))
        | None => in_queue(draft, first),
    };
    advised(&format!("{names}: since {since}: {what}"), &remedy)
}

/// What an attempt waits for whose batch Job is suspended, and what can be done about it.
fn in_queue(draft: &Draft<'_>, attempt: &str) -> (String, String) {
    let queue = draft.job.metadata.labels.as_ref().and_then(|labels| labels.get(QUEUE));
    match queue {
        Some(queue) => (
            format!("waits for its turn in the queue {queue}"),
            format!(
                "kubectl describe workloads shows for what: wait, raise the quota of its ClusterQueue, or name another \
                 queue in the label {QUEUE}"
            ),
        ),
        None => (
            "its batch Job is suspended, by a queue that the job does not name or by somebody".to_owned(),
            format!(
                "wait if kubectl describe workloads names it; else resume it: kubectl patch job {attempt} \
                 --type merge -p '{{\"spec\":{{\"suspend\":false}}}}'"
            ),
        ),
    }
}

/// Why an attempt does not start, with its reason.
fn pending(draft: &Draft<'_>, attempt: &AttemptStatus) -> Option<(Reason, String)> {
    let facts = draft.attempts.iter().find(|facts| facts.name == attempt.name)?;
    let AttemptState::Pending { message, waits_for, since } = &facts.state else { return None };
    let (name, remedy) = (&attempt.name, remedy(*waits_for, &attempt.name));
    if *waits_for == WaitsFor::Admission {
        let what = format!("the API server refuses the pods of {name}: {message}");
        return Some((Reason::PodsRefused, advised(&what, &remedy)));
    }
    if !message.is_empty() {
        return Some((Reason::GangPending, advised(&format!("{name}: {message}"), &remedy)));
    }
    // The kubelet reports a volume that it cannot mount in events only.
    let unknown = || advised(&format!("{name}: not all of its pods have started"), &remedy);
    (starting_until(attempt, *since) <= draft.now).then(|| (Reason::GangPending, unknown()))
}

/// Why the attempt is late, with its reason: it does not start, or another one failed a short time ago.
fn late(draft: &Draft<'_>) -> Option<(Reason, String)> {
    if let Some(late) = draft.under_way().find_map(|attempt| pending(draft, attempt)) {
        return Some(late);
    }
    let retry = draft.status.retry.as_ref().filter(|_| draft.under_way().next().is_none())?;
    let until = draft.backoff(&retry.task)?;
    Some((Reason::BackOff, format!("{}: again at {until}: {}", retry.task, retry.message)))
}

fn complete(draft: &Draft<'_>) -> ConditionState {
    let done = draft.status.stage == Stage::Complete;
    state(done, if done { Reason::Complete } else { Reason::NotComplete }, "")
}

/// Nothing happens until somebody acts: the job failed, or an attempt does not end.
fn stalled(draft: &Draft<'_>) -> ConditionState {
    match (&draft.status.failure, draft.obstacle) {
        (None, obstacle) if !obstacle.is_empty() => state(true, Reason::ActionRequired, obstacle),
        _ => failed(draft),
    }
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
        let found = [&training.degraded, &training.worse].into_iter().filter(|text| !text.is_empty());
        let found: Vec<&str> = found.map(String::as_str).collect();
        if !found.is_empty() {
            return state(true, Reason::TrainingDegraded, &found.join("; "));
        }
    }
    if let Some(bundle) = &status.bundle
        && (Reason::GoalMissed.is(&bundle.reason) || bundle.state == PhaseState::Error)
    {
        return state(true, &bundle.reason, &bundle.message);
    }
    let without_winner = |search: &&SearchStatus| search.state == SearchState::Done && search.winner.is_none();
    if let Some(search) = status.search.iter().find(without_winner) {
        return state(true, &search.reason, &format!("search {}: {}", search.name, search.message));
    }
    if let Some(phase) = status.phases.iter().find(|phase| phase.state == PhaseState::Error) {
        return state(true, Reason::PhaseError, &format!("phase {}: {}", phase.name, phase.message));
    }
    state(false, Reason::AsPlanned, "")
}

/// Gangs run pods from an earlier template: what was changed since takes effect with the next attempt.
fn restart_needed(draft: &Draft<'_>) -> Option<ConditionState> {
    let runs =
        |name: &str| draft.attempts.iter().any(|facts| facts.name == name && facts.state == AttemptState::Running);
    let kept = |attempt: &&AttemptStatus| attempt.stop.is_none() && draft.outdated.contains(&attempt.name);
    let names: Vec<&str> = draft.under_way().filter(kept).map(|attempt| attempt.name.as_str()).collect();
    let names: Vec<&str> = names.into_iter().filter(|name| runs(name)).collect();
    let message = format!(
        "{} runs with an earlier pod template: its changes, those of lifecycle.checkpointGrace, of the queue and of the operator's \
         defaults for pods take effect with the next attempt: kubectl pawl restart {} starts it now",
        names.join(", "),
        draft.name()
    );
    (!names.is_empty()).then(|| state(true, Reason::TemplateChanged, &message))
}

/// The job contains fields of a later version.
fn unknown_fields(draft: &Draft<'_>) -> ConditionState {
    let message = format!(
        "{}: this version of the operator ignores these fields, and keeps them: upgrade it, or remove them from the spec",
        draft.unknown_fields
    );
    state(true, Reason::UnknownFields, &message)
}
