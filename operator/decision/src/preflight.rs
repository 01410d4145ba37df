//! The preflight stage: checks the baseline and every phase with each of its fallbacks before any device time is used.

use crate::draft::{Draft, bounded};
use crate::fallback;
use crate::launch::{EvidenceTarget, Launch, Work, check_tag};
use crate::problems;
use crate::reason::Reason;
use crate::revision::standalone;
use crate::step::{Next, Step};
use crate::task::Task;
use crate::train::policy;
use pawl_api::spec::{Pin, Trigger};
use pawl_api::status::{Arm, BaselineStatus, InvalidSettings, PhaseState, Purpose, RetryStatus};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Measured;
use pawl_contract::plan::LaunchKind;
use pawl_contract::report::{LaunchResult, truncated};

/// Number of invalid settings after which the remaining ones are not checked.
const MAX_INVALID: usize = 24;
/// Maximum length of the message of invalid settings, bytes.
const MAX_INVALID_MESSAGE: usize = 200;

/// Checks the unchecked settings; after all checks, fails with all problems if any settings are invalid.
pub(crate) fn advance(draft: &mut Draft<'_>) -> Step {
    let task = Task::Preflight.to_string();
    if let Some(retry) = draft.exhausted(&task) {
        if draft.is_crashing(&task) {
            draft.status.retry = None;
            crashed(draft, retry);
        } else if retry.control_outcome == Some(Outcome::CheckpointUnreadable) {
            let again = "set spec.suspend to true and back to false to check again";
            draft.fail(Reason::StorageUnusable, &format!("{}; {again}", retry.message));
        } else {
            draft.fail(Reason::RetriesExhausted, &format!("preflight: {}", retry.message));
        }
        return Step::Moved;
    }
    problems::retain_current(draft);
    let mut launches: Vec<Launch> = baseline(draft).into_iter().collect();
    for index in 0..draft.spec.phases.len() {
        launches.extend(phase(draft, index));
    }
    let found = problems::found(draft);
    if !found.is_empty() && (launches.is_empty() || found.len() >= MAX_INVALID) {
        draft.fail(Reason::InvalidPlan, &problems::listed(&found));
        return Step::Moved;
    }
    if launches.is_empty() {
        return Step::Pass;
    }
    let work = Work {
        purpose: Purpose::Preflight,
        phase: None,
        task: Task::Preflight.to_string(),
        launches,
        stop_on_failure: false,
    };
    Step::Go(Next::Run(work.bounded()))
}

/// The check of a phase has failed by itself more than once, while that of the baseline has not. What is counted
/// against the checks was counted against this one.
fn crashed(draft: &mut Draft<'_>, retry: RetryStatus) {
    let Some(own) = retry.own_failure else { return };
    for index in 0..draft.spec.phases.len() {
        let failed = phase(draft, index).into_iter().find(|launch| launch.plan.launch == own.launch);
        let Some(EvidenceTarget::PreflightPhase { fallback, .. }) = failed.as_ref().map(|launch| launch.target) else {
            continue;
        };
        let tag = check_tag(draft.spec, &standalone(draft.spec, index, fallback));
        if mark_checked(draft, index, fallback, tag) {
            begin_anew(draft, index);
            draft.phase_to(index, PhaseState::RolledBack, Reason::Crashed, &retry.message);
        }
        return;
    }
}

fn baseline(draft: &mut Draft<'_>) -> Option<Launch> {
    let tag = check_tag(draft.spec, &draft.spec.settings);
    if draft.status.baseline.as_ref().is_some_and(|baseline| baseline.input_hash == tag) || is_invalid(draft, &tag) {
        return None;
    }
    let target = (EvidenceTarget::PreflightBaseline, Arm::Control, 0);
    let mut launch = draft.launch("baseline-check", LaunchKind::Preflight, &draft.spec.settings, target);
    // Where the training will write checkpoints is checked before a device is held.
    launch.plan.checkpoint = draft.spec.train.is_asked_for().then(|| policy(draft));
    Some(launch)
}

fn phase(draft: &Draft<'_>, index: usize) -> Vec<Launch> {
    let phase = &draft.spec.phases[index];
    if phase.pin == Some(Pin::RolledBack) {
        return Vec::new();
    }
    let checked = &draft.status.phases[index].checked;
    let fallbacks =
        (0..=phase.fallbacks.len() as u32).map(|fallback| (fallback, standalone(draft.spec, index, fallback)));
    let open = fallbacks.filter(|(_, settings)| {
        let tag = check_tag(draft.spec, settings);
        !checked.contains(&tag) && !is_invalid(draft, &tag)
    });
    open.map(|(fallback, settings)| {
        let target = (EvidenceTarget::PreflightPhase { phase: index, fallback }, Arm::Candidate, 0);
        draft.launch(&format!("{}-r{fallback}-check", phase.name), LaunchKind::Preflight, &settings, target)
    })
    .collect()
}

fn is_invalid(draft: &Draft<'_>, tag: &str) -> bool {
    draft.status.invalid.iter().any(|invalid| invalid.input_hash == tag)
}

/// Records that these settings are invalid. The job fails after all checks, when all problems are known.
fn record_invalid(draft: &mut Draft<'_>, launch: &Launch, tag: String, result: &LaunchResult) {
    let phase = match launch.target {
        EvidenceTarget::PreflightPhase { phase, .. } => draft.spec.phases.get(phase).map(|phase| phase.name.as_str()),
        EvidenceTarget::PreflightBaseline
        | EvidenceTarget::Phase(_)
        | EvidenceTarget::Baseline
        | EvidenceTarget::Bundle
        | EvidenceTarget::Search { .. }
        | EvidenceTarget::Slowdown
        | EvidenceTarget::Train => None,
    };
    draft.warning(Reason::InvalidPlan, format!("{}: {}", launch.plan.display_title(), result.message), phase);
    let message = truncated(&bounded(&result.message), MAX_INVALID_MESSAGE).to_owned();
    draft.status.invalid.push(InvalidSettings { input_hash: tag, message });
}

/// Records the result of a check.
pub(crate) fn record(draft: &mut Draft<'_>, launch: &Launch, result: &LaunchResult) {
    let tag = check_tag(draft.spec, &launch.plan.settings);
    match launch.target {
        _ if result.outcome == Outcome::InvalidPlan => record_invalid(draft, launch, tag, result),
        EvidenceTarget::PreflightBaseline => record_baseline(draft, tag, result),
        EvidenceTarget::PreflightPhase { phase, fallback } => record_phase(draft, phase, fallback, tag, result),
        EvidenceTarget::Phase(_)
        | EvidenceTarget::Baseline
        | EvidenceTarget::Bundle
        | EvidenceTarget::Search { .. }
        | EvidenceTarget::Slowdown
        | EvidenceTarget::Train => {}
    }
}

fn record_baseline(draft: &mut Draft<'_>, tag: String, result: &LaunchResult) {
    if result.outcome != Outcome::Done {
        draft.fail(Reason::Baseline(result.outcome), &format!("the baseline cannot run: {}", result.message));
        return;
    }
    let predicted_memory_bytes = result.measured.predicted_memory_bytes;
    let measured = Measured { predicted_memory_bytes, ..Measured::default() };
    let items_per_epoch = result.items_per_epoch;
    draft.status.baseline =
        Some(BaselineStatus { input_hash: tag, measured, items_per_epoch, ..BaselineStatus::default() });
}

fn record_phase(draft: &mut Draft<'_>, index: usize, fallback: u32, tag: String, result: &LaunchResult) {
    if !mark_checked(draft, index, fallback, tag) {
        return;
    }
    draft.status.phases[index].measured.predicted_memory_bytes = result.measured.predicted_memory_bytes;
    if result.outcome == Outcome::Unsupported {
        begin_anew(draft, index);
        let reason = Reason::Outcome(result.outcome);
        if !fallback::take(draft, index, Trigger::Unsupported, reason, &result.message) {
            draft.phase_to(index, PhaseState::Unsupported, reason, &result.message);
        }
    }
}

/// Discards what is known of a phase whose check has failed.
fn begin_anew(draft: &mut Draft<'_>, index: usize) {
    let phase = &mut draft.status.phases[index];
    phase.input_hash.clear();
    phase.fallback = 0;
    phase.launches.clear();
}

/// Records that a fallback of a phase is checked. Returns whether a failure of the check is one of the phase: fallbacks
/// are judged when they are taken.
fn mark_checked(draft: &mut Draft<'_>, index: usize, fallback: u32, tag: String) -> bool {
    let spec = &draft.spec.phases[index];
    let phase = &mut draft.status.phases[index];
    let tags = |number| check_tag(draft.spec, &standalone(draft.spec, index, number));
    let known: Vec<_> = (0..=spec.fallbacks.len() as u32).map(tags).collect();
    phase.checked.retain(|old| known.contains(old));
    phase.checked.push(tag);
    fallback == 0 && spec.pin != Some(Pin::Accepted)
}
