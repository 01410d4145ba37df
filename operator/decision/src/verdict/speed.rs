//! Speed: the lower bound must clear the threshold.

use super::sequential::{Interval, Sequential, sequential};
use super::{Trial, Verdict};
use crate::comparison::Comparison;
use crate::launch::{Launch, Work};
use pawl_api::spec::{Analysis, OnInconclusive, Trigger};
use pawl_api::status::{Arm, Purpose, Speedup};
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::LaunchKind;

/// Share of the window spent waiting for data above which the loader, not the phase, explains low speed.
const LOADER_BOUND_SHARE: f64 = 0.25;

/// What the pairs say about a threshold, and the launches that are missing for the next look.
pub(crate) fn compare(comparison: &Comparison<'_>, threshold: f64) -> (Sequential, Vec<Launch>) {
    let analysis = &comparison.draft.spec.analysis;
    let (pairs, _) = comparison.pairs(0);
    let ratios: Vec<f64> = pairs.iter().map(super::super::comparison::Pair::ratio).collect();
    let said = sequential(&ratios, threshold, analysis);
    let missing = match said {
        Sequential::More(wanted) => comparison.pairs(wanted).1,
        Sequential::Above(_) | Sequential::Below(_) | Sequential::Undecided(_) => Vec::new(),
    };
    (said, missing)
}

/// The interval as it stands in the status.
pub(crate) fn status(interval: &Interval) -> Option<Speedup> {
    Some(Speedup {
        estimate: Decimal::from_f64(interval.mean)?,
        lower: interval.bounds.and_then(|(lower, _)| Decimal::from_f64(lower)),
        upper: interval.bounds.and_then(|(_, upper)| Decimal::from_f64(upper)),
        pairs: interval.count as u32,
    })
}

/// The interval for people.
pub(crate) fn shown(interval: &Interval) -> String {
    match interval.bounds {
        Some((lower, upper)) => {
            format!("speedup {:.3} [{lower:.3}, {upper:.3}] from {} pairs", interval.mean, interval.count)
        }
        None => format!("speedup {:.3} from a single pair (SinglePair: no interval)", interval.mean),
    }
}

/// The interval that a comparison has reached; `None` before the first look.
pub(crate) fn reached(comparison: &Comparison<'_>, threshold: f64) -> Option<Interval> {
    match compare(comparison, threshold).0 {
        Sequential::Above(interval) | Sequential::Below(interval) | Sequential::Undecided(interval) => Some(interval),
        Sequential::More(_) => over_all_pairs(comparison, super::sequential::share),
    }
}

/// The interval of a comparison that decides nothing: one look, at the whole error probability.
pub(crate) fn measured(comparison: &Comparison<'_>) -> Option<Interval> {
    over_all_pairs(comparison, |analysis, _| super::sequential::alpha(analysis))
}

/// The interval over the pairs that there are, at the error probability that `error` gives for so many.
fn over_all_pairs(comparison: &Comparison<'_>, error: impl Fn(&Analysis, usize) -> f64) -> Option<Interval> {
    let (pairs, _) = comparison.pairs(0);
    let logs: Vec<f64> = pairs.iter().map(|pair| pair.ratio().ln()).collect();
    let interval = super::sequential::interval(&logs, error(&comparison.draft.spec.analysis, logs.len()))?;
    let bounds = interval.bounds.map(|(lower, upper)| (lower.exp(), upper.exp()));
    Some(Interval { mean: interval.mean.exp(), bounds, ..interval })
}

/// The median of the finite values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 0 => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

/// The phase is not faster than asked for, or that is not known yet. The candidate is preflighted before it runs.
pub(super) fn speedup(trial: &Trial<'_>) -> Option<Verdict> {
    let comparison = &trial.comparison;
    let threshold = trial.phase.min_speedup();
    let (said, missing) = compare(comparison, threshold);
    match said {
        Sequential::More(_) => {
            let checked = comparison.find(LaunchKind::Preflight, Arm::Candidate, 0).is_some();
            let check = (!checked).then(|| comparison.launch(LaunchKind::Preflight, Arm::Candidate, 0));
            Some(Verdict::Run(Work {
                purpose: Purpose::Speed,
                phase: Some(trial.phase.name.clone()),
                trial: comparison.trial.clone(),
                launches: check.into_iter().chain(missing).collect(),
                stop_on_failure: true,
            }))
        }
        Sequential::Above(_) => None,
        Sequential::Below(interval) => Some(slow(trial, &interval)),
        Sequential::Undecided(interval) => match comparison.draft.spec.analysis.on_inconclusive {
            OnInconclusive::Accept => None,
            OnInconclusive::RollBack => Some(Verdict::Inconclusive {
                reason: "SpeedUndecided",
                message: format!("{}: neither bound clears minSpeedup {threshold}", shown(&interval)),
            }),
        },
    }
}

fn slow(trial: &Trial<'_>, interval: &Interval) -> Verdict {
    let threshold = trial.phase.min_speedup();
    let measured = trial.comparison.candidates().filter(|launch| launch.kind == LaunchKind::Measure);
    let wait = median(measured.filter_map(|launch| launch.loader_wait_share.as_ref()).map(|share| share.value()));
    let message = format!("{} is below minSpeedup {threshold}", shown(interval));
    let loader_rung = || {
        let rung = crate::ladder::rung(&trial.comparison) as usize;
        trial.phase.fallbacks.iter().skip(rung).any(|fallback| fallback.when.contains(&Trigger::LoaderBound))
    };
    match wait {
        Some(share) if share > LOADER_BOUND_SHARE && loader_rung() => Verdict::Fails {
            trigger: Some(Trigger::LoaderBound),
            reason: "LoaderBound",
            message: format!("{message}; steps wait for data {share:.3} of the time (limit {LOADER_BOUND_SHARE})"),
        },
        Some(_) | None => {
            Verdict::Fails { trigger: Some(Trigger::SpeedBelowThreshold), reason: "SpeedBelowThreshold", message }
        }
    }
}

/// Nothing speaks against the phase.
pub(super) fn holds(trial: &Trial<'_>) -> Verdict {
    let threshold = trial.phase.min_speedup();
    match compare(&trial.comparison, threshold).0 {
        Sequential::Undecided(interval) => Verdict::Holds {
            reason: "AcceptedInconclusive",
            message: format!("{}: undecided, kept by analysis.onInconclusive", shown(&interval)),
        },
        Sequential::Above(interval) | Sequential::Below(interval) => Verdict::Holds {
            reason: if interval.bounds.is_some() { "SpeedAboveThreshold" } else { "SinglePair" },
            message: format!("{} clears minSpeedup {threshold}", shown(&interval)),
        },
        // `speedup` asks for more pairs first.
        Sequential::More(pairs) => Verdict::Inconclusive {
            reason: "SpeedUndecided",
            message: format!("{pairs} pairs are needed for a verdict"),
        },
    }
}
