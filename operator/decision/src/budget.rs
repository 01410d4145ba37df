//! What judging may cost if there is a training: `analysis.budgetPercent`, of the time that it takes with the baseline,
//! and what the accepted phases save of it.
//!
//! Before a phase is measured further, its next launches are priced. It is given up as inconclusive if they do not fit
//! into the rest of the budget, or if they take longer than the phase can save. No verdict is weakened for that: what
//! was not shown is not accepted. What is under way is not stopped, and the evaluation of all accepted phases together
//! is always done; its first launches are kept free. So judging and training together take about that much longer than
//! the training with the baseline at most. They take more where launches take longer than predicted, of which the first
//! look is the only one without a measured speed, and where all accepted phases together need more launches than these.

use crate::cost::judging_seconds;
use crate::gates::{Subject, speed};
use crate::judging::CLEAR_LOOKS;
use crate::launch::{Work, budget, quality, quality_looks, quality_seeds};
use crate::reason::Reason;
use crate::revision::accepted;
use crate::statistics::sequential::looks;
use crate::train::expected_items_per_second;
use pawl_api::spec::{Phase, Role};
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::{Budget, LaunchKind, LaunchPlan};
use pawl_contract::settings::Settings;

/// Why a phase is not measured further, in the status.
pub(crate) struct Refusal {
    pub reason: Reason,
    pub message: String,
}

/// Whether this is a reason of a [`Refusal`].
pub(crate) fn refused(reason: &str) -> bool {
    [Reason::BudgetSpent, Reason::NotWorthKnowing].into_iter().any(|known| known.is(reason))
}

/// Why `work` for a phase is not done; `None` if it is.
pub(crate) fn refusal(subject: &Subject<'_>, work: &Work) -> Option<Refusal> {
    let draft = subject.comparison.draft;
    let analysis = &draft.spec.analysis;
    let percent = analysis.budget().percent()?;
    if draft.under_way().any(|attempt| attempt.task == work.task) {
        return None;
    }
    let prices = Prices::new(subject)?;
    let cost: f64 = work.launches.iter().map(|launch| prices.launch(&launch.plan)).sum();
    let next = match work.launches.iter().filter(|launch| launch.plan.kind != LaunchKind::Preflight).count() {
        1 => "the next launch".to_owned(),
        count => format!("the next {count} launches"),
    };
    let share = |seconds: f64| 100.0 * seconds / prices.training(prices.baseline);
    let (spent, together, saved) = (prices.spent(), prices.together(), prices.saved());
    if share(spent + cost + together - saved) > f64::from(percent) {
        let by_default = if analysis.budget_percent.is_none() { " by default" } else { "" };
        let message = format!(
            "{next} would take about {:.1} % of the time of the training with the baseline, beside {:.1} % that judging \
             has taken and {:.1} % for all accepted phases together: more than analysis.budgetPercent, which is \
             {percent}{by_default}, and the {:.1} % that the accepted phases save",
            share(cost),
            share(spent),
            share(together),
            share(saved)
        );
        return Some(Refusal { reason: Reason::BudgetSpent, message });
    }
    let (factor, source) = best(subject)?;
    let saves = prices.left / prices.control * (1.0 - 1.0 / factor);
    let message = || {
        format!(
            "{next} would take about {:.1} % of the time of the training with the baseline, and the phase saves at most {:.1} % \
             of it ({source})",
            share(cost),
            share(saves.max(0.0))
        )
    };
    (cost > saves).then(|| Refusal { reason: Reason::NotWorthKnowing, message: message() })
}

/// The largest plausible speedup of a phase, and what tells it: the upper bound of what was measured, before that the
/// promise. `None` if nothing is known, or if another phase may be what it is for.
fn best(subject: &Subject<'_>) -> Option<(f64, String)> {
    let phase = subject.phase?;
    let phases = &subject.comparison.draft.spec.phases;
    if phase.role == Role::Enabler || phases.iter().any(|other| other.requires.contains(&phase.name)) {
        return None;
    }
    if let Some((_, upper)) = speed::reached(subject).and_then(|interval| interval.bounds) {
        return Some((upper, format!("its speedup is at most {upper:.3}")));
    }
    let promised = promised(subject)?;
    Some((promised, format!("expectedSpeedup {promised}")))
}

/// What the manifest promises of the phase; of a fallback, nothing.
fn promised(subject: &Subject<'_>) -> Option<f64> {
    let phase = subject.phase?;
    let statuses = &subject.comparison.draft.status.phases;
    statuses.iter().find(|status| status.name == phase.name).filter(|status| status.fallback == 0)?;
    promise(phase)
}

/// The speedup that the manifest promises of a phase without its fallbacks.
pub(crate) fn promise(phase: &Phase) -> Option<f64> {
    phase.expected_speedup.as_ref().map(Decimal::value).filter(|promised| *promised > 0.0)
}

/// Predicts how long launches take, in seconds. Before any speed was measured that of the baseline is taken as one item
/// per second, so that nothing but the ratios of these times means anything. It is not known then whether time ends the
/// windows before their last step: they are priced at the least number of steps, since otherwise slow steps, which
/// these limits are for, would never be measured.
struct Prices<'a> {
    subject: &'a Subject<'a>,
    is_measured: bool,
    /// Items per second of the baseline; if it was not measured, as with an earlier phase that is pinned, of the
    /// control.
    baseline: f64,
    /// Items per second of the settings accepted so far.
    control: f64,
    /// Items per second of the phase: as measured, before that as promised, or as fast as the control.
    candidate: f64,
    /// Items of the training.
    items: f64,
    /// Those that are not trained yet.
    left: f64,
    items_per_epoch: f64,
    /// Seconds of a measurement outside of its steps.
    overhead: f64,
}

impl<'a> Prices<'a> {
    /// `None` where the length of the training is not known.
    fn new(subject: &'a Subject<'a>) -> Option<Self> {
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
        Some(Self { subject, is_measured, baseline, control, candidate, items, left, items_per_epoch, overhead })
    }

    /// The time of the training at a speed.
    fn training(&self, items_per_second: f64) -> f64 {
        self.items / items_per_second
    }

    /// The time that judging has taken.
    fn spent(&self) -> f64 {
        if self.is_measured { judging_seconds(self.subject.comparison.draft) } else { 0.0 }
    }

    /// The time that the rest of the training takes less with the settings accepted so far.
    fn saved(&self) -> f64 {
        (self.left / self.baseline - self.left / self.control).max(0.0)
    }

    /// The time of the launches of all accepted phases together with this one: the pairs of the first look, and quality
    /// launches unless those of this phase are the same.
    fn together(&self) -> f64 {
        let spec = self.subject.comparison.draft.spec;
        let pairs = looks(&spec.analysis).first().copied().unwrap_or(1) as f64;
        let of = |settings: &Settings| self.measurement(settings, &budget(spec, LaunchKind::Measure));
        let measured = pairs * (of(&spec.settings) + of(&self.subject.comparison.candidate));
        if self.subject.changes_numerics() || !self.changed_before() {
            return measured;
        }
        let looks = 0..quality_looks(spec).min(CLEAR_LOOKS);
        let one_seed: f64 =
            looks.map(|look| self.quality(&self.subject.comparison.candidate, &quality(spec, look))).sum();
        measured + f64::from(quality_seeds(spec)) * one_seed
    }

    /// Whether an accepted phase changes the numerics.
    fn changed_before(&self) -> bool {
        let draft = self.subject.comparison.draft;
        let phases = draft.status.phases.iter().enumerate();
        phases.filter(|(_, phase)| accepted(phase)).any(|(index, _)| draft.is_judged_as_changed(index))
    }

    fn launch(&self, plan: &LaunchPlan) -> f64 {
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
        let seconds = if self.is_measured { limit.seconds } else { 0.0 };
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
fn overhead<'a>(launches: impl Iterator<Item = &'a pawl_api::status::LaunchStatus>) -> f64 {
    let outside = launches.filter(|launch| launch.kind == LaunchKind::Measure).filter_map(|launch| {
        let speed = launch.measured.items_per_second.as_ref()?.value();
        let seconds = launch.measured.wall_seconds.as_ref()?.value();
        Some((seconds - launch.measured.items as f64 / speed).max(0.0))
    });
    let (count, sum) = outside.fold((0.0, 0.0), |(count, sum), seconds| (count + 1.0, sum + seconds));
    if count > 0.0 { sum / count } else { 0.0 }
}
