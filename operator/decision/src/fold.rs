//! Turns the results of the current attempt into evidence: every result once, and only of desired launches.

use crate::draft::{Draft, bounded};
use crate::gates::quality::missing_measure;
use crate::gates::safety::unsafe_outcome;
use crate::launch::{EvidenceTarget, Launch, SearchRun, Work};
use crate::observed::AttemptFacts;
use crate::reason::Reason;
use crate::retry::{Again, MissingEvidence};
use crate::revert::{Blame, responsible};
use crate::{cost, preflight, search, train};
use pawl_api::spec::{Numerics, TrainingJobSpec};
use pawl_api::status::{Arm, LaunchStatus, Manner, OwnFailure};
use pawl_contract::attempt::AttemptName;
use pawl_contract::decimal::Decimal;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Measured;
use pawl_contract::plan::{LOSS, LaunchKind};
use pawl_contract::plausible;
use pawl_contract::report::{LaunchResult, truncated};

/// Maximum length of the message of a launch, bytes.
const MAX_LAUNCH_MESSAGE: usize = 160;

/// Checks that a result is evidence about the settings of its launch.
///
/// # Errors
/// [`MissingEvidence`] when it is not: the launch is then repeated.
pub(crate) fn require_evidence(
    spec: &TrainingJobSpec,
    launch: &Launch,
    result: &LaunchResult,
) -> Result<(), MissingEvidence> {
    let rejected = result.outcome == Outcome::InvalidPlan && launch.plan.kind == LaunchKind::Quality;
    if !rejected || needs_quality(spec) {
        return require_result(spec, launch, result);
    }
    let control_outcome = (launch.arm == Arm::Control).then_some(result.outcome);
    let message = format!("{}: {}", launch.plan.display_title(), result.message);
    Err(MissingEvidence { again: Again::Useless, control_outcome, ..MissingEvidence::because(message) })
}

/// [`require_evidence`], where it matters what else the job could do about a failure.
///
/// # Errors
/// [`MissingEvidence`], also of a training that ran out of the host's memory while no phase is left that could be
/// reverted for it: it resumes from its newest checkpoint as often as `lifecycle.maxRestarts` allows.
pub(crate) fn evidence(draft: &Draft<'_>, launch: &Launch, result: &LaunchResult) -> Result<(), MissingEvidence> {
    require_evidence(draft.spec, launch, result)?;
    let trains = launch.target == EvidenceTarget::Train && result.outcome == Outcome::HostOutOfMemory;
    if !trains || responsible(draft, Blame::Newest).is_some() {
        return Ok(());
    }
    let manner = Manner { kind: launch.plan.kind, outcome: result.outcome, exit_code: result.exit_code };
    let message = format!("{}: ended with {}: {}", launch.plan.display_title(), result.outcome, result.message);
    Err(MissingEvidence { again: Again::Doubtful(manner), ..MissingEvidence::because(message) })
}

/// [`require_evidence`] where the trainer accepts the plan, or must.
fn require_result(spec: &TrainingJobSpec, launch: &Launch, result: &LaunchResult) -> Result<(), MissingEvidence> {
    let title = launch.plan.display_title();
    let is_control = launch.arm == Arm::Control
        && matches!(launch.target, EvidenceTarget::Phase(_) | EvidenceTarget::Bundle | EvidenceTarget::Baseline);
    let baseline = launch.plan.settings == spec.settings;
    let manner = Manner { kind: launch.plan.kind, outcome: result.outcome, exit_code: result.exit_code };
    let lacks = |measure: &str| {
        let message = format!("{title}: reported no {measure}");
        let control_outcome = is_control.then_some(Outcome::Failed);
        let again = Again::Useless;
        Err(MissingEvidence { again, control_outcome, baseline, ..MissingEvidence::because(message) })
    };
    if let Some(problem) = plausible::result(result, &launch.plan) {
        let message = format!("{title}: its report is no evidence: {problem}");
        let control_outcome = is_control.then_some(Outcome::Failed);
        let again = Again::Doubtful(manner);
        return Err(MissingEvidence { again, control_outcome, baseline, ..MissingEvidence::because(message) });
    }
    // A training that does not find its checkpoint has lost it, and a preflight is repeated as often as the job allows:
    // see below.
    let is_unusable = result.outcome == Outcome::CheckpointUnreadable
        && !matches!(launch.plan.kind, LaunchKind::Preflight | LaunchKind::Train);
    if is_unusable || result.outcome == Outcome::StorageFull {
        let message = format!("{title}: {}", result.message);
        return Err(MissingEvidence { again: Again::OnceStorageWorks(manner), ..MissingEvidence::because(message) });
    }
    if !result.outcome.is_evidence() {
        let message = format!("{title}: ended with {}: {}", result.outcome, result.message);
        // What somebody else killed says nothing about the program.
        let by_itself = result.outcome == Outcome::Failed && result.signal.is_none();
        let again = if by_itself { Again::Doubtful(manner) } else { Again::Useful };
        let control_outcome = Some(result.outcome).filter(|_| by_itself && is_control);
        let own = own_failure(launch, result).filter(|own| own.fingerprint.is_some());
        return Err(MissingEvidence { again, control_outcome, baseline, own, ..MissingEvidence::because(message) });
    }
    if result.outcome == Outcome::Done {
        let speed = result.measured.items_per_second.filter(|speed| speed.is_finite() && *speed > 0.0);
        let metric = |name: &str| result.measured.metric(name).is_some_and(|value| value.is_finite());
        return match launch.plan.kind {
            LaunchKind::Measure if speed.is_none() => lacks("items per second"),
            LaunchKind::Quality => {
                match missing_measure(spec, metric, result.measured.loss.is_some_and(f64::is_finite)) {
                    Some(measure) => lacks(&measure),
                    None => Ok(()),
                }
            }
            LaunchKind::Preflight | LaunchKind::Measure | LaunchKind::Search | LaunchKind::Train => Ok(()),
        };
    }
    if launch.plan.kind == LaunchKind::Preflight && result.outcome == Outcome::CheckpointUnreadable {
        // A full disk or a server that restarts passes; the storage is checked again.
        let control_outcome = Some(result.outcome);
        return Err(MissingEvidence { control_outcome, ..MissingEvidence::because(result.message.clone()) });
    }
    let deterministic = matches!(
        result.outcome,
        Outcome::OutOfMemory | Outcome::HostOutOfMemory | Outcome::Unsupported | Outcome::CompileFailed
    );
    let broken = unsafe_outcome(result.outcome).is_some();
    if is_control && broken {
        let message = format!("{title}: the accepted settings ended with {}: {}", result.outcome, result.message);
        let never = matches!(result.outcome, Outcome::Unsupported | Outcome::CompileFailed);
        return Err(MissingEvidence {
            control_outcome: Some(result.outcome),
            baseline,
            again: if never { Again::Elsewhere } else { Again::Useful },
            own: own_failure(launch, result),
            ..MissingEvidence::because(message)
        });
    }
    let is_search = matches!(launch.target, EvidenceTarget::Search { .. });
    let is_check = matches!(launch.target, EvidenceTarget::PreflightBaseline | EvidenceTarget::PreflightPhase { .. })
        || is_search && launch.plan.kind == LaunchKind::Preflight;
    let goes_on = is_search || launch.target == EvidenceTarget::Train;
    if is_check && broken && !deterministic || goes_on && result.outcome == Outcome::Hang {
        let message = format!("{title}: ended with {}: {}", result.outcome, result.message);
        return Err(MissingEvidence { own: own_failure(launch, result), ..MissingEvidence::because(message) });
    }
    Ok(())
}

/// The failure of a launch that ended by itself, and not well. A training has nothing beside it that it could be
/// compared with.
fn own_failure(launch: &Launch, result: &LaunchResult) -> Option<OwnFailure> {
    let control = match launch.target {
        EvidenceTarget::Train | EvidenceTarget::Slowdown => return None,
        EvidenceTarget::PreflightBaseline | EvidenceTarget::Search { run: SearchRun::DryRun, .. } => true,
        EvidenceTarget::PreflightPhase { .. }
        | EvidenceTarget::Phase(_)
        | EvidenceTarget::Baseline
        | EvidenceTarget::Bundle
        | EvidenceTarget::Search {
            run: SearchRun::Trial(_) | SearchRun::Finalist(_) | SearchRun::Compared(_), ..
        } => launch.arm == Arm::Control,
    };
    Some(OwnFailure {
        launch: launch.plan.launch.clone(),
        kind: launch.plan.kind,
        control,
        outcome: result.outcome,
        exit_code: result.exit_code,
        signal: result.signal,
        fingerprint: result.fingerprint,
        count: 1,
    })
}

/// Whether the job cannot do without quality launches: a phase declares `numerics: Changed`. Otherwise they decide
/// where training losses do not.
fn needs_quality(spec: &TrainingJobSpec) -> bool {
    spec.phases.iter().any(|phase| phase.numerics == Numerics::Changed)
}

/// Records the results of the desired launches. `true` when there was a new result.
pub(crate) fn results(draft: &mut Draft<'_>, facts: &AttemptFacts, work: Option<&Work>) -> bool {
    let mut new = false;
    for result in &facts.results {
        let Some(attempt) = draft.attempt_mut(&facts.name) else { return new };
        if !attempt.launches.contains(&result.launch) || attempt.folded.contains(&result.launch) {
            continue;
        }
        attempt.folded.push(result.launch.clone());
        let purpose = attempt.purpose;
        new = true;
        if plausible::of_result(result).is_none() {
            cost::count(draft, purpose, result);
        }
        let wanted = work.and_then(|work| work.launches.iter().find(|launch| launch.plan.launch == result.launch));
        match wanted.filter(|launch| evidence(draft, launch, result).is_ok()) {
            Some(launch) => record(draft, launch, result, facts),
            None if plausible::of_result(result).is_none() => train::stopped(draft, result),
            None => {}
        }
    }
    new
}

fn record(draft: &mut Draft<'_>, launch: &Launch, result: &LaunchResult, facts: &AttemptFacts) {
    if let (Some(baseline), Some(items)) = (draft.status.baseline.as_mut(), result.items_per_epoch) {
        baseline.items_per_epoch = Some(items);
    }
    let evidence = match launch.target {
        EvidenceTarget::PreflightBaseline | EvidenceTarget::PreflightPhase { .. } => {
            return preflight::record(draft, launch, result);
        }
        EvidenceTarget::Search { stage, run } => return search::record(draft, launch, (stage, run), result),
        _ if result.outcome == Outcome::InvalidPlan => {
            return draft.fail(Reason::InvalidPlan, &format!("{}: {}", launch.plan.display_title(), result.message));
        }
        EvidenceTarget::Train => return train::record(draft, result),
        EvidenceTarget::Phase(index) => draft.status.phases.get_mut(index).map(|phase| &mut phase.launches),
        EvidenceTarget::Baseline => draft.status.baseline.as_mut().map(|baseline| &mut baseline.launches),
        EvidenceTarget::Bundle => draft.status.bundle.as_mut().map(|bundle| &mut bundle.launches),
        EvidenceTarget::Slowdown => {
            let training = draft.status.training.as_mut();
            training.and_then(|training| training.slowdown.as_mut()).map(|slowdown| &mut slowdown.launches)
        }
    };
    let number = AttemptName::number_of(&facts.name);
    // Unknown devices are treated as specific to this attempt.
    let placement = if facts.placement.is_empty() { &facts.name } else { &facts.placement };
    let Some(evidence) = evidence else { return };
    evidence.retain(|old| old.name != result.launch);
    if launch.plan.kind == LaunchKind::Quality && launch.target != EvidenceTarget::Baseline {
        // Two looks in a row decide, and each is four times as long as the one before.
        let of_earlier_look = |old: &LaunchStatus| {
            let same = (old.kind, old.arm, old.pair) == (launch.plan.kind, launch.arm, launch.pair);
            same && old.measured.items.saturating_mul(8) < result.measured.items
        };
        evidence.retain(|old| !of_earlier_look(old));
    }
    evidence.push(LaunchStatus {
        name: result.launch.clone(),
        kind: launch.plan.kind,
        arm: launch.arm,
        pair: launch.pair,
        seed: u32::try_from(launch.plan.seed).unwrap_or(u32::MAX),
        outcome: result.outcome,
        measured: measured(draft.spec, result),
        curve: result.curve.iter().filter_map(|loss| Decimal::from_f64(*loss)).collect(),
        placement: truncated(placement, 64).to_owned(),
        attempt: if launch.plan.kind == LaunchKind::Measure { number } else { 0 },
        trainer: String::new(),
        message: truncated(&bounded(&result.message), MAX_LAUNCH_MESSAGE).to_owned(),
    });
    join(evidence, (launch.arm, launch.pair), number);
}

/// Both launches of a pair have run in the attempt with this number: where they ran no longer matters.
fn join(evidence: &mut [LaunchStatus], (arm, pair): (Arm, u32), number: u32) {
    let is_of_pair = |launch: &LaunchStatus| launch.attempt == number && launch.pair == pair;
    if evidence.iter().any(|launch| is_of_pair(launch) && launch.arm != arm) {
        evidence.iter_mut().filter(|launch| is_of_pair(launch)).for_each(|launch| launch.attempt = 0);
    }
}

/// The attempt with this name was lost, and is created again under it: a launch whose partner has not run in it gets
/// none.
pub(crate) fn part(draft: &mut Draft<'_>, attempt: &str) {
    let Some(name) = AttemptName::parse(attempt) else { return };
    let status = &mut draft.status;
    let phases = status.phases.iter_mut().map(|phase| &mut phase.launches);
    let bundle = status.bundle.as_mut().map(|bundle| &mut bundle.launches);
    let slowdown = status.training.as_mut().and_then(|training| training.slowdown.as_mut());
    let evidence = phases.chain(bundle).chain(slowdown.map(|slowdown| &mut slowdown.launches));
    let alone = evidence.flatten().filter(|launch| launch.attempt == name.number);
    alone.for_each(|launch| launch.attempt = LaunchStatus::LOST_ATTEMPT);
}

/// The measurements; of the validation only the loss and the metrics with a gate, which verdicts need.
fn measured(spec: &TrainingJobSpec, result: &LaunchResult) -> Measured<Decimal> {
    let mut measured = Measured::from(&result.measured);
    let gated = |name: &str| spec.gates.validation_metrics.iter().any(|gate| gate.name == name);
    let validations = measured.validation.iter_mut().chain(measured.first_validation.iter_mut());
    validations.for_each(|validation| validation.retain(|name| name == LOSS || gated(name)));
    measured
}
