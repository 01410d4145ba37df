//! The guard: monitors the training, and reverts a phase when throughput or quality degrade.

use crate::cost;
use crate::draft::{Draft, bounded, decimals};
use crate::gates::{self, Alarm, RunningTraining, quality};
use crate::grace;
use crate::observed::{AttemptFacts, AttemptState};
use crate::reason::Reason;
use crate::retry::{after, time};
use crate::revert::{Blame, responsible};
use crate::train::{handle_failure, revert_by_scope};
use pawl_api::spec::Trigger;
use pawl_api::status::{Purpose, TrainingStatus};
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Progress;

/// Resets the counters of throughput windows, which new processes count from 0.
pub(crate) fn restart(draft: &mut Draft<'_>) {
    let now = draft.now.to_string();
    let training = draft.status.training.get_or_insert_with(TrainingStatus::default);
    training.window = 0;
    training.slow_windows = 0;
    training.straggler.clear();
    training.started.get_or_insert(now);
}

/// Records the progress of the running training launch, and applies the gates to it. `true` when it was new.
pub(crate) fn watch(draft: &mut Draft<'_>, facts: &AttemptFacts) -> bool {
    let Some(progress) = &facts.progress else { return false };
    let Some(attempt) = &draft.status.attempt else { return false };
    let expected = attempt.purpose == Purpose::Train
        && attempt.stop.is_none()
        && attempt.launches.contains(&progress.launch)
        && !attempt.folded.contains(&progress.launch)
        && facts.state == AttemptState::Running
        && progress.kind == LaunchKind::Train;
    let known = draft.status.training.as_ref().is_some_and(|training| {
        // Observations may be late or repeated.
        (progress.step, progress.windows) <= (training.measured.steps, training.window)
            && training.measured.items >= progress.items
            && training.window >= progress.windows
    });
    if !expected
        || known
            && draft.status.training.as_ref().is_some_and(|training| training.started.is_some())
            && !rewound(draft, progress)
    {
        return false;
    }
    describe(draft, progress);
    let window = next_window(draft, progress);
    if draft.spec.train.guard.enabled {
        judge(draft, progress, window);
    }
    true
}

/// Whether a new throughput window has ended; counts it.
fn next_window(draft: &mut Draft<'_>, progress: &Progress) -> bool {
    draft.status.training.as_mut().is_some_and(|training| {
        let new = progress.windows > training.window;
        training.window = training.window.max(progress.windows);
        new
    })
}

/// Applies the gates to the training, and handles the first alarm. `window`: whether a throughput window has ended.
fn judge(draft: &mut Draft<'_>, progress: &Progress, window: bool) {
    let Some(training) = &draft.status.training else { return };
    let baseline = draft.status.baseline.as_ref();
    let watched = RunningTraining { spec: draft.spec, baseline, training, progress };
    let alarm = gates::watch(&watched);
    if !matches!(alarm, Some(Alarm::Quality(_))) && quality::comparable(&watched).is_some() {
        record_good(draft, progress);
    }
    match alarm {
        Some(Alarm::Quality(message)) => handle_quality(draft, &message),
        Some(Alarm::BelowExpected(message)) => handle_throughput(draft, progress, window, &message, true),
        Some(Alarm::BelowGate(message)) => handle_throughput(draft, progress, window, &message, false),
        None if window && progress.items_per_second.is_some() => {
            if let Some(training) = draft.status.training.as_mut() {
                training.slow_windows = 0;
                training.degraded.clear();
            }
        }
        None => {}
    }
}

/// Whether a restarted training reports fewer steps than the previous one, because it resumed from a checkpoint.
fn rewound(draft: &Draft<'_>, progress: &Progress) -> bool {
    draft
        .status
        .training
        .as_ref()
        .is_some_and(|training| training.window == 0 && training.measured.steps > progress.step && progress.step > 0)
}

fn describe(draft: &mut Draft<'_>, progress: &Progress) {
    let now = draft.now;
    // A gang whose settings were just reverted is still to be stopped.
    let resumed = progress.items > 0 && crate::train::is_wanted(draft, &progress.launch);
    let started = draft.status.training.as_ref().and_then(|training| training.started.as_deref().and_then(time));
    let Some(training) = draft.status.training.as_mut() else { return };
    training.measured.steps = progress.step;
    training.measured.items = progress.items;
    training.epoch = progress.epoch;
    training.measured.loss = progress.loss.and_then(Decimal::from_f64).or(training.measured.loss.take());
    if let Some(speed) = progress.items_per_second.and_then(Decimal::from_f64).filter(|speed| speed.value() > 0.0) {
        let elapsed = started.map_or(0, |started| crate::lifecycle::seconds_between(started, now));
        let useful = progress.items as f64 / speed.value();
        if elapsed > 0 {
            training.goodput = Decimal::from_f64((useful / elapsed as f64).clamp(0.0, 1.0));
        }
        training.measured.items_per_second = Some(speed);
    }
    let eta = progress.eta_seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    training.eta = eta.map(|seconds| after(now, seconds as u64).to_string());
    training.straggler = progress.straggler.as_deref().map(bounded).unwrap_or_default();
    if let Some(validation) = &progress.validation {
        // If the first evaluation was not observed, the final report contains it.
        if training.measured.first_validation.is_none() && validation.items == 0 {
            training.measured.first_validation = Some(decimals(validation));
        }
        training.measured.validation = Some(decimals(validation));
    }
    training.stop_seconds = grace::longer(training.stop_seconds, progress.stop_seconds);
    // The damaged checkpoints were deleted before its first step, or moved aside. Those that it writes are not damaged, whether they are observed
    // or not.
    if resumed {
        training.resume_not_after_items = None;
    }
    if let Some(checkpoint) = &progress.last_checkpoint {
        training.last_checkpoint = Some(crate::train::checkpointed(checkpoint));
    }
    cost::saved(draft);
}

/// Counts slow windows, each once. A slow machine is reported but not rolled back. So is training that is below a gate but
/// as fast as measured, for which no phase is responsible (`explained` is false).
fn handle_throughput(draft: &mut Draft<'_>, progress: &Progress, window: bool, message: &str, explained: bool) {
    let windows = draft.spec.train.guard.windows.max(1);
    let Some(training) = draft.status.training.as_mut().filter(|_| window && progress.straggler.is_none()) else {
        return;
    };
    training.slow_windows = training.slow_windows.saturating_add(1);
    if training.slow_windows < windows {
        return;
    }
    let message = format!("{message}, in {} windows", training.slow_windows);
    match responsible(draft, Blame::Newest).filter(|_| explained) {
        Some(index) => revert_by_scope(draft, index, Reason::ThroughputBelowPromise, &message),
        // Ending a slow training would gain nothing.
        None => {
            if let Some(training) = draft.status.training.as_mut() {
                training.slow_windows = 0;
                training.degraded = bounded(&message);
            }
        }
    }
}

/// Handles validation that violates a gate: training resumes from before the newest evaluation that passed.
fn handle_quality(draft: &mut Draft<'_>, message: &str) {
    let explained = responsible(draft, Blame::Numerics).is_some();
    let Some(training) = draft.status.training.as_mut() else { return };
    if !explained {
        training.degraded = bounded(message);
        return;
    }
    let last_good = training.last_good_items;
    training.resume_not_after_items = Some(training.resume_not_after_items.map_or(last_good, |old| old.min(last_good)));
    handle_failure(draft, Blame::Numerics, Trigger::QualityBelowThreshold, Reason::ValidationAboveGate, message);
}

fn record_good(draft: &mut Draft<'_>, progress: &Progress) {
    if let (Some(training), Some(validation)) = (draft.status.training.as_mut(), &progress.validation) {
        training.last_good_items = training.last_good_items.max(validation.items);
    }
}
