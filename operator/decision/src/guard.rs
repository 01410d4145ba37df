//! The guard: training is watched, and reverts again when it stops holding.

use crate::cost;
use crate::draft::{Draft, bounded, decimals};
use crate::observed::{AttemptFacts, AttemptState};
use crate::retry::{after, time};
use crate::revert::{Blame, responsible};
use crate::train::revert_by_scope;
use pawl_api::status::{LaunchStatus, Purpose, TrainingStatus};
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::{Progress, Validation};

/// A fresh process counts its windows from 0.
pub(crate) fn restart(draft: &mut Draft<'_>) {
    let now = draft.now.to_string();
    let training = draft.status.training.get_or_insert_with(TrainingStatus::default);
    training.window = 0;
    training.slow_windows = 0;
    training.straggler.clear();
    training.started.get_or_insert(now);
}

/// Takes in the progress of the training launch under way, and judges it.
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
        // Late observations go backwards, repeated ones say nothing new.
        (progress.step, progress.windows) <= (training.step, training.window)
            && training.items >= progress.items
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
    if draft.spec.train.guard.enabled {
        let _ = validation(draft, progress) || throughput(draft, progress);
    } else if let Some(training) = draft.status.training.as_mut() {
        training.window = progress.windows;
    }
    true
}

/// A restarted training begins again before where the one before ended.
fn rewound(draft: &Draft<'_>, progress: &Progress) -> bool {
    draft
        .status
        .training
        .as_ref()
        .is_some_and(|training| training.window == 0 && training.step > progress.step && progress.step > 0)
}

fn describe(draft: &mut Draft<'_>, progress: &Progress) {
    let now = draft.now;
    let started = draft.status.training.as_ref().and_then(|training| training.started.as_deref().and_then(time));
    let Some(training) = draft.status.training.as_mut() else { return };
    training.step = progress.step;
    training.items = progress.items;
    training.epoch = progress.epoch;
    training.loss = progress.loss.and_then(Decimal::from_f64).or(training.loss.take());
    if let Some(speed) = progress.items_per_second.and_then(Decimal::from_f64).filter(|speed| speed.value() > 0.0) {
        let elapsed = started.map_or(0, |started| crate::lifecycle::seconds_between(started, now));
        let useful = progress.items as f64 / speed.value();
        if elapsed > 0 {
            training.goodput = Decimal::from_f64((useful / elapsed as f64).clamp(0.0, 1.0));
        }
        training.items_per_second = Some(speed);
    }
    let eta = progress.eta_seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    training.eta = eta.map(|seconds| after(now, seconds as u64).to_string());
    training.straggler = progress.straggler.as_deref().map(bounded).unwrap_or_default();
    if let Some(validation) = &progress.validation {
        // Of a training that is seen from its middle on, its end says where it began.
        if training.first_validation.is_empty() && validation.items == 0 {
            training.first_validation = decimals(&validation.metrics);
        }
        training.validation = decimals(&validation.metrics);
    }
    if let Some(checkpoint) = &progress.last_checkpoint {
        // A checkpoint that this run wrote lies after the damage that is left out.
        if let Some(limit) = &mut training.resume_not_after_items {
            *limit = checkpoint.items.max(*limit);
        }
        training.last_checkpoint = Some(crate::train::checkpointed(checkpoint));
    }
    cost::saved(draft);
}

/// Slow windows, each counted once. A slow machine is reported, not rolled back.
fn throughput(draft: &mut Draft<'_>, progress: &Progress) -> bool {
    let guard = &draft.spec.train.guard;
    let Some(training) = draft.status.training.as_mut() else { return false };
    if progress.windows <= training.window {
        return false;
    }
    training.window = progress.windows;
    let promised = training.promised_items_per_second.as_ref().map(Decimal::value);
    let (Some(promised), Some(speed)) = (promised, progress.items_per_second) else { return false };
    let least = promised * (1.0 - guard.throughput_tolerance.value());
    if speed >= least {
        training.slow_windows = 0;
        training.degraded.clear();
        return false;
    }
    if progress.straggler.is_some() {
        return false;
    }
    training.slow_windows = training.slow_windows.saturating_add(1);
    if training.slow_windows < guard.windows.max(1) {
        return false;
    }
    let message = format!(
        "{speed:.1} items/s in {} windows, below {least:.1}: promised were {promised:.1}, \
         train.guard.throughputTolerance is {}",
        training.slow_windows, guard.throughput_tolerance
    );
    match responsible(draft, Blame::Newest) {
        Some(index) => revert_by_scope(draft, index, "ThroughputBelowPromise", &message),
        // Slow training is still training: nothing is gained by ending it.
        None => {
            if let Some(training) = draft.status.training.as_mut() {
                training.slow_windows = 0;
                training.degraded = bounded(&message);
            }
        }
    }
    true
}

/// Validation must not be worse than the baseline was after fewer items.
fn validation(draft: &mut Draft<'_>, progress: &Progress) -> bool {
    let Some(validation) = &progress.validation else { return false };
    let Some((items, most)) = bound(draft) else { return false };
    let Some(loss) = validation.metrics.get("loss").copied() else { return false };
    if validation.items < items || loss <= most {
        good(draft, validation);
        return false;
    }
    let last_good = draft.status.training.as_ref().map_or(0, |training| training.last_good_items);
    let message = format!(
        "validation loss {loss:.5} at {} items is above {most:.5}, what the baseline allows after {items} items",
        validation.items
    );
    let Some(index) = responsible(draft, Blame::Numerics) else {
        if let Some(training) = draft.status.training.as_mut() {
            training.degraded = bounded(&message);
        }
        return false;
    };
    if let Some(training) = draft.status.training.as_mut() {
        training.resume_not_after_items =
            Some(training.resume_not_after_items.map_or(last_good, |old| old.min(last_good)));
    }
    revert_by_scope(draft, index, "ValidationAboveGate", &message);
    true
}

fn good(draft: &mut Draft<'_>, validation: &Validation) {
    if let Some(training) = draft.status.training.as_mut() {
        training.last_good_items = training.last_good_items.max(validation.items);
    }
}

/// Items that the baseline's quality launches saw, and the validation loss that its mean and the gate allow.
fn bound(draft: &Draft<'_>) -> Option<(u64, f64)> {
    let launches: &[LaunchStatus] = &draft.status.baseline.as_ref()?.launches;
    let losses: Vec<f64> = launches.iter().filter_map(|launch| Some(launch.validation.get("loss")?.value())).collect();
    let items = launches.iter().map(|launch| launch.items).max()?;
    if losses.is_empty() {
        return None;
    }
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    let margin = draft.spec.gates.validation_loss_delta.as_ref().map_or(mean.abs() * 0.01, Decimal::value);
    Some((items, mean + margin))
}
