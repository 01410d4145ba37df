//! The evaluation of one phase: skips it, re-opens it, or advances it.

use crate::aggregate::together;
use crate::budget::{Refusal, refusal};
use crate::comparison::Comparison;
use crate::draft::Draft;
use crate::fallback;
use crate::fingerprint::fingerprint;
use crate::gates::{Subject, Verdict, escalation, judge, quality, speed};
use crate::launch::{EvidenceTarget, Work};
use crate::reason::Reason;
use crate::revision::{accepted, patch};
use crate::step::{Next, Step};
use crate::task::Task;
use pawl_api::spec::{Analysis, Gates, Phase, Pin, Role, Trigger};
use pawl_api::status::{Arm, LaunchStatus, PhaseState, PhaseStatus};
use pawl_contract::decimal::Decimal;
use pawl_contract::effect::{NoEffect, no_effect};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Measured;
use pawl_contract::plan::LaunchKind;
use pawl_contract::settings::{Float8Gradients, Float8Scaling, Settings};
use serde_json::{Value, json};

/// Advances the first phase that is not final.
pub(crate) fn advance(draft: &mut Draft<'_>) -> Step {
    for index in 0..draft.spec.phases.len() {
        match advance_one(draft, index) {
            Step::Pass => {}
            step @ (Step::Moved | Step::Go(_)) => return step,
        }
    }
    Step::Pass
}

/// Hash of all inputs of the phase's verdict: what [`crate::gates::judge`] reads for it, and what its launches ran.
fn input_hash(draft: &Draft<'_>, index: usize) -> String {
    let spec = draft.spec;
    let phase = &spec.phases[index];
    let changed = draft.is_judged_as_changed(index);
    let trainer =
        (&spec.trainer.image, spec.trainer.replicas, spec.trainer.gpus_per_replica, &spec.trainer.gpu_resource);
    let (measuring, others) = of_analysis(&spec.analysis, changed);
    let (gates, quality) = of_gates(&spec.gates, changed);
    let declared = (phase.numerics, phase.role, phase.min_speedup(), &phase.requires, &phase.conflicts_with);
    let patches = (&phase.settings, &phase.fallbacks);
    let control = draft.judged_control(index);
    let mut inputs = json!([spec.workload, trainer, spec.seeds, measuring, gates, quality, declared, patches, control]);
    if let Some(inputs) = inputs.as_array_mut() {
        inputs.extend(others);
        // An accepted phase stays so under a smaller budget. One that was given up is taken up when what it was given
        // up for changes.
        if Reason::gives_up(&draft.status.phases[index].reason) {
            let training = (spec.train.items, spec.train.epochs);
            inputs.push(json!([spec.analysis.budget(), training, phase.expected_speedup]));
        }
    }
    fingerprint(&inputs, 12)
}

/// What the verdict on a phase reads of the analysis, and of fields that were added later those that have not their
/// default. Destructured without `..`: whether a new field is an input is decided here.
fn of_analysis(analysis: &Analysis, changed: bool) -> (Value, Vec<Value>) {
    let Analysis {
        warmup_steps,
        window_steps,
        max_window_seconds,
        min_pairs,
        max_pairs,
        alpha_percent,
        on_inconclusive,
        quality_items,
        quality_epochs,
        quality_looks,
        // Whether more is measured, not what that shows: an input of those that were given up for it.
        budget_percent: _,
        // Which launches are evidence, not what is required of them.
        reuse_control: _,
    } = analysis;
    let measuring = json!([
        (warmup_steps, window_steps, min_pairs, max_pairs),
        (alpha_percent, on_inconclusive),
        changed.then_some((quality_items, quality_epochs)),
    ]);
    let looks = Some(*quality_looks).filter(|looks| changed && *looks > 1).map(Value::from);
    let limit = Some(*max_window_seconds).filter(|seconds| *seconds != Analysis::DEFAULT_MAX_WINDOW_SECONDS);
    let limit = limit.map(|seconds| json!({"maxWindowSeconds": seconds}));
    (measuring, looks.into_iter().chain(limit).collect())
}

/// The gates that the chain of a phase reads: those of every phase, and those of a phase with changed numerics.
/// Destructured without `..`: whether a new gate is one of these is decided here. One that is added is written only if
/// it is set.
fn of_gates(gates: &Gates, changed: bool) -> (Value, Value) {
    let Gates {
        validation_loss_delta,
        validation_loss_within,
        training_loss_within,
        validation_metrics,
        gpu_memory,
        gpu_memory_increase,
        max_offload_overhead,
        // Of all accepted phases together, of the training, and of the dry run of a search.
        overall_speedup: _,
        min_gpu_utilization: _,
        min_items_per_second: _,
        max_epoch_seconds: _,
    } = gates;
    let quality = (validation_loss_delta, validation_loss_within, training_loss_within, validation_metrics);
    (json!([gpu_memory, gpu_memory_increase, max_offload_overhead]), json!(changed.then_some(quality)))
}

fn advance_one(draft: &mut Draft<'_>, index: usize) -> Step {
    let phase = &draft.spec.phases[index];
    if matches!(phase.pin, Some(Pin::Accepted | Pin::RolledBack)) {
        return Step::Pass;
    }
    let hash = input_hash(draft, index);
    let status = &mut draft.status.phases[index];
    if status.input_hash.is_empty() {
        status.input_hash = hash;
    } else if status.input_hash != hash {
        let message = "an input of its verdict has changed: it is evaluated again";
        reopen(draft, index, Reason::Superseded, message);
        // Without what its last evaluation has shown.
        draft.status.phases[index].input_hash = input_hash(draft, index);
        return Step::Moved;
    }
    match skip_reason(draft, index).or_else(|| without_effect(draft, index)) {
        Some((reason, message)) => {
            let state = draft.status.phases[index].state;
            if state == PhaseState::Accepted || !state.is_final() {
                draft.phase_to(index, PhaseState::Skipped, reason, &message);
                return Step::Moved;
            }
        }
        None if draft.status.phases[index].state == PhaseState::Skipped => {
            reopen(draft, index, Reason::Reopened, "the cause of skipping it no longer applies");
            return Step::Moved;
        }
        None => {}
    }
    match draft.status.phases[index].state {
        PhaseState::Accepted
        | PhaseState::RolledBack
        | PhaseState::Unsupported
        | PhaseState::Skipped
        | PhaseState::Inconclusive
        | PhaseState::Error => Step::Pass,
        PhaseState::RollingBack | PhaseState::Retrying if draft.draining() => Step::Go(Next::Drain),
        PhaseState::RollingBack => {
            // Its event was emitted at the start of the rollback.
            draft.status.phases[index].state = PhaseState::RolledBack;
            Step::Moved
        }
        PhaseState::Pending => {
            begin(draft, index);
            Step::Moved
        }
        PhaseState::Retrying => {
            judge_as_changed(draft, index, String::new());
            draft.status.phases[index].state = PhaseState::Preflight;
            Step::Moved
        }
        PhaseState::Preflight | PhaseState::Measuring => judged(draft, index),
    }
}

/// Re-opens a phase. Completed launches are kept as evidence, which is used again if the settings are equal.
pub(crate) fn reopen(draft: &mut Draft<'_>, index: usize, reason: Reason, message: &str) {
    reset_retries(draft, index);
    let old = &mut draft.status.phases[index];
    let launches = std::mem::take(&mut old.launches).into_iter().filter(|launch| launch.outcome == Outcome::Done);
    *old = PhaseStatus {
        name: std::mem::take(&mut old.name),
        checked: std::mem::take(&mut old.checked),
        launches: launches.collect(),
        ..PhaseStatus::default()
    };
    draft.phase_to(index, PhaseState::Pending, reason, message);
}

/// Resets the count of infrastructure failures of the phase's tasks.
fn reset_retries(draft: &mut Draft<'_>, index: usize) {
    let phase = &draft.status.phases[index];
    let fallbacks = 0..=draft.spec.phases[index].fallbacks.len() as u32;
    let tasks: Vec<_> = fallbacks.map(|fallback| Task::of_phase(phase, fallback).to_string()).collect();
    draft.status.retry.take_if(|retry| tasks.contains(&retry.task));
}

/// Why the phase is skipped: a required phase is not accepted, or a conflicting one is.
fn skip_reason(draft: &Draft<'_>, index: usize) -> Option<(Reason, String)> {
    let phase = &draft.spec.phases[index];
    let earlier = || draft.spec.phases[..index].iter().zip(&draft.status.phases);
    let is_accepted = |name: &String| earlier().any(|(_, status)| status.name == *name && accepted(status));
    if let Some(missing) = phase.requires.iter().find(|name| !is_accepted(name)) {
        return Some((Reason::RequirementNotAccepted, format!("it requires {missing}, which is not accepted")));
    }
    let all = draft.spec.phases.iter().zip(&draft.status.phases).enumerate();
    let in_effect = all.filter(|(i, (other, status))| {
        *i != index && accepted(status) && (*i < index || other.pin == Some(Pin::Accepted))
    });
    let (_, (conflict, _)) = in_effect.into_iter().find(|(_, (other, _))| are_in_conflict(phase, other))?;
    Some((Reason::Conflict, format!("it conflicts with {}, which is accepted", conflict.name)))
}

/// Why a phase that is not judged yet is not measured: its settings cannot have an effect on top of those accepted so
/// far. An Enabler may have its effect only with the phases that require it.
fn without_effect(draft: &Draft<'_>, index: usize) -> Option<(Reason, String)> {
    let (phase, status) = (&draft.spec.phases[index], &draft.status.phases[index]);
    if phase.role == Role::Enabler || status.state.is_final() && status.state != PhaseState::Skipped {
        return None;
    }
    let why = no_effect(&draft.control(index), &patch(phase, status.fallback), draft.spec.effect_trainer())?;
    let advice = match why {
        NoEffect::Unchanged => "",
        NoEffect::Without(_) => ", in this phase or an earlier one",
    };
    let message = match status.fallback {
        0 => format!("{why}{advice}"),
        // Why the phase itself was given up is more than that its fallback is nothing.
        fallback => format!("fallback {fallback}: {why}{advice}; before: {}", status.message),
    };
    Some((Reason::NoEffect, message))
}

/// The comparison of a phase with the settings accepted before it.
fn comparison<'a>(draft: &'a Draft<'a>, index: usize) -> Comparison<'a> {
    let status = &draft.status.phases[index];
    let control = draft.control(index);
    let candidate = control.with(&patch(&draft.spec.phases[index], status.fallback));
    let name = (Task::of_phase(status, status.fallback), EvidenceTarget::Phase(index));
    Comparison::new(draft, name, (control, candidate), &status.launches)
}

/// The phases that will be measured after this one, each with the settings accepted so far. Without those that conflict
/// with it: which of them is tried first is for the manifest to say.
fn later<'a>(draft: &'a Draft<'a>, index: usize) -> impl Iterator<Item = Subject<'a>> {
    let (phases, statuses) = (&draft.spec.phases, &draft.status.phases);
    let open = move |later: &usize| {
        let later = *later;
        phases[later].pin.is_none()
            && !statuses[later].state.is_final()
            && !are_in_conflict(&phases[index], &phases[later])
            && skip_reason(draft, later).is_none()
            && without_effect(draft, later).is_none()
    };
    (index + 1..phases.len()).filter(open).map(move |later| subject(draft, later))
}

fn are_in_conflict(one: &Phase, other: &Phase) -> bool {
    one.conflicts_with.contains(&other.name) || other.conflicts_with.contains(&one.name)
}

fn subject<'a>(draft: &'a Draft<'a>, index: usize) -> Subject<'a> {
    Subject { phase: Some(&draft.spec.phases[index]), comparison: comparison(draft, index) }
}

/// Opens the task: keeps the launches with equal settings. A control counts only beside its candidate: one that ran at
/// another time differs by the drift since then, which no check by a few launches can see as well as the test of the
/// speed does.
fn begin(draft: &mut Draft<'_>, index: usize) {
    let comparison = comparison(draft, index);
    let fits = |launch: &&LaunchStatus| comparison.includes(launch);
    let paired = |launch: &&LaunchStatus| {
        launch.kind != LaunchKind::Measure
            || launch.arm == Arm::Candidate
            || comparison.find(LaunchKind::Measure, Arm::Candidate, launch.pair).is_some()
    };
    // The first launch of its tag counts: one that lacks what a new gate requires would hide that which replaces it.
    let complete =
        |launch: &&LaunchStatus| launch.kind != LaunchKind::Quality || quality::is_complete(draft.spec, launch);
    let kept = comparison.evidence.iter().filter(fits).filter(paired).filter(complete);
    let launches: Vec<LaunchStatus> = kept.cloned().collect();
    draft.status.phases[index].launches = launches;
    draft.phase_to(index, PhaseState::Preflight, Reason::MeasurementStarted, "preflight check, then measurement");
}

/// Computes the verdict on the phase and applies it.
fn judged(draft: &mut Draft<'_>, index: usize) -> Step {
    let subject = subject(draft, index);
    let verdict = judge(&subject);
    let escalated = escalation(&subject).unwrap_or_default();
    if escalated != draft.status.phases[index].judged_as_changed {
        if !escalated.is_empty() {
            let name = draft.spec.phases[index].name.clone();
            let text = format!("phase {name}: judged as numerics: Changed, because {escalated}");
            draft.normal(Reason::NumericsUnclear, text, Some(&name));
        }
        judge_as_changed(draft, index, escalated);
        return Step::Moved;
    }
    let comparison = &subject.comparison;
    let speedup = speed::reached(&subject).as_ref().and_then(speed::status);
    let quality = if subject.changes_numerics() { quality::status(comparison) } else { None };
    let measured = together(comparison.candidates());
    let given_up = if let Verdict::Run(work) = &verdict { refusal(&subject, work, later(draft, index)) } else { None };
    let checked = comparison.find(LaunchKind::Preflight, Arm::Candidate, 0).is_some();
    let phase = &mut draft.status.phases[index];
    phase.speedup = speedup;
    phase.quality = quality;
    let predicted_memory_bytes = measured.predicted_memory_bytes.or(phase.measured.predicted_memory_bytes);
    phase.measured = Measured { predicted_memory_bytes, ..measured };
    if let Some(Refusal { reason, message }) = given_up {
        // Why the phase itself was given up is more than that its fallback is not measured.
        let message = match phase.fallback {
            0 => message,
            fallback => format!("fallback {fallback}: {message}; before: {}", phase.message),
        };
        let step = conclude(draft, index, Verdict::Inconclusive { reason, message });
        draft.status.phases[index].input_hash = input_hash(draft, index);
        return step;
    }
    if let Verdict::Run(work) = verdict {
        return run(draft, index, work, checked);
    }
    conclude(draft, index, verdict)
}

fn run(draft: &mut Draft<'_>, index: usize, work: Work, checked: bool) -> Step {
    let phase = &mut draft.status.phases[index];
    phase.state = if checked { PhaseState::Measuring } else { PhaseState::Preflight };
    phase.reason = Reason::MeasurementRunning.to_string();
    let message = match &phase.speedup {
        Some(speedup) => format!("speedup {} so far, from {} pairs", speedup.estimate, speedup.pairs),
        None => String::new(),
    };
    phase.message = explained(phase, message);
    Step::Go(Next::Run(work.bounded()))
}

/// Sets why the phase is judged by the quality gates although it declares `numerics: Equivalent`; empty: it isn't. The
/// gates are inputs of its verdict then.
fn judge_as_changed(draft: &mut Draft<'_>, index: usize, why: String) {
    draft.status.phases[index].judged_as_changed = why;
    draft.status.phases[index].input_hash = input_hash(draft, index);
}

/// `message`, and why the phase was judged otherwise than it declares.
fn explained(phase: &PhaseStatus, message: String) -> String {
    match phase.judged_as_changed.as_str() {
        "" => message,
        why => format!("{message}; judged as numerics: Changed, because {why}"),
    }
}

fn conclude(draft: &mut Draft<'_>, index: usize, verdict: Verdict) -> Step {
    let (state, reason, message) = match verdict {
        Verdict::Run(_) => return Step::Pass,
        Verdict::InvalidPlan { message } => {
            draft.fail(Reason::InvalidPlan, &message);
            return Step::Moved;
        }
        Verdict::Broken { trigger, reason, message } => {
            if fallback::take(draft, index, trigger, reason, &message) {
                return Step::Moved;
            }
            (rejected(Some(trigger)), reason, message)
        }
        Verdict::Fails { trigger, reason, message } => {
            if trigger.is_some_and(|trigger| fallback::take(draft, index, trigger, reason, &message)) {
                return Step::Moved;
            }
            (rejected(trigger), reason, message)
        }
        Verdict::Inconclusive { reason, message } => (PhaseState::Inconclusive, reason, message),
        // Only this phase needs the launches that failed: without them the job is as good as before.
        Verdict::Error { reason: Reason::ControlFailed, message }
            if !draft.status.phases[index].judged_as_changed.is_empty() =>
        {
            let message = format!("the quality gates cannot decide: {message}");
            (PhaseState::Inconclusive, Reason::NumericsUnclear, message)
        }
        Verdict::Unsupported { reason, message } => (PhaseState::Unsupported, reason, message),
        Verdict::Error { reason, message } => match baseline_failure(draft) {
            Some(failure) => {
                draft.fail(failure, &format!("the baseline fails: {message}"));
                return Step::Moved;
            }
            None => (PhaseState::Error, reason, message),
        },
        Verdict::Holds { reason, message } => (PhaseState::Accepted, reason, message),
    };
    let message = match out_of_range(draft, index) {
        Some(note) => format!("{message}; {note}"),
        None => message,
    };
    let message = explained(&draft.status.phases[index], message);
    settle_as(draft, index, state, reason, &message);
    Step::Moved
}

/// Share of clipped numbers above which a phase's message reports it: from the 99.9th percentile on, magnitudes are no
/// longer outliers.
const FLOAT8_OVERFLOW: f64 = 0.001;
/// Share of numbers that become zero above which a phase's message reports it. They are the smallest of their row or
/// operand, so a few change no sum.
const FLOAT8_UNDERFLOW: f64 = 0.01;

/// What is out of the range of 8-bit floats in a phase that changes them, if that is much, with what may help and is
/// not in effect.
fn out_of_range(draft: &Draft<'_>, index: usize) -> Option<String> {
    let control = draft.control(index);
    let candidate = control.with(&patch(&draft.spec.phases[index], draft.status.phases[index].fallback));
    let of_float8 = |settings: &Settings| (settings.precision, settings.float8_scaling, settings.float8_gradients);
    (of_float8(&candidate) != of_float8(&control)).then_some(())?;
    let measured = &draft.status.phases[index].measured;
    let above = |share: &Option<Decimal>, most: f64| share.as_ref().map(Decimal::value).filter(|share| *share > most);
    let overflow = above(&measured.float8_overflow_share, FLOAT8_OVERFLOW).map(|share| (share, "overflow"));
    let underflow = || Some((above(&measured.float8_underflow_share, FLOAT8_UNDERFLOW)?, "underflow"));
    let (share, what) = overflow.or_else(underflow)?;
    let rows = candidate.float8_scaling() == Float8Scaling::Row;
    let wide = candidate.float8_gradients() == Float8Gradients::E5m2;
    let remedies = [(!rows).then_some("float8Scaling: Row"), (!wide).then_some("float8Gradients: e5m2")];
    let remedies: Vec<&str> = remedies.into_iter().flatten().collect();
    let remedy = if remedies.is_empty() { String::new() } else { format!(": try {}", remedies.join(" or ")) };
    Some(format!("{:.2} % of the numbers in 8-bit floats {what}{remedy}", share * 100.0))
}

/// The reason of the job's failure when the failed control launch used the baseline settings.
fn baseline_failure(draft: &Draft<'_>) -> Option<Reason> {
    let retry = draft.status.retry.as_ref().filter(|retry| retry.baseline_failed)?;
    retry.control_outcome.map(Reason::Baseline)
}

/// The final state of a phase without a further fallback for `trigger`.
fn rejected(trigger: Option<Trigger>) -> PhaseState {
    match trigger {
        Some(Trigger::Unsupported) => PhaseState::Unsupported,
        _ => PhaseState::RolledBack,
    }
}

/// Sets the phase's final state; a dry run is always rolled back, and its message contains the verdict.
fn settle_as(draft: &mut Draft<'_>, index: usize, state: PhaseState, reason: Reason, message: &str) {
    if draft.spec.phases[index].pin == Some(Pin::DryRun) {
        let message = format!("dry run; it would be {state} ({reason}): {message}");
        draft.phase_to(index, PhaseState::RolledBack, Reason::DryRun, &message);
    } else if state == PhaseState::RolledBack && draft.draining() {
        draft.phase_to(index, PhaseState::RollingBack, reason, message);
    } else {
        draft.phase_to(index, state, reason, message);
    }
}
