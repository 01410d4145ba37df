//! The bundle: all accepted phases together against the baseline, and every gate.

use crate::aggregate::together;
use crate::comparison::Comparison;
use crate::draft::{Draft, bounded};
use crate::fingerprint::fingerprint;
use crate::gates::{Subject, Verdict, judge, quality, speed};
use crate::given_up::might_have_met;
use crate::goal;
use crate::launch::EvidenceTarget;
use crate::reason::Reason;
use crate::retry::summary;
use crate::revert::{Blame, least_certain, responsible, revert};
use crate::revision::{accepted, judged_fold, revision};
use crate::step::{Next, Step};
use crate::task::Task;
use pawl_api::spec::{Analysis, Gates, Phase, Scope, Trainer};
use pawl_api::status::{BundleStatus, LaunchStatus, PhaseState, PhaseStatus};
use pawl_contract::measured::Measured;
use pawl_contract::plan::LaunchKind;
use serde_json::json;

/// Hash of the settings in effect and of the bundle's input; a part of the names of its launches.
pub(crate) fn input(draft: &Draft<'_>) -> String {
    let input = draft.status.bundle.as_ref().map(|bundle| bundle.input_hash.as_str());
    fingerprint(&json!([input, draft.effective()]), 4)
}

/// The task of the settings in effect.
fn task(draft: &Draft<'_>) -> Task {
    Task::Bundle { input: input(draft) }
}

impl Draft<'_> {
    /// The evidence of the bundle.
    pub fn bundle_launches(&self) -> &[LaunchStatus] {
        self.status.bundle.as_ref().map_or(&[], |bundle| &bundle.launches)
    }
}

/// Whether the bundle must be evaluated: always, except for one phase without a gate that was accepted without a
/// confirmation, by a person or by an earlier version, whose training is not interrupted for one.
fn needed(draft: &Draft<'_>) -> bool {
    let gated = draft.spec.gates != Gates::default();
    let selected = least_certain(draft).is_some() && draft.status.training.is_none();
    let count = draft.accepted_names().len();
    count > 1 || count == 1 && (gated || selected)
}

/// Hash of all inputs of the bundle's verdict. Phases that were reverted after their own verdict are included, so that
/// such a revert does not repeat the evaluation of the bundle.
fn input_hash(draft: &Draft<'_>) -> String {
    let spec = draft.spec;
    let judged = judged_fold(spec, &draft.status, |_, phase| accepted(phase) || phase.held);
    // What was accepted is measured together whatever the budget is.
    let analysis = Analysis { budget_percent: None, ..spec.analysis.clone() };
    let gates = (&spec.gates, &spec.rollback, analysis);
    let trainer = (&spec.trainer.image, spec.trainer.replicas, spec.trainer.gpus_per_replica);
    let mut inputs = json!([spec.workload, trainer, spec.settings, spec.seeds, gates, judged]);
    // Added later: not written into what is hashed if it has its default.
    let devices = Some(&spec.trainer.gpu_resource).filter(|resource| **resource != Trainer::default().gpu_resource);
    if let Some(inputs) = inputs.as_array_mut() {
        inputs.extend(devices.map(|resource| json!({"gpuResource": resource})));
    }
    fingerprint(&inputs, 12)
}

/// Whether the bundle is being evaluated; opens its task when its input has changed.
pub(crate) fn open(draft: &mut Draft<'_>) -> bool {
    let touched = draft.status.phases.iter().any(|phase| accepted(phase) || phase.held);
    if !touched {
        draft.status.bundle = None;
        return false;
    }
    let hash = input_hash(draft);
    let known = draft.status.bundle.as_ref().is_some_and(|bundle| bundle.input_hash == hash);
    if known {
        follow(draft);
    }
    if !known && !needed(draft) {
        draft.status.bundle = None;
        return false;
    }
    if !known {
        let state = PhaseState::Measuring;
        let launches = own_evidence(draft);
        draft.status.bundle = Some(BundleStatus { input_hash: hash, state, launches, ..BundleStatus::default() });
    }
    draft.status.bundle.as_ref().is_some_and(|bundle| !bundle.state.is_final())
}

/// Whether the bundle's measurements are about the settings in effect.
pub(crate) fn is_current(draft: &Draft<'_>, bundle: &BundleStatus) -> bool {
    bundle.revision.is_empty() || bundle.revision == revision(&draft.effective())
}

/// Discards the figures of an accepted bundle when other settings are in effect since, as after a rollback in training,
/// and takes them up again when the measured ones are.
fn follow(draft: &mut Draft<'_>) {
    let Some(bundle) = draft.status.bundle.as_ref() else { return };
    let current = is_current(draft, bundle);
    let (retires, returns) = (bundle.state == PhaseState::Accepted && !current, bundle.outdated && current);
    let name = |(phase, status): (&Phase, &PhaseStatus)| {
        let changed = status.training_fallback.is_some() || status.held && !accepted(status);
        changed.then(|| phase.name.clone())
    };
    let changed: Vec<String> = draft.spec.phases.iter().zip(&draft.status.phases).filter_map(name).collect();
    let nothing = draft.accepted_names().is_empty();
    let Some(bundle) = draft.status.bundle.as_mut().filter(|bundle| returns || retires && !bundle.outdated) else {
        return;
    };
    (bundle.outdated, bundle.speedup, bundle.quality) = (retires, None, None);
    bundle.measured = Measured::default();
    bundle.state = if returns { PhaseState::Measuring } else { bundle.state };
    if retires {
        let goal = if Reason::GoalMissed.is(&bundle.reason) { Reason::GoalMissed } else { Reason::NotMeasured };
        bundle.reason = goal.to_string();
        let before = std::mem::take(&mut bundle.message);
        let what = if nothing { "every phase was reverted" } else { "these settings were not measured together" };
        let changed = changed.join(", ");
        bundle.message = bounded(&format!("{what}, since {changed} changed; before, {before}"));
        bundle.state = if nothing { PhaseState::RolledBack } else { bundle.state };
    }
}

/// Existing evidence about the bundle: the quality launches of the last accepted phase used the settings in effect and
/// are compared with the baseline. Speed is measured again: the pairs of a phase have selected it.
fn own_evidence(draft: &Draft<'_>) -> Vec<LaunchStatus> {
    let phases = draft.status.phases.iter().filter(|phase| accepted(phase));
    let launches: Vec<LaunchStatus> = phases.flat_map(|phase| phase.launches.clone()).collect();
    let settings = (draft.spec.settings.clone(), draft.effective());
    let comparison = Comparison::new(draft, (task(draft), EvidenceTarget::Bundle), settings, &launches);
    let complete = |launch: &LaunchStatus| quality::is_complete(draft.spec, launch);
    let fits =
        |launch: &&LaunchStatus| launch.kind == LaunchKind::Quality && comparison.includes(launch) && complete(launch);
    launches.iter().filter(fits).cloned().collect()
}

/// Evaluates the bundle.
pub(crate) fn advance(draft: &mut Draft<'_>) -> Step {
    if !open(draft) {
        return Step::Pass;
    }
    if draft.accepted_names().is_empty() {
        return conclude(draft, PhaseState::RolledBack, Reason::NothingAccepted, "every phase was reverted");
    }
    let evidence = draft.bundle_launches().to_vec();
    let settings = (draft.spec.settings.clone(), draft.effective());
    let comparison = Comparison::new(draft, (task(draft), EvidenceTarget::Bundle), settings, &evidence);
    let subject = Subject { comparison, phase: None };
    let verdict = judge(&subject);
    let speedup = speed::reached(&subject).as_ref().and_then(speed::status);
    let quality = quality::status(&subject.comparison);
    let measured = together(subject.comparison.candidates());
    let spent = draft.exhausted(&subject.comparison.task.to_string());
    let remedy = if let Verdict::Fails { reason, .. } = &verdict { might_have_met(&subject, *reason) } else { None };
    let measured_revision = revision(&draft.effective());
    if let Some(bundle) = &mut draft.status.bundle {
        bundle.revision = measured_revision;
        bundle.outdated = false;
        bundle.speedup = speedup;
        bundle.quality = quality;
        bundle.measured = measured;
    }
    let prefixed = |message: &str| format!("all accepted phases together: {message}");
    match verdict {
        Verdict::Run(work) => match spent {
            None => Step::Go(Next::Run(work.bounded())),
            Some(retry) if draft.is_crashing(&retry.task) => {
                broken(draft, Reason::Crashed, &summary(&retry, draft.spec.lifecycle.max_restarts))
            }
            Some(retry) => {
                let message = format!("{} failures; the last: {}", retry.count, retry.message);
                conclude(draft, PhaseState::Error, Reason::RetriesExhausted, &message)
            }
        },
        Verdict::Broken { reason, message, .. } => broken(draft, reason, &message),
        Verdict::InvalidPlan { message } => {
            draft.fail(Reason::InvalidPlan, &message);
            Step::Moved
        }
        Verdict::Error { reason, message } => conclude(draft, PhaseState::Error, reason, &prefixed(&message)),
        Verdict::Holds { message, .. } => conclude(draft, PhaseState::Accepted, Reason::GoalMet, &prefixed(&message)),
        Verdict::Fails { reason: Reason::NotConfirmed, message, .. } => {
            unconfirmed(draft, PhaseState::RolledBack, &prefixed(&message))
        }
        Verdict::Inconclusive { reason: Reason::NotConfirmed, message } => {
            unconfirmed(draft, PhaseState::Inconclusive, &prefixed(&message))
        }
        Verdict::Fails { message, .. } => {
            let remedy = remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
            missed(draft, &prefixed(&format!("{message}{remedy}")))
        }
        Verdict::Inconclusive { reason, message } | Verdict::Unsupported { reason, message } => {
            missed(draft, &prefixed(&format!("{reason}: {message}")))
        }
    }
}

fn missed(draft: &mut Draft<'_>, message: &str) -> Step {
    let state = goal::missed(draft, message);
    conclude(draft, state, Reason::GoalMissed, message)
}

/// The accepted phases are not shown to be faster than the baseline together: reverts the least certain one, which ends
/// in `state`, and evaluates the remaining ones.
fn unconfirmed(draft: &mut Draft<'_>, state: PhaseState, message: &str) -> Step {
    let Some(index) = least_certain(draft) else { return missed(draft, message) };
    if draft.draining() {
        // Evidence that was already there decides while a training runs, perhaps with this phase: it ends first, so
        // that nothing that runs contains a phase whose state is final.
        return Step::Go(Next::Drain);
    }
    revert(draft, index, Scope::Phase, Reason::NotConfirmed, message);
    draft.status.phases[index].state = state;
    if let Some(bundle) = &mut draft.status.bundle {
        bundle.launches.clear();
    }
    Step::Moved
}

/// The settings in effect failed: reverts the newest phase, and evaluates the remaining ones again.
pub(crate) fn broken(draft: &mut Draft<'_>, reason: Reason, message: &str) -> Step {
    match responsible(draft, Blame::Newest) {
        Some(index) => {
            revert(draft, index, Scope::Phase, reason, message);
            if let Some(bundle) = &mut draft.status.bundle {
                bundle.launches.clear();
            }
            Step::Moved
        }
        None => conclude(draft, PhaseState::Error, Reason::BundleFailed, message),
    }
}

/// Sets the bundle's final state.
pub(crate) fn conclude(draft: &mut Draft<'_>, state: PhaseState, reason: Reason, message: &str) -> Step {
    if let Some(bundle) = &mut draft.status.bundle {
        bundle.state = state;
        bundle.reason = reason.to_string();
        bundle.message = bounded(message);
    }
    if state == PhaseState::Accepted && reason != Reason::GoalMissed {
        draft.normal(reason, message, None);
    } else {
        draft.warning(reason, message, None);
    }
    Step::Moved
}
