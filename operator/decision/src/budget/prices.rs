//! How long launches would take.

use super::promised;
use crate::cost::judging_seconds;
use crate::gates::Subject;
use crate::gates::quality::reference::reference_settings;
use crate::judging::CLEAR_LOOKS;
use crate::launch::{budget, quality, quality_looks, quality_seeds};
use crate::revision::accepted;
use crate::statistics::sequential::looks;
use crate::train::expected_items_per_second;
use pawl_api::status::LaunchStatus;
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::{Budget, LaunchKind, LaunchPlan};
use pawl_contract::settings::Settings;

/// Predicts how long launches take, in seconds. Before any speed was measured that of the baseline is taken as one item
/// per second, so that nothing but the ratios of these times means anything. It is not known then whether time ends the
/// windows before their last step: they are priced at the least number of steps, since otherwise slow steps, which
/// these limits are for, would never be measured. What is kept free for another phase is priced
/// [in full](Self::in_full).
pub(super) struct Prices<'a> {
    subject: &'a Subject<'a>,
    is_measured: bool,
    /// Whether windows are priced at their last step before any speed was measured.
    in_full: bool,
    /// Items per second of the baseline; if it was not measured, as with an earlier phase that is pinned, of the
    /// control.
    pub baseline: f64,
    /// Items per second of the settings accepted so far.
    pub control: f64,
    /// Items per second of the phase: as measured, before that as promised, or as fast as the control.
    candidate: f64,
    /// Items of the training.
    items: f64,
    /// Those that are not trained yet.
    pub left: f64,
    items_per_epoch: f64,
    /// Seconds of a measurement outside of its steps.
    overhead: f64,
}

impl<'a> Prices<'a> {
    /// `None` where the length of the training is not known.
    pub fn new(subject: &'a Subject<'a>) -> Option<Self> {
        let (draft, comparison) = (subject.comparison.draft, &subject.comparison);
        let (train, known) = (&draft.spec.train, draft.status.baseline.as_ref());
        let items_per_epoch = known.and_then(|baseline| baseline.items_per_epoch).map(|items| items as f64);
        let items = match (train.items, train.epochs) {
            (Some(items), _) => items as f64,
            (None, epochs) => f64::from(epochs?) * items_per_epoch?,
        };
        let measured = known.and_then(|baseline| baseline.measured.items_per_second.as_ref()).map(Decimal::value);
        let measured = measured.or_else(|| expected_items_per_second(draft, &draft.spec.settings));
        let control = expected_items_per_second(draft, &comparison.control);
        let is_measured = measured.or(control).is_some();
        let baseline = measured.or(control).unwrap_or(1.0);
        let control = control.unwrap_or(baseline);
        let promise = || control * promised(subject).unwrap_or(1.0);
        let candidate = expected_items_per_second(draft, &comparison.candidate).unwrap_or_else(promise);
        let overhead = overhead(draft.status.phases.iter().flat_map(|phase| &phase.launches));
        let items_per_epoch = items_per_epoch.unwrap_or_default();
        let trained = draft.status.training.as_ref().map_or(0, |training| training.measured.items);
        let left = (items - trained as f64).max(0.0);
        Some(Self {
            subject,
            is_measured,
            in_full: false,
            baseline,
            control,
            candidate,
            items,
            left,
            items_per_epoch,
            overhead,
        })
    }

    /// The same with windows that no time ends before their last step.
    pub fn in_full(self) -> Self {
        Self { in_full: true, ..self }
    }

    /// The time of the training at a speed.
    pub fn training(&self, items_per_second: f64) -> f64 {
        self.items / items_per_second
    }

    /// The time that judging has taken.
    pub fn spent(&self) -> f64 {
        if self.is_measured { judging_seconds(self.subject.comparison.draft) } else { 0.0 }
    }

    /// The time that the rest of the training takes less with the settings accepted so far.
    pub fn saved(&self) -> f64 {
        (self.left / self.baseline - self.left / self.control).max(0.0)
    }

    /// The time of the launches of all accepted phases together with this one: the pairs of the first look, and quality
    /// launches unless those of this phase are the same.
    pub fn together(&self) -> f64 {
        let comparison = &self.subject.comparison;
        let measured = self.first_look(&comparison.draft.spec.settings);
        if self.subject.changes_numerics() || !self.changed_before() {
            return measured;
        }
        measured + self.clear_quality(&comparison.candidate)
    }

    /// The time of a verdict on a phase without launches, if it is clear as early as it can be.
    pub fn verdict(&self) -> f64 {
        self.first_look(&self.subject.comparison.control) + self.quality_to_come()
    }

    /// The time of the pairs of the first look, each of the candidate and these settings.
    fn first_look(&self, other: &Settings) -> f64 {
        let spec = self.subject.comparison.draft.spec;
        let pairs = looks(&spec.analysis).first().copied().unwrap_or(1) as f64;
        let of = |settings: &Settings| self.measurement(settings, &budget(spec, LaunchKind::Measure));
        pairs * (of(other) + of(&self.subject.comparison.candidate))
    }

    /// The time of the quality launches that a phase needs once it is fast enough, until they can be clear: 0 if it
    /// needs none, or has some.
    pub fn quality_to_come(&self) -> f64 {
        let comparison = &self.subject.comparison;
        let begun = |launches: &[LaunchStatus]| launches.iter().any(|launch| launch.kind == LaunchKind::Quality);
        if !self.subject.changes_numerics() || begun(comparison.evidence) {
            return 0.0;
        }
        let is_shared = comparison.draft.status.baseline.as_ref().is_some_and(|baseline| begun(&baseline.launches));
        let of_baseline = || self.clear_quality(&reference_settings(comparison.draft));
        self.clear_quality(&comparison.candidate) + if is_shared { 0.0 } else { of_baseline() }
    }

    /// The time of the quality launches with these settings, of all seeds and the looks after which a clear result is
    /// known.
    fn clear_quality(&self, settings: &Settings) -> f64 {
        let spec = self.subject.comparison.draft.spec;
        let looks = 0..quality_looks(spec).min(CLEAR_LOOKS);
        let one_seed: f64 = looks.map(|look| self.quality(settings, &quality(spec, look))).sum();
        f64::from(quality_seeds(spec)) * one_seed
    }

    /// Whether an accepted phase changes the numerics.
    fn changed_before(&self) -> bool {
        let draft = self.subject.comparison.draft;
        let phases = draft.status.phases.iter().enumerate();
        phases.filter(|(_, phase)| accepted(phase)).any(|(index, _)| draft.is_judged_as_changed(index))
    }

    pub fn launch(&self, plan: &LaunchPlan) -> f64 {
        match plan.kind {
            LaunchKind::Measure => self.measurement(&plan.settings, &plan.budget),
            LaunchKind::Quality => self.quality(&plan.settings, &plan.budget),
            // A preflight is short, and the others are not for a verdict on a phase.
            LaunchKind::Preflight | LaunchKind::Search | LaunchKind::Train => 0.0,
        }
    }

    fn quality(&self, settings: &Settings, budget: &Budget) -> f64 {
        let epochs = || budget.epochs.map_or(0.0, |epochs| f64::from(epochs) * self.items_per_epoch);
        budget.items.map_or_else(epochs, |items| items as f64) / self.speed(settings) + self.overhead
    }

    fn measurement(&self, settings: &Settings, budget: &Budget) -> f64 {
        let world = self.subject.comparison.draft.spec.trainer.world_size();
        // Where it is not divisible, the preflight fails.
        let items = settings.items_per_step(world).unwrap_or_default() as f64;
        let step = items / self.speed(settings);
        let queue = settings.queue_steps(settings.accumulation(world).unwrap_or(1));
        let Some(limit) = budget.limit(queue) else { return self.overhead };
        let seconds = match (self.is_measured, self.in_full) {
            (true, _) => limit.seconds,
            (false, true) => f64::INFINITY,
            (false, false) => 0.0,
        };
        let until = |steps: Option<u64>, least: u64| {
            let all = steps.unwrap_or_default() as f64 * step;
            all.min(seconds.max(least as f64 * step))
        };
        until(budget.warmup_steps, limit.warmup_steps) + until(budget.window_steps, limit.window_steps) + self.overhead
    }

    fn speed(&self, settings: &Settings) -> f64 {
        let comparison = &self.subject.comparison;
        if *settings == comparison.candidate {
            self.candidate
        } else if *settings == comparison.control {
            self.control
        } else {
            expected_items_per_second(comparison.draft, settings).unwrap_or(self.baseline)
        }
    }
}

/// The mean time of measurements outside of their steps: start, compilation, end. 0 before one was made.
fn overhead<'a>(launches: impl Iterator<Item = &'a LaunchStatus>) -> f64 {
    let outside = launches.filter(|launch| launch.kind == LaunchKind::Measure).filter_map(|launch| {
        let speed = launch.measured.items_per_second.as_ref()?.value();
        let seconds = launch.measured.wall_seconds.as_ref()?.value();
        Some((seconds - launch.measured.items as f64 / speed).max(0.0))
    });
    let (count, sum) = outside.fold((0.0, 0.0), |(count, sum), seconds| (count + 1.0, sum + seconds));
    if count > 0.0 { sum / count } else { 0.0 }
}
