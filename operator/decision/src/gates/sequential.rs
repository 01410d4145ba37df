//! Group-sequential test: interim analyses ("looks") after fixed numbers of pairs, with one-sided t bounds and an
//! alpha-spending function.
//!
//! The error is spent by the power family of Kim and DeMets (Biometrika 74, 1987): after the fraction `t` of all pairs,
//! `alpha * t^3` is spent, so that later looks, which have more data, get more of it. Each look is tested at the error spent
//! since the previous look: by the union bound, the total is at most `alpha` for any correlation of the looks.

use super::disturbed::{Launches, undisturbed};
use pawl_api::spec::{Analysis, OnInconclusive};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Numbers of pairs of the looks: `minPairs`, then two more each, and `maxPairs`.
pub(crate) fn looks(analysis: &Analysis) -> Vec<usize> {
    let last = analysis.max_pairs.clamp(1, 7) as usize;
    let first = (analysis.min_pairs as usize).max(2).min(last);
    let mut looks: Vec<_> = (first..last).step_by(2).collect();
    looks.push(last);
    looks
}

/// Type I error rate of the verdict over all looks, 1e-6 to 0.5.
pub(crate) fn alpha(analysis: &Analysis) -> f64 {
    (analysis.alpha_percent.value() / 100.0).clamp(1e-6, 0.5)
}

/// Type I error rate of the look after `pairs` pairs, or of the next look if there is none at `pairs`.
pub(crate) fn share(analysis: &Analysis, pairs: usize) -> f64 {
    let looks = looks(analysis);
    let next = looks.iter().position(|&look| look >= pairs).unwrap_or(looks.len() - 1);
    let spent = |look: usize| (look as f64 / looks[looks.len() - 1] as f64).powi(3);
    alpha(analysis) * (spent(looks[next]) - next.checked_sub(1).map_or(0.0, |before| spent(looks[before])))
}

/// Mean and one-sided bounds of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub mean: f64,
    /// Lower and upper one-sided bounds, each at the given error rate; absent with one value.
    pub bounds: Option<(f64, f64)>,
    pub count: usize,
    /// Values that were left out because they were disturbed.
    pub repeated: usize,
}

/// The mean of `values` and its one-sided t bounds at error rate `alpha` each. `None` without values, or with one that is
/// not finite.
pub(crate) fn interval(values: &[f64], alpha: f64) -> Option<Interval> {
    let count = values.len();
    if count == 0 || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count as f64;
    let bounds = (count > 1).then(|| {
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
        let error = (variance / count as f64).sqrt();
        let reach = if error > 0.0 { quantile(alpha, count - 1) * error } else { 0.0 };
        (mean - reach, mean + reach)
    });
    Some(Interval { mean, bounds, count, repeated: 0 })
}

/// The upper `alpha` quantile of Student's t.
fn quantile(alpha: f64, freedom: usize) -> f64 {
    match StudentsT::new(0.0, 1.0, freedom as f64) {
        Ok(t) => t.inverse_cdf(1.0 - alpha),
        // Only without degrees of freedom, which `interval` excludes.
        Err(_) => f64::INFINITY,
    }
}

/// Result of a group-sequential test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sequential {
    /// Not decided: the number of pairs required for the next look.
    More(usize),
    /// The lower bound is at least the threshold.
    Above(Interval),
    /// The upper bound is below the threshold.
    Below(Interval),
    /// Not decided after all pairs, or after so many that the others would hardly lead to a verdict.
    Undecided(Interval),
}

/// Logarithms of the ratios of the first pairs of which `wanted` are undisturbed, and the number of disturbed ones among them; the
/// number of pairs required when there are too few. Later pairs do not change the result.
fn first_undisturbed(pairs: &[impl Launches], wanted: usize) -> Result<(Vec<f64>, usize), usize> {
    for end in wanted..=pairs.len() {
        let kept = undisturbed(&pairs[..end]);
        if kept.len() >= wanted {
            return Ok((logs(&kept), end - kept.len()));
        }
    }
    Err(wanted + pairs.len() - undisturbed(pairs).len())
}

/// Number of pairs that are required for `wanted` undisturbed ones; `None` when there are enough.
pub(crate) fn required(pairs: &[impl Launches], wanted: usize) -> Option<usize> {
    first_undisturbed(pairs, wanted).err()
}

/// Logarithms of the ratios, candidate over control.
fn logs(pairs: &[(f64, f64)]) -> Vec<f64> {
    pairs.iter().map(|(control, candidate)| (candidate / control).ln()).collect()
}

/// The interval of the undisturbed `pairs`, as ratios.
pub(crate) fn ratio(pairs: &[impl Launches], error: impl Fn(usize) -> f64) -> Option<Interval> {
    let kept = undisturbed(pairs);
    let found = interval(&logs(&kept), error(kept.len()))?;
    Some(Interval { repeated: pairs.len() - kept.len(), ..as_ratio(found) })
}

/// An interval of logarithms as one of ratios.
fn as_ratio(interval: Interval) -> Interval {
    let bounds = interval.bounds.map(|(lower, upper)| (lower.exp(), upper.exp()));
    Interval { mean: interval.mean.exp(), bounds, ..interval }
}

/// Probability that the last look accepts below which more pairs are not worth it: of phases that do not help, most are given up at
/// the first look, and of those that do, hardly one.
const ACCEPTS: f64 = 0.1;
/// Probability that the last look shows a phase to be too slow below which more pairs are not worth it.
const REJECTS: f64 = 0.5;

/// Whether the pairs that are left would hardly lead to a verdict, by the predictive probabilities that the bounds of the last look
/// are on either side of `threshold`, given the mean and the spread so far. A stop for futility raises no error rate: it only
/// replaces a possible verdict.
fn is_futile(found: &Interval, logs: &[f64], threshold: f64, analysis: &Analysis) -> bool {
    let last = looks(analysis).last().copied().unwrap_or(1);
    let count = logs.len();
    let Some(freedom) = count.checked_sub(1).filter(|freedom| *freedom > 0 && count < last) else { return false };
    let variance = logs.iter().map(|value| (value - found.mean).powi(2)).sum::<f64>() / freedom as f64;
    let (spread, size) = (variance.sqrt(), last as f64);
    let reach = quantile(share(analysis, last), last - 1) * spread / size.sqrt();
    let change = spread * (1.0 / count as f64 - 1.0 / size).sqrt();
    if change == 0.0 {
        // Equal pairs are decided by the first look.
        return false;
    }
    StudentsT::new(0.0, 1.0, freedom as f64).is_ok_and(|t| {
        let accepts = t.sf((threshold + reach - found.mean) / change);
        let rejects = t.cdf((threshold - reach - found.mean) / change);
        accepts < ACCEPTS && rejects < REJECTS
    })
}

/// Tests the `pairs`, in order, against `threshold`, a ratio, at each look. Disturbed
/// pairs do not count. Pairs after the deciding look do not change the result, so that a verdict does not depend on the time of
/// its computation. The intervals are ratios.
pub(crate) fn sequential(pairs: &[impl Launches], threshold: f64, analysis: &Analysis) -> Sequential {
    let mut newest = None;
    for look in looks(analysis) {
        let (logs, repeated) = match first_undisturbed(pairs, look) {
            Ok(found) => found,
            Err(required) => return Sequential::More(required),
        };
        let Some(of_logs) = interval(&logs, share(analysis, look)) else { return Sequential::More(look) };
        let interval = Interval { repeated, ..as_ratio(of_logs) };
        // One pair has no bounds: its estimate decides, and is labelled.
        let (lower, upper) = interval.bounds.unwrap_or((interval.mean, interval.mean));
        if lower >= threshold {
            return Sequential::Above(interval);
        }
        if upper < threshold {
            return Sequential::Below(interval);
        }
        // What is accepted unless it is shown to be slow is measured to the end.
        let may_end = analysis.on_inconclusive == OnInconclusive::RollBack;
        if may_end && is_futile(&of_logs, &logs, threshold.ln(), analysis) {
            return Sequential::Undecided(interval);
        }
        newest = Some(interval);
    }
    newest.map_or(Sequential::More(1), Sequential::Undecided)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_looks_spend_the_error_and_no_more() {
        for (min_pairs, max_pairs) in (1..=7).flat_map(|max| (1..=max).map(move |min| (min, max))) {
            let analysis = Analysis { min_pairs, max_pairs, ..Analysis::default() };
            let shares: Vec<f64> = looks(&analysis).into_iter().map(|look| share(&analysis, look)).collect();
            assert!(
                (shares.iter().sum::<f64>() - alpha(&analysis)).abs() < 1e-12,
                "{min_pairs} to {max_pairs}: {shares:?}"
            );
            assert!(shares.iter().all(|&share| share > 0.0));
        }
        assert_eq!(share(&Analysis::default(), 2), share(&Analysis::default(), 3), "before a look, its own share");
    }

    #[test]
    fn looks_follow_the_spec() {
        let at = |min_pairs, max_pairs| looks(&Analysis { min_pairs, max_pairs, ..Analysis::default() });
        assert_eq!(at(3, 7), [3, 5, 7]);
        assert_eq!(at(3, 6), [3, 5, 6]);
        assert_eq!(at(4, 4), [4]);
        assert_eq!(at(1, 1), [1]);
        assert_eq!(at(1, 3), [2, 3], "two pairs are the fewest with an interval");
        assert_eq!(at(9, 99), [7]);
    }

    #[test]
    fn later_pairs_do_not_change_a_verdict() {
        let analysis = Analysis::default();
        let test = |ratios: &[f64]| {
            let pairs: Vec<(f64, f64)> = ratios.iter().map(|ratio| (1.0, *ratio)).collect();
            sequential(&pairs, 1.02, &analysis)
        };
        let early = test(&[1.3, 1.31, 1.29]);
        assert!(matches!(early, Sequential::Above(_)));
        assert_eq!(test(&[1.3, 1.31, 1.29, 0.2, 0.1]), early);
        assert_eq!(test(&[1.3, 1.0, 1.1]), Sequential::More(5));
        // The second pair is disturbed, and repeated once.
        assert_eq!(test(&[1.3, 0.5, 1.29]), Sequential::More(4));
        let Sequential::Above(repeated) = test(&[1.3, 0.5, 1.29, 1.31]) else { panic!("it is clear") };
        assert_eq!((repeated.count, repeated.repeated), (3, 1));
    }
}
