//! Training with the accepted settings: its plan, and how its end is handled.

use crate::comparison::measured_budgets;
use crate::draft::{Draft, bounded, decimals};
use crate::fingerprint::fingerprint;
use crate::gates::safety::unsafe_outcome;
use crate::launch::{EvidenceTarget, Work, criterion, seed, tag_of};
use crate::reason::Reason;
use crate::retry::summary;
use crate::revert::{Blame, responsible, revert_by_scope};
use crate::statistics::median;
use crate::statistics::sequential::{alpha, interval};
use crate::step::{Next, Step};
use crate::task::Task;
use crate::trainer::comparable;
use crate::{cost, fallback, grace, launch, slowdown, trained};
use pawl_api::spec::Trigger;
use pawl_api::status::{
    Arm, BestCheckpointStatus, CheckpointStatus, LaunchStatus, Purpose, ReplacedSettings, TrainingStatus,
};
use pawl_contract::checkpoint::{BestCheckpoint, CheckpointRef, MAX_QUARANTINED};
use pawl_contract::decimal::Decimal;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Measured;
use pawl_contract::plan::{Budget, CheckpointPolicy, Criterion, LaunchKind, LaunchPlan};
use pawl_contract::plausible;
use pawl_contract::report::LaunchResult;
use pawl_contract::settings::Settings;
use serde_json::json;

/// Hash of the training target, independent of the settings.
fn target(draft: &Draft<'_>) -> String {
    let train = &draft.spec.train;
    fingerprint(&json!([draft.spec.workload, train.items, train.epochs, seed(draft.spec, 0)]), 12)
}

/// Requests training until the target is reached.
pub(crate) fn advance(draft: &mut Draft<'_>) -> Step {
    let train = &draft.spec.train;
    if train.items.is_none() && train.epochs.is_none() {
        return Step::Pass;
    }
    let settings = draft.tuned();
    trained::renew(draft, &settings);
    let target = target(draft);
    if draft.status.training.as_ref().is_some_and(|training| training.completed == target) {
        trained::nothing_to_do(draft, &settings);
        return Step::Pass;
    }
    if let Some(retry) = draft.exhausted(&Task::Train.to_string()) {
        let message = format!("training: {}", summary(&retry, draft.spec.lifecycle.max_restarts));
        draft.fail(Reason::RetriesExhausted, &message);
        return Step::Moved;
    }
    if let Some(training) = &mut draft.status.training {
        // It is continued, as after `train.items` was raised.
        training.completed.clear();
    }
    let revision = crate::revision::revision(&settings);
    if draft.status.training.as_ref().is_none_or(|training| training.revision != revision) {
        let expected = promised(draft, &settings);
        let training = draft.status.training.get_or_insert_with(TrainingStatus::default);
        begin(training, revision);
        training.promised_items_per_second = expected.and_then(Decimal::from_f64);
        cost::saved(draft);
    }
    match slowdown::advance(draft, &settings) {
        Step::Pass => Step::Go(Next::Run(work(draft, &settings))),
        step @ (Step::Moved | Step::Go(_)) => step,
    }
}

/// Begins to train with settings of this revision: nothing that was observed of others is about these.
fn begin(training: &mut TrainingStatus, revision: String) {
    let items = training.measured.items;
    let seconds = cost::productive_seconds(training).filter(|_| items > 0).and_then(Decimal::from_f64);
    training.replaced = seconds.map(|seconds| ReplacedSettings { items, seconds }).or(training.replaced.take());
    (training.measured.items_per_second, training.measured.step_seconds, training.eta) = Default::default();
    training.revision = revision;
    (training.cusum, training.slow_windows, training.quiet_windows) = Default::default();
    (training.gate_windows, training.good_windows) = Default::default();
    (training.slow_machine, training.slowdown, training.violated_at_items) = Default::default();
    training.degraded.clear();
    training.worse.clear();
    training.completed.clear();
}

fn work(draft: &Draft<'_>, settings: &Settings) -> Work {
    let mut launch = draft.launch("train", LaunchKind::Train, settings, (EvidenceTarget::Train, Arm::Candidate, 0));
    launch.plan.checkpoint = Some(policy(draft));
    Work {
        purpose: Purpose::Train,
        phase: None,
        task: Task::Train.to_string(),
        launches: vec![launch],
        stop_on_failure: true,
    }
}

/// When the training writes checkpoints, and from which one it resumes.
pub(crate) fn policy(draft: &Draft<'_>) -> CheckpointPolicy {
    let checkpoint = &draft.spec.train.checkpoint;
    CheckpointPolicy {
        every_seconds: checkpoint.every.seconds(),
        keep: checkpoint.keep,
        resume: true,
        best: best(draft),
        expected: None,
        expected_after_limit: None,
        resume_from: draft.spec.train.resume_from.clone(),
        resume_not_after_items: draft.status.training.as_ref().and_then(|training| training.resume_not_after_items),
        directory: draft.status.training.as_ref().and_then(|training| training.directory.clone()),
    }
}

/// The criterion of the best checkpoint.
fn best(draft: &Draft<'_>) -> Criterion {
    let train = &draft.spec.train;
    let stopping = || train.early_stopping.as_ref().map(criterion);
    train.checkpoint.best.clone().or_else(stopping).unwrap_or_default()
}

/// Items per second expected with these settings: the median of the launches that measured exactly these settings.
pub(crate) fn expected_items_per_second(draft: &Draft<'_>, settings: &Settings) -> Option<f64> {
    let found = measured_with(draft, settings).into_iter();
    median(found.filter_map(|launch| launch.measured.items_per_second.as_ref()).map(Decimal::value))
}

/// Items per second that the training is promised: the lower bound of what these settings measured. All accepted phases
/// together were measured for it; the launches of a phase would promise too much, because the phase was selected by
/// them.
fn promised(draft: &Draft<'_>, settings: &Settings) -> Option<f64> {
    let measured = measured_with(draft, settings);
    let bundle = draft.bundle_launches();
    let of_bundle = |launch: &&&LaunchStatus| bundle.iter().any(|own| std::ptr::eq(own, **launch));
    let together: Vec<&LaunchStatus> = measured.iter().filter(of_bundle).copied().collect();
    let launches = if together.is_empty() { measured } else { together };
    let speeds = launches.iter().filter_map(|launch| launch.measured.items_per_second.as_ref());
    let logs: Vec<f64> = speeds.map(|speed| speed.value().ln()).collect();
    let interval = interval(&logs, alpha(&draft.spec.analysis))?;
    Some(interval.bounds.map_or(interval.mean, |(lower, _)| lower).exp())
}

/// The completed Measure launches in the evidence with exactly these settings.
pub(crate) fn measured_with<'a>(draft: &'a Draft<'_>, settings: &Settings) -> Vec<&'a LaunchStatus> {
    let spec = draft.spec;
    let seeds = || spec.seeds.iter().copied().take(7);
    let tag = |budget: &Budget, seed| launch::tag(spec, LaunchKind::Measure, settings, seed, budget);
    let budgets = measured_budgets(draft, settings);
    let tags: Vec<_> = budgets
        .iter()
        .flat_map(|budget| seeds().map(move |seed| (budget, seed)))
        .map(|(budget, seed)| tag(budget, seed))
        .collect();
    let measured = |launch: &&LaunchStatus| {
        launch.outcome == Outcome::Done
            && launch.kind == LaunchKind::Measure
            && comparable(launch)
            && tags.iter().any(|tag| tag_of(&launch.name) == tag)
    };
    let phases = draft.status.phases.iter().flat_map(|phase| &phase.launches);
    draft.bundle_launches().iter().chain(phases).filter(measured).collect()
}

/// Records the end of a training launch.
pub(crate) fn record(draft: &mut Draft<'_>, result: &LaunchResult) {
    let target = target(draft);
    if result.measured.items > 0 {
        // Also of one that has diverged since: what it saved before that is good.
        trained::lift(draft);
    }
    let resumed = draft.training_attempt().is_some_and(|attempt| attempt.resumes.is_some());
    let training = draft.status.training.get_or_insert_with(TrainingStatus::default);
    let (mut found, old) = (measured(result), std::mem::take(&mut training.measured));
    // A launch that resumes evaluates first at its checkpoint, not before the first step.
    let first_validation = old.first_validation.or(found.first_validation.take().filter(|_| !resumed));
    training.measured = if result.outcome == Outcome::Done {
        let (loss, items_per_second) = (found.loss.or(old.loss), found.items_per_second.or(old.items_per_second));
        let validation = found.validation.or(old.validation);
        Measured { first_validation, loss, items_per_second, validation, ..found }
    } else {
        Measured { steps: found.steps, items: found.items, first_validation, ..old }
    };
    keep_checkpoints(training, result);
    match result.outcome {
        Outcome::Done => {
            training.completed = target;
            // What it has written is good, and what it did not resume is gone.
            training.resume_not_after_items = None;
            (training.eta, training.slowdown) = (None, None);
            if training.slow_machine.take().is_some() {
                // Nobody waits for it any more; the event tells of it.
                training.degraded.clear();
            }
            let message = done(draft, result);
            cost::saved(draft);
            draft.normal(Reason::TrainingDone, message, None);
        }
        Outcome::NonFinite
        | Outcome::LossSpike
        | Outcome::OutOfMemory
        | Outcome::HostOutOfMemory
        | Outcome::Unsupported
        | Outcome::CompileFailed => failed(draft, result),
        Outcome::CheckpointUnreadable => draft.fail(Reason::Outcome(result.outcome), &result.message),
        // Not evidence, or handled in `fold`.
        Outcome::InvalidPlan
        | Outcome::StorageFull
        | Outcome::Stopped
        | Outcome::LostPeer
        | Outcome::Hang
        | Outcome::Failed => {}
    }
}

/// How far a training has come that is done, and whether it was so before this launch.
fn done(draft: &Draft<'_>, result: &LaunchResult) -> String {
    let Measured { items, steps, .. } = &result.measured;
    let before = draft.training_attempt().and_then(|attempt| attempt.resumes.as_ref());
    match before.filter(|before| before.items >= *items) {
        Some(_) => format!("{items} items, {steps} steps: already trained: nothing to do"),
        None => format!("{items} items, {steps} steps"),
    }
}

/// Handles a training launch that failed because of its settings. After a divergence, training resumes only from a
/// checkpoint before it.
fn failed(draft: &mut Draft<'_>, result: &LaunchResult) {
    let Some(trigger) = unsafe_outcome(result.outcome) else { return };
    let diverged = matches!(result.outcome, Outcome::NonFinite | Outcome::LossSpike);
    if let Some(training) = draft.status.training.as_mut().filter(|_| diverged) {
        let limit = result.failed_at_items.unwrap_or(result.measured.items);
        training.resume_not_after_items = Some(training.resume_not_after_items.map_or(limit, |old| old.min(limit)));
    }
    let blame = if diverged { Blame::Numerics } else { Blame::Newest };
    handle_failure(draft, blame, trigger, Reason::Outcome(result.outcome), &failure_message(result));
}

/// Records the checkpoints from which a stopped or lost training resumes, unless its settings are no longer in effect.
/// That it has diverged counts all the same: what it saved after that is damaged whatever is trained next.
pub(crate) fn stopped(draft: &mut Draft<'_>, result: &LaunchResult) {
    if result.resumed_items.is_some() && result.measured.items > 0 {
        trained::lift(draft);
    }
    if result.outcome.is_divergence()
        && let Some(attempt) = draft.training_attempt()
    {
        let attempt = attempt.name.clone();
        trained::limit(draft, &attempt, result.failed_at_items.unwrap_or(result.measured.items));
    }
    let plan = wanted(draft);
    let wanted = plan.launch == result.launch;
    if wanted && result.outcome == Outcome::Done && plausible::result(result, &plan).is_none() {
        // It ended while it was being stopped for other launches.
        return record(draft, result);
    }
    if let Some(training) = draft.status.training.as_mut().filter(|_| wanted) {
        keep_checkpoints(training, result);
    }
}

/// Whether a launch of this name trains with the settings in effect.
pub(crate) fn is_wanted(draft: &Draft<'_>, launch: &str) -> bool {
    wanted(draft).launch == launch
}

/// The launch that trains with the settings in effect.
fn wanted(draft: &Draft<'_>) -> LaunchPlan {
    let target = (EvidenceTarget::Train, Arm::Candidate, 0);
    draft.launch("train", LaunchKind::Train, &draft.tuned(), target).plan
}

/// Records the newest and the best checkpoint, if the result contains them, and how long checkpoints take.
fn keep_checkpoints(training: &mut TrainingStatus, result: &LaunchResult) {
    let last = result.checkpoint.as_ref().map(checkpointed);
    training.last_checkpoint = last.or(training.last_checkpoint.take());
    if result.resumed_items.is_some() {
        keep_quarantined(training, &result.quarantined);
    }
    let best = result.best_checkpoint.as_ref().and_then(best_checkpoint);
    training.best_checkpoint = best.or(training.best_checkpoint.take());
    training.stop_seconds = grace::longer(training.stop_seconds, result.stop_seconds);
}

/// Records the names of what is quarantined, as the newest attempt has found it.
pub(crate) fn keep_quarantined(training: &mut TrainingStatus, names: &[String]) {
    training.quarantined = names.iter().take(MAX_QUARANTINED).map(|name| bounded(name)).collect();
}

/// A checkpoint, converted for the status.
pub(crate) fn checkpointed(checkpoint: &CheckpointRef) -> CheckpointStatus {
    CheckpointStatus { name: bounded(&checkpoint.name), step: checkpoint.step, items: checkpoint.items }
}

/// The best checkpoint, converted for the status; `None` when its metric is not finite.
fn best_checkpoint(best: &BestCheckpoint) -> Option<BestCheckpointStatus> {
    Some(BestCheckpointStatus {
        checkpoint: checkpointed(&best.checkpoint),
        metric: bounded(&best.metric),
        value: Decimal::from_f64(best.value)?,
    })
}

/// The measurements of a launch, converted for the status.
fn measured(result: &LaunchResult) -> Measured<Decimal> {
    let found = &result.measured;
    Measured {
        first_validation: found.first_validation.as_ref().map(decimals),
        validation: found.validation.as_ref().map(decimals),
        ..found.into()
    }
}

fn failure_message(result: &LaunchResult) -> String {
    let at = result.failed_at_items.unwrap_or(result.measured.items);
    format!("training ended with {} at {at} items: {}", result.outcome, result.message)
}

/// Handles a failure of the training: selects a fallback of a responsible phase, otherwise reverts the most likely
/// responsible phase; without accepted phases the job fails.
pub(crate) fn handle_failure(draft: &mut Draft<'_>, blame: Blame, trigger: Trigger, reason: Reason, message: &str) {
    if fallback::take_in_training(draft, blame, trigger, reason, message) {
        return;
    }
    match responsible(draft, blame) {
        Some(index) => revert_by_scope(draft, index, reason, message),
        None => draft.fail(reason, &format!("{message}; no phase is left to revert")),
    }
}
