//! Measures a script by what it reports: steps, losses and validation metrics become the progress and the report of its
//! launch.

mod evidence;

use super::count::{Count, Mark};
use super::window::{Span, Window};
use pawl_contract::checkpoint::{CheckpointRef, TrainedPart};
use pawl_contract::exit::Outcome;
use pawl_contract::log::Reading;
use pawl_contract::losses::{Curve, SpikeWatch};
use pawl_contract::measured::{Measured, Spread, Validation};
use pawl_contract::plan::{Budget, LOSS, LaunchKind, LaunchPlan, WindowLimit};
use pawl_contract::progress::{Progress, RankPhase};
use pawl_contract::report::{Failure, Report, printable, truncated};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Steps without measurement at the start of a launch whose budget names none.
const WARMUP: u64 = 10;
/// Minimum length of a window of the guard.
const LEAST_STEPS: u64 = 10;
const LEAST_TIME: Duration = Duration::from_secs(2);
/// Most bytes of a line that are quoted.
const MAX_QUOTED: usize = 200;
/// Number of newest intervals from which the spread of step times is computed.
const INTERVALS: usize = 4096;

/// Why the agent ends a script.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// All steps of a measurement were seen.
    Complete,
    /// A loss shows that the launch has failed.
    Failed(Outcome, String),
}

/// Where a training was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Standing {
    /// Optimizer steps.
    pub(super) step: u64,
    /// Items of the whole gang.
    pub(super) items: u64,
    /// The losses by which the next ones are judged.
    pub(super) losses: SpikeWatch,
    /// The parts of the model, the oldest first; empty where it is not known what trained it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) trained: Vec<TrainedPart>,
    /// What was in the quarantine when the launch began; not recorded with its checkpoints.
    #[serde(skip)]
    pub(super) quarantined: Vec<String>,
    /// Steps of an epoch, if the script counts anew in each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) epoch_steps: Option<u64>,
}

/// What is known of a script before it starts.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// Items of the whole gang in an optimizer step, where a reading has only steps or only items.
    pub(crate) items_per_step: u64,
    /// Forward and backward passes of a rank in an optimizer step.
    pub(crate) micro_steps: u64,
    /// Whether a placeholder gives it the number of steps.
    pub(crate) is_given_steps: bool,
    /// The pattern by which its output is read; `None`: it reports by its KubeflowCallback.
    pub(crate) pattern: Option<String>,
    /// Whether the pattern reads losses.
    pub(crate) has_losses: bool,
}

/// The output of a script that is measured by it, up to the first reading.
#[derive(Debug)]
struct Output {
    pattern: String,
    /// Lines in which nothing was found.
    lines: u64,
    newest: String,
}

/// The measurements of a launch so far.
#[derive(Debug)]
pub(crate) struct Meter {
    launch: String,
    kind: LaunchKind,
    budget: Budget,
    /// Whether it writes checkpoints.
    saves: bool,
    limit: Option<WindowLimit>,
    items_per_step: u64,
    micro_steps: u64,
    is_given_steps: bool,
    begun: Instant,
    count: Count,
    /// Lines of the output in which something was found: signs of life.
    lines: u64,
    step: u64,
    items: u64,
    /// Step of the first reading of training.
    first: Option<u64>,
    /// `None`: the script reports by its KubeflowCallback.
    output: Option<Output>,
    /// Largest number of steps between two readings.
    largest_gap: u64,
    /// The last reading, unless an evaluation followed it: that time is not measured.
    mark: Option<Mark>,
    /// Time of the first reading of training.
    warming_up_since: Option<Instant>,
    is_warm: bool,
    /// The steps by which the speed is measured.
    measured: Window,
    /// The open window of the guard.
    window: Span,
    windows: u64,
    newest: Option<f64>,
    intervals: VecDeque<(f64, u64)>,
    loss: Option<f64>,
    /// Whether losses are of steps that depend on the time.
    sampled: bool,
    /// Steps between two losses and the step of the newest one, as long as the first one has come after as many.
    regular: Option<(u64, u64)>,
    /// Mean loss of all steps of the launch.
    mean_loss: Option<f64>,
    curve: Curve,
    /// Whether a loss was read within the steps of the budget.
    has_compared: bool,
    /// When all steps of a measurement were seen whose script may count micro-steps.
    seen_all: Option<Instant>,
    spikes: SpikeWatch,
    /// Where the launch resumed; `None`: the training has begun with it.
    resumed: Option<(u64, u64)>,
    /// The parts of the model, this launch the last one; empty: not known.
    trained: Vec<TrainedPart>,
    quarantined: Vec<String>,
    /// Step and items of the last healthy loss.
    healthy: Option<(u64, u64)>,
    /// The newest checkpoint.
    checkpoint: Option<CheckpointRef>,
    /// Step of the newest checkpoint that is whole.
    whole_until: u64,
    first_validation: Option<Validation>,
    validation: Option<Validation>,
    /// Whether the newest validation came without its step, after the newest reading of training.
    validated_since: bool,
    /// Number of readings of training after which a validation came, so that the time to the next one is not that of
    /// steps.
    validations_between: u64,
    /// Set once.
    pub(super) verdict: Option<Verdict>,
}

impl Meter {
    /// Before the first reading.
    pub(super) fn new(plan: &LaunchPlan, expected: Expected) -> Self {
        let Expected { items_per_step, micro_steps, is_given_steps, pattern, has_losses } = expected;
        // The number of ranks is not known here: with `globalBatch`, steps may have one micro-step each.
        let is_derived = plan.settings.global_batch.is_some();
        let limit = plan.window_limit(if is_derived { 1 } else { plan.settings.accumulation_steps() });
        Self {
            launch: plan.launch.clone(),
            kind: plan.kind,
            limit,
            budget: plan.budget.clone(),
            saves: plan.checkpoint.is_some(),
            items_per_step: items_per_step.max(1),
            micro_steps,
            is_given_steps,
            begun: Instant::now(),
            count: Count::new(has_losses, plan.kind != LaunchKind::Measure),
            lines: 0,
            step: 0,
            items: 0,
            first: None,
            output: pattern.map(|pattern| Output { pattern, lines: 0, newest: String::new() }),
            largest_gap: 0,
            mark: None,
            warming_up_since: None,
            is_warm: false,
            measured: if plan.kind == LaunchKind::Measure {
                Window::of_measurement(&plan.budget, limit)
            } else {
                Window::default()
            },
            window: Span::default(),
            windows: 0,
            newest: None,
            intervals: VecDeque::new(),
            loss: None,
            sampled: false,
            regular: Some((0, 0)),
            mean_loss: None,
            curve: Curve::default(),
            has_compared: false,
            seen_all: None,
            spikes: SpikeWatch::default(),
            resumed: None,
            trained: Vec::new(),
            quarantined: Vec::new(),
            healthy: None,
            checkpoint: None,
            whole_until: 0,
            first_validation: None,
            validation: None,
            validated_since: false,
            validations_between: 0,
            verdict: None,
        }
    }

    /// Notes where the launch resumes: its losses are judged by those before.
    pub(super) fn resumes(&mut self, at: Standing) {
        let Standing { step, items, losses, trained, quarantined, epoch_steps } = at;
        self.count.resumes((step, items), epoch_steps);
        (self.spikes, self.trained, self.quarantined) = (losses, trained, quarantined);
        self.resumed = (step > 0).then_some((step, items));
        if self.has_nothing_left() {
            (self.step, self.items) = (step, items);
        }
    }

    /// Whether the launch resumes the checkpoint of its last step, as when the report of the gang that wrote it was
    /// lost.
    pub(super) fn has_nothing_left(&self) -> bool {
        let of_epochs = || Some(self.count.length()?.saturating_mul(self.budget.epochs?.into()));
        let end = self.steps().or_else(of_epochs);
        let is_end = |(step, _): (u64, u64)| end.is_some_and(|end| step >= end);
        self.kind == LaunchKind::Train && self.resumed.is_some_and(is_end)
    }

    /// Notes the newest checkpoint. `is_whole`: nothing has changed in it for a while.
    pub(super) fn saw(&mut self, checkpoint: CheckpointRef, is_whole: bool) {
        self.whole_until = if is_whole { checkpoint.step } else { self.whole_until };
        self.checkpoint = Some(checkpoint);
    }

    /// Where the training is.
    pub(super) fn standing(&self) -> Standing {
        let (step, items) = self.resumed.unwrap_or_default().max((self.step, self.items));
        let (losses, trained, epoch_steps) = (self.spikes.clone(), self.trained.clone(), self.count.length());
        Standing { step, items, losses, trained, quarantined: Vec::new(), epoch_steps }
    }

    /// The last position that is known to be good: that of the last healthy loss; without one, the checkpoint that was
    /// resumed may be what is damaged.
    fn last_good(&self) -> (u64, u64) {
        let before = |(step, items): (u64, u64)| (step.saturating_sub(1), items.saturating_sub(1));
        self.healthy.or(self.resumed.map(before)).unwrap_or_default()
    }

    /// Adds what the script reported at a time.
    pub(super) fn observe(&mut self, reading: Reading, at: Instant) {
        match reading {
            Reading::Training { step, items, epoch, loss } => {
                self.lines += u64::from(self.output.is_some());
                let placed = if step.is_none() && items.is_none() {
                    self.count.confirm()
                } else {
                    let (step, items) = self.position(step, items);
                    self.count.add(Mark { step, items, at }, epoch, loss.is_some())
                };
                if !placed.is_training {
                    // That a loss is NaN says something in any place.
                    loss.filter(|loss| !loss.is_finite()).into_iter().for_each(|loss| self.record(loss));
                    return;
                }
                if placed.withdraws {
                    self.withdraw();
                }
                let gap = self.largest_gap.max(1);
                let before = self.step;
                let begins = (self.first.is_none() && placed.marks.is_empty()).then_some(Mark {
                    step: self.step,
                    items: self.items,
                    at,
                });
                placed.marks.into_iter().chain(begins).for_each(|mark| self.reach(mark));
                if let Some(loss) = loss {
                    self.record(loss);
                }
                self.judge(gap, before, at);
            }
            Reading::Validation { step, items, metrics } => {
                self.validated_since = step.is_none() && items.is_none();
                let (step, items) = self.position(step, items);
                let (_, items) = self.count.absolute((step, items), self.step);
                self.validations_between += u64::from(self.mark.take().is_some());
                if self.seen_all.is_some() && self.verdict.is_none() {
                    self.verdict = Some(Verdict::Complete);
                }
                self.validate(items, metrics);
            }
        }
    }

    /// Forgets the steps so far: they were no training.
    fn withdraw(&mut self) {
        (self.step, self.items, self.first, self.largest_gap, self.mark) = (0, 0, None, 0, None);
        (self.warming_up_since, self.is_warm, self.newest) = (None, false, None);
        (self.measured, self.window) = (Window::default(), Span::default());
        self.intervals.clear();
    }

    /// Notes that the training has reached a step.
    fn reach(&mut self, mark: Mark) {
        if mark.step <= self.step && self.first.is_some() {
            return;
        }
        if self.first.is_none() && mark.step > 1 && self.validated_since {
            // Between the first step and this one, or before: nobody knows.
            self.first_validation = None;
        }
        self.validated_since = false;
        self.advance(mark);
    }

    /// Adds a line of the output in which nothing was found.
    pub(super) fn pass_over(&mut self, line: &str) {
        let line = line.trim();
        if let Some(output) = self.output.as_mut().filter(|_| self.first.is_none() && !line.is_empty()) {
            output.lines += 1;
            output.newest = printable(truncated(line, MAX_QUOTED));
        }
    }

    /// Notes that the script reports losses at times, not at steps: those of two launches are of different steps, so
    /// that only the mean of all steps compares them.
    pub(super) fn sample(&mut self) {
        self.sampled = true;
    }

    /// Sets the mean loss of all steps of the launch.
    pub(super) fn conclude(&mut self, mean_loss: f64) {
        self.mean_loss = Some(mean_loss).filter(|loss| loss.is_finite());
    }

    fn position(&self, step: Option<u64>, items: Option<u64>) -> (u64, u64) {
        match (step, items) {
            (Some(step), Some(items)) => (step, items),
            (Some(step), None) => (step, step.saturating_mul(self.items_per_step)),
            (None, Some(items)) => (items / self.items_per_step, items),
            (None, None) => (self.step, self.items),
        }
    }

    fn advance(&mut self, new: Mark) {
        // The steps before the first reading of a training may be those before a checkpoint.
        if self.first.is_some() || self.kind != LaunchKind::Train {
            self.largest_gap = self.largest_gap.max(new.step - self.step);
        }
        (self.step, self.items) = (new.step, new.items);
        let first = *self.first.get_or_insert(new.step);
        if self.is_warming_up(first, new) {
            return;
        }
        if let Some(old) = self.mark.replace(new) {
            let time = new.at.saturating_duration_since(old.at);
            let span = Span { steps: new.step - old.step, items: new.items.saturating_sub(old.items), time };
            self.measure(span);
        }
    }

    /// Whether the steps up to a reading are those of the warm-up.
    fn is_warming_up(&mut self, first: u64, new: Mark) -> bool {
        if self.is_warm {
            return false;
        }
        let (begin, warmup) = match (self.kind, self.budget.warmup_steps) {
            (LaunchKind::Measure, Some(warmup)) => (0, warmup),
            // A training may have resumed at this step.
            _ => (first, WARMUP),
        };
        let since = *self.warming_up_since.get_or_insert(new.at);
        let done = (new.step.saturating_sub(begin), new.at.saturating_duration_since(since).as_secs_f64());
        let lasted = self.window_limit().is_some_and(|limit| limit.is_reached(done, limit.warmup_steps));
        self.is_warm = done.0 >= warmup || lasted;
        !self.is_warm
    }

    /// The limit of a measurement by time: of one whose losses are at the same steps in each launch, so that fewer of
    /// them can be compared.
    fn window_limit(&self) -> Option<WindowLimit> {
        let comparable = !self.sampled && self.regular.is_some();
        self.limit.filter(|_| comparable)
    }

    fn measure(&mut self, span: Span) {
        self.measured.add(span);
        self.window.add(span);
        self.intervals.push_back((span.time.as_secs_f64() / span.steps.max(1) as f64, span.steps));
        if self.intervals.len() > INTERVALS {
            self.intervals.pop_front();
        }
        if self.window.steps >= LEAST_STEPS && self.window.time >= LEAST_TIME {
            self.newest = self.window.rate();
            self.windows += 1;
            self.window = Span::default();
        }
    }

    fn record(&mut self, loss: f64) {
        if self.verdict.is_some() {
            return;
        }
        if !loss.is_finite() {
            let message = format!(
                "the training loss is {loss} at step {}; lower settings.learningRate, set settings.gradientClip, or use a wider \
                 settings.precision",
                self.step
            );
            self.verdict = Some(Verdict::Failed(Outcome::NonFinite, message));
            return;
        }
        self.loss = Some(loss);
        self.regular = self.regular.and_then(|(spacing, newest)| {
            let spacing = if newest == 0 { self.step } else { spacing };
            (spacing > 0 && self.step == newest + spacing).then_some((spacing, self.step))
        });
        // Launches are compared by the losses of the same steps.
        if self.kind != LaunchKind::Measure || self.steps().is_none_or(|steps| self.step <= steps) {
            self.has_compared = true;
            self.curve.add(self.items, loss);
        }
        let spike = self.spikes.add(loss);
        if self.spikes.is_healthy() {
            self.healthy = Some((self.step, self.items));
        }
        if let Some(bound) = spike {
            let message = format!(
                "the training loss spiked at step {}: {loss:.4}, three consecutive values above {bound:.4}; lower \
                 settings.learningRate, or set settings.gradientClip or warmupSteps",
                self.step
            );
            self.verdict = Some(Verdict::Failed(Outcome::LossSpike, message));
        }
    }

    fn validate(&mut self, items: u64, mut metrics: BTreeMap<String, f64>) {
        let loss = metrics.get(LOSS).copied();
        if self.verdict.is_none()
            && let Some(loss) = loss.filter(|loss| !loss.is_finite())
        {
            let message = format!(
                "the validation loss is {loss} after step {}; lower settings.learningRate or set settings.gradientClip",
                self.step
            );
            self.verdict = Some(Verdict::Failed(Outcome::NonFinite, message));
        }
        metrics.retain(|_, value| value.is_finite());
        let validation = Validation { items, metrics };
        if self.first.is_none() {
            self.first_validation = Some(validation.clone());
        }
        self.validation = Some(validation);
    }

    /// Total number of optimizer steps, where the budget determines it.
    fn steps(&self) -> Option<u64> {
        match (self.budget.warmup_steps, self.budget.window_steps) {
            (Some(warmup), Some(window)) => Some(warmup + window),
            _ => self.budget.items.map(|items| items.div_ceil(self.items_per_step)),
        }
    }

    /// Whether all steps were seen, of a number that the budget determines.
    pub(super) fn is_at_end(&self) -> bool {
        self.steps().is_some_and(|steps| self.step >= steps)
    }

    /// Whether a measurement has lasted as long as the limit of its budget says.
    fn is_over(&self) -> bool {
        self.window_limit().is_some() && self.measured.is_over()
    }

    /// Items of the complete measurement, if it has ended by time before them.
    fn planned_items(&self) -> Option<u64> {
        let steps = self.steps().filter(|steps| self.step < *steps && self.is_over())?;
        Some(steps.saturating_mul(self.items_per_step))
    }

    fn rate(&self) -> Option<f64> {
        self.measured.rate()
    }

    /// Counts the steps after the last reading of a script that was done. A validation that followed that reading is
    /// from the end, unless the script has reported its step.
    pub(super) fn finish(&mut self) {
        if self.kind != LaunchKind::Measure
            && let Some(items) = self.budget.items.filter(|items| *items > self.items)
        {
            (self.step, self.items) = (items.div_ceil(self.items_per_step), items);
        }
        let items = self.items;
        self.validation.iter_mut().filter(|_| self.validated_since).for_each(|validation| validation.items = items);
    }

    /// The progress; `None` before the first reading.
    pub(super) fn progress(&self) -> Option<Progress> {
        if self.first.is_none() && self.validation.is_none() && self.lines == 0 {
            return None;
        }
        let rate = self.newest.or_else(|| self.rate());
        let total_steps = self.steps();
        let left = total_steps.map(|steps| steps.saturating_sub(self.step).saturating_mul(self.items_per_step));
        Some(Progress {
            phase: Some(if self.first.is_some() { RankPhase::Training } else { RankPhase::Starting }),
            heartbeat: self.lines,
            step: self.step,
            total_steps,
            items: self.items,
            resumed_items: self.resumed.map(|(_, items)| items),
            trained: self.trained.clone(),
            quarantined: self.quarantined.clone(),
            loss: self.loss,
            items_per_second: rate,
            windows: self.windows,
            eta_seconds: left.zip(rate).map(|(items, rate)| items as f64 / rate),
            validation: self.validation.clone(),
            last_checkpoint: self.checkpoint.clone(),
            ..Progress::at_start(&self.launch, self.kind)
        })
    }

    /// Adds the measurements to a report.
    pub(super) fn complete(&self, report: Report) -> Report {
        let measured = Measured {
            steps: self.step,
            items: self.items,
            wall_seconds: Some(self.begun.elapsed().as_secs_f64()),
            items_per_second: self.rate(),
            steady: self.measured.steady().filter(|steady| !steady),
            step_seconds: self.step_seconds(),
            first_validation: self.first_validation.clone(),
            validation: self.validation.clone(),
            loss: self.mean_loss,
            ..Measured::default()
        };
        // Without a loss, Pawl would compare the end of the curve.
        let compares = self.kind != LaunchKind::Measure || !self.sampled || self.mean_loss.is_some();
        let losses = if compares { self.curve.points() } else { Vec::new() };
        let failure = report.outcome.is_divergence().then(|| {
            let (step, items) = self.last_good();
            Failure { rank: Some(0), step, items }
        });
        let planned_items = self.planned_items().filter(|_| report.outcome == Outcome::Done);
        Report { measured, losses, planned_items, last_checkpoint: self.checkpoint.clone(), failure, ..report }
    }

    /// Spread of the seconds of a step, each interval weighted by its steps.
    fn step_seconds(&self) -> Option<Spread> {
        let mut ordered: Vec<_> = self.intervals.iter().copied().collect();
        ordered.sort_by(|a, b| a.0.total_cmp(&b.0));
        let steps: u64 = ordered.iter().map(|(_, steps)| steps).sum();
        let at = |quantile: f64| {
            let mut rank = (quantile * steps.saturating_sub(1) as f64).round() as u64;
            ordered.iter().find_map(|(seconds, steps)| match rank.checked_sub(*steps) {
                None => Some(*seconds),
                Some(rest) => {
                    rank = rest;
                    None
                }
            })
        };
        Some(Spread { p10: at(0.1)?, median: at(0.5)?, p90: at(0.9)? })
    }
}

#[cfg(test)]
mod tests;
