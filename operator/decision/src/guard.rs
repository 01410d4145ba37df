//! The guard: monitors the training, and reverts a phase when throughput or quality degrade.

use crate::cost;
use crate::draft::{Draft, bounded, decimals};
use crate::gates::cusum::Cusum;
use crate::gates::quality::reference::reference_settings;
use crate::gates::quality::training::{Concern, has_reference, in_training};
use crate::gates::{self, Alarm, RunningTraining, throughput};
use crate::grace;
use crate::observed::{AttemptFacts, AttemptState};
use crate::reason::Reason;
use crate::retry::{after, time};
use crate::revert::{Blame, responsible};
use crate::slowdown;
use crate::train::handle_failure;
use pawl_api::spec::Trigger;
use pawl_api::status::{CusumStatus, Purpose, TrainingStatus};
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Progress;

/// Resets the counters of throughput windows, which new processes count from 0.
pub(crate) fn restart(draft: &mut Draft<'_>) {
    let now = draft.now.to_string();
    let training = draft.status.training.get_or_insert_with(TrainingStatus::default);
    training.window = 0;
    forget_windows(training);
    training.straggler.clear();
    training.started.get_or_insert(now);
}

/// Records the progress of the running training launch, and applies the gates to it. `true` when it was new.
pub(crate) fn watch(draft: &mut Draft<'_>, facts: &AttemptFacts) -> bool {
    let Some(progress) = &facts.progress else { return false };
    let Some(attempt) = draft.attempt(&facts.name) else { return false };
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
        judge(draft, facts, progress, window);
    }
    true
}

/// Whether a new throughput window has ended; counts it.
fn next_window(draft: &mut Draft<'_>, progress: &Progress) -> bool {
    draft.status.training.as_mut().is_some_and(|training| {
        let new = progress.windows > training.window;
        if new {
            let ended = u32::try_from(progress.windows - training.window).unwrap_or(u32::MAX);
            training.quiet_windows = training.quiet_windows.saturating_sub(ended);
        }
        training.window = training.window.max(progress.windows);
        new
    })
}

/// Applies the gates to the training. `window`: whether a throughput window has ended.
fn judge(draft: &mut Draft<'_>, facts: &AttemptFacts, progress: &Progress, window: bool) {
    let window = window && progress.items_per_second.is_some() && progress.straggler.is_none();
    if window {
        observe(draft, facts, progress);
    }
    let Some(training) = &draft.status.training else { return };
    let baseline = draft.status.baseline.as_ref();
    let (spec, reference, placement) = (draft.spec, reference_settings(draft), facts.placement.as_str());
    let watched = RunningTraining { spec, baseline, reference, training, placement, progress };
    let (concern, slow) = (in_training(&watched), gates::watch(&watched));
    let (evaluated, good) = (has_reference(&watched), throughput::as_measured(&watched));
    handle_quality(draft, progress, concern, evaluated);
    if window {
        count(draft, good, slow.as_ref());
        slow.iter().for_each(|alarm| handle_throughput(draft, facts, progress, alarm));
    }
}

/// Adds a throughput window to the CUSUM of the training. What a slow rank delays says nothing about the settings.
fn observe(draft: &mut Draft<'_>, facts: &AttemptFacts, progress: &Progress) {
    let tolerance = draft.spec.train.guard.throughput_tolerance.value();
    let (spec, baseline, placement) = (draft.spec, draft.status.baseline.as_ref(), facts.placement.as_str());
    let Some(training) = draft.status.training.as_ref() else { return };
    let reference = reference_settings(draft);
    let watched = RunningTraining { spec, baseline, reference, training, placement, progress };
    let Some(shortfall) = throughput::shortfall(&watched) else { return };
    let mut cusum = training.cusum.as_ref().map(Cusum::from).unwrap_or_default();
    cusum.add(shortfall, tolerance);
    if let Some(training) = draft.status.training.as_mut() {
        training.slow_windows = cusum.since().0;
        training.cusum = Some((&cusum).into());
    }
}

/// Counts windows in a row that are below a gate, and those that are as fast as measured: after some, the training is
/// no longer degraded.
fn count(draft: &mut Draft<'_>, good: bool, slow: Option<&Alarm>) {
    let windows = draft.spec.train.guard.windows.max(1);
    let Some(training) = draft.status.training.as_mut() else { return };
    let next = |count: u32, counts: bool| if counts { count.saturating_add(1) } else { 0 };
    training.gate_windows = next(training.gate_windows, matches!(slow, Some(Alarm::BelowGate(_))));
    training.good_windows = next(training.good_windows, good && slow.is_none());
    if training.good_windows >= windows {
        training.degraded.clear();
        (training.slow_machine, training.good_windows) = (None, 0);
    }
}

/// The CUSUM begins again.
fn forget_windows(training: &mut TrainingStatus) {
    let mut cusum = training.cusum.as_ref().map(Cusum::from).unwrap_or_default();
    cusum.restart();
    training.cusum = Some((&cusum).into()).filter(|cusum| *cusum != CusumStatus::default());
    (training.slow_windows, training.gate_windows, training.good_windows) = Default::default();
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
    if let Some(earlier) = training.replaced.as_mut().filter(|_| resumed) {
        // It resumed from a checkpoint before what was trained then.
        earlier.items = earlier.items.min(progress.items);
    }
    if let Some(speed) = progress.items_per_second.and_then(Decimal::from_f64).filter(|speed| speed.value() > 0.0) {
        let elapsed = started.map_or(0, |started| crate::lifecycle::seconds_between(started, now));
        training.measured.items_per_second = Some(speed);
        if let Some(useful) = cost::productive_seconds(training).filter(|_| elapsed > 0) {
            training.goodput = Decimal::from_f64((useful / elapsed as f64).clamp(0.0, 1.0));
        }
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
    if resumed {
        training.resume_not_after_items = None;
    } else if progress.items > 0 {
        crate::trained::lift(draft);
    }
    let Some(training) = draft.status.training.as_mut() else { return };
    if progress.resumed_items.is_some() {
        crate::train::keep_quarantined(training, &progress.quarantined);
    }
    if let Some(checkpoint) = &progress.last_checkpoint {
        training.last_checkpoint = Some(crate::train::checkpointed(checkpoint));
    }
    cost::saved(draft);
}

/// Handles a slow-down. Training that is below a gate but as fast as measured is reported: no phase is responsible for
/// it. Before a phase is rolled back, the cause is measured.
fn handle_throughput(draft: &mut Draft<'_>, facts: &AttemptFacts, progress: &Progress, alarm: &Alarm) {
    let windows = draft.spec.train.guard.windows.max(1);
    let explained = responsible(draft, Blame::Newest).is_some();
    let Some(training) = draft.status.training.as_mut() else { return };
    match alarm {
        Alarm::BelowGate(_) if training.gate_windows < windows => {}
        Alarm::BelowExpected(message) if explained && training.quiet_windows == 0 => {
            slowdown::begin(draft, facts, progress, message);
        }
        // Ending a slow training would gain nothing.
        Alarm::BelowExpected(message) => {
            training.degraded = bounded(message);
            forget_windows(training);
        }
        Alarm::BelowGate(message) => {
            training.degraded = bounded(&format!("{message}, in {windows} windows"));
            forget_windows(training);
        }
    }
}

/// Handles validation that looks worse than the gates allow. A violation is shown only by two evaluations in a row:
/// then training resumes from before the newest evaluation that passed. Anything else is reported. `evaluated`: whether
/// there is a launch of the baseline with which the newest evaluation was compared.
fn handle_quality(draft: &mut Draft<'_>, progress: &Progress, concern: Option<Concern>, evaluated: bool) {
    let explained = responsible(draft, Blame::Numerics).is_some();
    let Some(items) = progress.validation.as_ref().map(|validation| validation.items) else { return };
    let Some(training) = draft.status.training.as_mut() else { return };
    let Some(Concern { message, comparable }) = concern else {
        training.worse.clear();
        if evaluated {
            training.violated_at_items = None;
            training.last_good_items = training.last_good_items.max(items);
        }
        return;
    };
    training.worse = bounded(&message);
    let first = training.violated_at_items.filter(|first| *first < items);
    if !explained || !comparable {
        return;
    }
    let Some(first) = first else {
        training.violated_at_items.get_or_insert(items);
        return;
    };
    let last_good = training.last_good_items;
    training.resume_not_after_items = Some(training.resume_not_after_items.map_or(last_good, |old| old.min(last_good)));
    let message = format!("{message}; as it was at {first} items");
    handle_failure(draft, Blame::Numerics, Trigger::QualityBelowThreshold, Reason::ValidationAboveGate, &message);
}
