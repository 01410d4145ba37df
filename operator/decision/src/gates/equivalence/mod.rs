//! Verifies the declaration `numerics: Equivalent` by the training losses of pairs of launches with the same seed.
//!
//! Another order of rounding changes a loss by about the unit roundoff in the first steps. Training then amplifies the
//! difference until it is noise about the same curve, whose size is known only from pairs with other seeds. So there
//! are three answers: the losses of every pair agree up to rounding, or their mean difference is shown to be small; the
//! candidate is shown to be worse by more than rounding; or neither, and then the quality gates decide.

#[cfg(test)]
pub(crate) mod simulated;

use super::{Subject, Verdict};
use crate::reason::Reason;
use crate::statistics::sequential::{Interval, alpha, interval};
use pawl_api::status::LaunchStatus;
use pawl_contract::script::{Monitor, MonitorSource};
use pawl_contract::settings::{Precision, Settings};
use std::collections::BTreeMap;

/// Relative difference of losses up to which rounding may be the cause.
const ROUNDING: f64 = 5e-3;
/// Relative difference of the mean losses that is no regression, as that of the validation loss without a gate.
const MARGIN: f64 = 1e-2;
/// Type I error rate of `LossDiverged`.
const ERROR: f64 = 0.01;
/// A loss that has fallen below this share of the first one is compared with this share: almost zero, it may multiply
/// without harm.
const LEAST: f64 = 0.05;

/// The difference that remains allowed after the first quarters of a launch that was ended by time, by their number:
/// one that grows steadily reaches the whole one by the middle of the second half.
const SHARES: [f64; 4] = [1.0 / 6.0, 1.0 / 2.0, 2.0 / 3.0, 1.0];

/// The training losses of a pair, at equal steps.
#[derive(Clone, Debug)]
struct Losses {
    seed: u32,
    /// Share of the allowed differences that applies: less than 1 if a launch was ended by time.
    share: f64,
    control: Vec<f64>,
    candidate: Vec<f64>,
}

/// What the losses of all pairs show.
#[derive(Clone, Debug, PartialEq)]
enum Agreement {
    /// They agree, or there are none.
    Same,
    /// The candidate's are higher: by more than [`MARGIN`], and not by chance.
    Worse(Interval),
    /// Neither; the human-readable reason.
    Unclear(String),
}

impl Losses {
    /// The losses of a pair of launches that have so many steps unless they are ended by time.
    fn of(of_control: &LaunchStatus, of_candidate: &LaunchStatus, steps: u64) -> Option<Self> {
        let curve = |launch: &LaunchStatus| launch.curve.iter().map(|loss| loss.value()).collect::<Vec<_>>();
        let loss = |launch: &LaunchStatus| Some(vec![launch.measured.loss.as_ref()?.value()]);
        let (mut control, mut candidate) = (curve(of_control), curve(of_candidate));
        if control.is_empty() || candidate.is_empty() {
            (control, candidate) = (loss(of_control)?, loss(of_candidate)?);
        }
        // One of slow steps has ended after fewer quarters.
        let both = control.len().min(candidate.len());
        control.truncate(both);
        candidate.truncate(both);
        let short = |launch: &LaunchStatus| (1..steps).contains(&launch.measured.steps);
        let ended_by_time = short(of_control) || short(of_candidate);
        let share = SHARES.get(both.saturating_sub(1)).filter(|_| ended_by_time).copied().unwrap_or(1.0);
        Some(Self { seed: of_control.seed, share, control, candidate })
    }

    /// Relative difference of `losses` from those of the control.
    fn differences(&self, losses: &[f64]) -> Vec<f64> {
        let least = self.control.first().map_or(0.0, |first| LEAST * first.abs());
        let relative = |(a, b): (&f64, &f64)| (b - a) / a.abs().max(least).max(f64::MIN_POSITIVE);
        self.control.iter().zip(losses).map(relative).collect()
    }

    /// Whether the first losses agree up to `bound`, and the others up to [`ROUNDING`].
    fn agree(&self, bound: f64) -> bool {
        let found = self.differences(&self.candidate);
        let bounds = std::iter::once(bound).chain(std::iter::repeat(ROUNDING));
        found.iter().zip(bounds).all(|(by, most)| by.abs() <= most * self.share)
    }

    /// Mean relative difference over the second half of the launch.
    fn late(&self) -> f64 {
        let found = self.differences(&self.candidate);
        let half = &found[found.len() / 2..];
        half.iter().sum::<f64>() / half.len() as f64
    }
}

/// Relative difference of a candidate's training losses from those of its control, the mean over the second half of
/// what both recorded: what `numerics: Equivalent` is tested by. `None` if a launch has none.
pub fn loss_difference(control: &LaunchStatus, candidate: &LaunchStatus) -> Option<f64> {
    Some(Losses::of(control, candidate, 0)?.late())
}

/// Relative difference of the losses of the first quarter of two launches with equal batches. The loss is a mean over
/// many numbers, whose errors of about the unit roundoff mostly cancel out; what remains is amplified by a quarter of
/// the steps.
fn first_bound(settings: &Settings, built_in: bool) -> f64 {
    match settings.precision {
        None if !built_in => ROUNDING,
        None | Some(Precision::Fp32) => 1e-3,
        Some(Precision::Tf32 | Precision::Fp16) => 2e-3,
        Some(Precision::Bf16 | Precision::Fp8) => ROUNDING,
    }
}

/// Whether launches with equal settings and seeds differ by more than rounding from the start: their batches or weights
/// are others in each launch, so that each pair is an independent sample.
fn never_repeats(pairs: &[Losses], bound: f64) -> bool {
    let first = |losses: Vec<f64>| losses.first().is_some_and(|by| by.abs() > bound);
    let differs = |a: &Losses, b: &Losses| a.seed == b.seed && first(a.differences(&b.control));
    pairs.iter().enumerate().any(|(index, a)| pairs[..index].iter().any(|b| differs(a, b)))
}

/// Independent differences, each of a pair or the mean of all pairs of a seed: another launch with this seed has the
/// same rounding.
fn samples(pairs: &[Losses], bound: f64) -> Vec<f64> {
    if never_repeats(pairs, bound) {
        return pairs.iter().map(Losses::late).collect();
    }
    let mut seeds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for pair in pairs {
        seeds.entry(pair.seed).or_default().push(pair.late());
    }
    seeds.values().map(|found| found.iter().sum::<f64>() / found.len() as f64).collect()
}

/// Compares the losses of all pairs: `bound` is that of the first ones, `alpha` the error rate of an agreement.
fn compare(pairs: &[Losses], bound: f64, alpha: f64) -> Agreement {
    if pairs.iter().all(|pair| pair.agree(bound)) {
        return Agreement::Same;
    }
    let samples = samples(pairs, bound);
    let (strict, usual) = (interval(&samples, ERROR), interval(&samples, alpha));
    let higher = |found: &Interval| found.mean > MARGIN && found.bounds.is_some_and(|(lower, _)| lower > 0.0);
    if let Some(interval) = strict.filter(higher) {
        return Agreement::Worse(interval);
    }
    let margin = MARGIN * pairs.iter().map(|pair| pair.share).fold(1.0, f64::min);
    match usual {
        Some(Interval { bounds: Some((lower, upper)), .. }) if -margin <= lower && upper <= margin => Agreement::Same,
        Some(found) => Agreement::Unclear(format!("training losses differ by {}", shown(&found))),
        None => Agreement::Unclear("training losses cannot be compared".to_owned()),
    }
}

/// `1.23 % [0.51, 1.95] on average`.
fn shown(interval: &Interval) -> String {
    let mean = interval.mean * 100.0;
    match interval.bounds {
        Some((lower, upper)) => format!("{mean:.2} % [{:.2}, {:.2}] on average", lower * 100.0, upper * 100.0),
        None => format!("{mean:.2} % with one seed, which has no interval"),
    }
}

fn agreement(subject: &Subject<'_>) -> Agreement {
    let comparison = &subject.comparison;
    let steps = comparison.measured_steps();
    let losses: Vec<Losses> =
        comparison.pairs(0).0.iter().filter_map(|pair| Losses::of(pair.control, pair.candidate, steps)).collect();
    let built_in = subject.spec().workload.command.is_empty();
    let bound = first_bound(&comparison.control, built_in).max(first_bound(&comparison.candidate, built_in));
    compare(&losses, bound, alpha(&subject.spec().analysis))
}

/// Why a phase that declares `numerics: Equivalent` cannot be judged by its training losses so far.
pub(crate) fn unclear(subject: &Subject<'_>) -> Option<String> {
    if subject.phase.is_none() || subject.declares_change() {
        return None;
    }
    match agreement(subject) {
        Agreement::Unclear(why) => Some(why),
        Agreement::Same | Agreement::Worse(_) => None,
    }
}

/// Whether the job reports no validation by its declaration.
fn validates_never(monitor: Option<&Monitor>) -> bool {
    monitor.is_some_and(|monitor| monitor.source == MonitorSource::Log && monitor.validation.is_none())
}

/// Fails a candidate whose training loss is worse than its control's beyond rounding. One whose losses show neither
/// that nor that they agree is left to the quality gates.
pub(super) fn losses(subject: &Subject<'_>) -> Option<Verdict> {
    if subject.declares_change() {
        return None;
    }
    let name = subject.phase.map(|phase| phase.name.as_str()).unwrap_or_default();
    match agreement(subject) {
        Agreement::Same => None,
        Agreement::Worse(interval) => {
            let message = format!(
                "training losses are higher than with the settings accepted so far by {}, allowed: {} %: the phase changes the \
                 numerics (declare phases[{name}].numerics: Changed)",
                shown(&interval),
                MARGIN * 100.0
            );
            Some(Verdict::Fails { trigger: None, reason: Reason::LossDiverged, message })
        }
        Agreement::Unclear(why) if validates_never(subject.spec().workload.monitor.as_ref()) => {
            let message = format!("{why}, and no validation can decide: set workload.monitor.validation");
            Some(Verdict::Inconclusive { reason: Reason::NumericsUnclear, message })
        }
        Agreement::Unclear(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(seed: u32, control: &[f64], factor: f64) -> Losses {
        let candidate = control.iter().map(|loss| loss * factor).collect();
        Losses { seed, share: 1.0, control: control.to_vec(), candidate }
    }

    #[test]
    fn each_pair_is_compared_with_its_own_seed() {
        // The seeds differ by more than each pair does.
        let losses = [2.58, 2.31, 2.50];
        let all = |factor: f64| -> Vec<_> { (0..3).map(|seed| one(seed, &[losses[seed as usize]], factor)).collect() };
        assert_eq!(compare(&all(1.004), ROUNDING, 0.05), Agreement::Same);
        assert!(matches!(compare(&all(1.1), ROUNDING, 0.05), Agreement::Worse(_)));
        assert!(matches!(compare(&all(0.9), ROUNDING, 0.05), Agreement::Unclear(_)), "a better loss is no regression");
        assert_eq!(compare(&[], ROUNDING, 0.05), Agreement::Same);
    }

    #[test]
    fn one_number_is_no_proof_of_a_divergence() {
        let pair = Losses { seed: 42, share: 1.0, control: vec![8.14], candidate: vec![8.20] };
        let Agreement::Unclear(why) = compare(&[pair.clone(), pair], ROUNDING, 0.05) else { panic!() };
        assert_eq!(why, "training losses differ by 0.74 % with one seed, which has no interval");
    }

    #[test]
    fn a_loss_near_zero_may_multiply_and_other_batches_are_seen() {
        let fallen = |last: f64| Losses {
            seed: 1,
            share: 1.0,
            control: vec![1.0, 0.1, 1e-3, 1e-5],
            candidate: vec![1.0, 0.1, 1e-3, last],
        };
        assert!(fallen(1e-4).agree(1e-3) && !fallen(1e-3).agree(1e-3));
        // Equal at the end, but not from the start.
        let other = Losses { seed: 1, share: 1.0, control: vec![1.0; 4], candidate: vec![1.004, 1.0, 1.0, 1.0] };
        assert!(other.agree(ROUNDING) && !other.agree(1e-3));
    }
}
