//! Group-sequential comparison: looks at fixed numbers of pairs, one-sided t bounds, the error shared by the looks.

use pawl_api::spec::Analysis;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Numbers of pairs after which the evidence is looked at: `minPairs`, then two more each, and `maxPairs`.
pub(crate) fn looks(analysis: &Analysis) -> Vec<usize> {
    let last = analysis.max_pairs.clamp(1, 7) as usize;
    let first = (analysis.min_pairs as usize).max(2).min(last);
    let mut looks: Vec<_> = (first..last).step_by(2).collect();
    looks.push(last);
    looks
}

/// Error probability of the whole verdict.
pub(crate) fn alpha(analysis: &Analysis) -> f64 {
    (analysis.alpha_percent.value() / 100.0).clamp(1e-6, 0.5)
}

/// Mean and one-sided bounds of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub mean: f64,
    /// Lower and upper one-sided bounds, each at the error asked for; absent with one value.
    pub bounds: Option<(f64, f64)>,
    pub count: usize,
}

/// The mean of `values` and its one-sided t bounds at error probability `alpha` each. `None` without values.
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
    Some(Interval { mean, bounds, count })
}

/// The upper `alpha` quantile of Student's t.
fn quantile(alpha: f64, freedom: usize) -> f64 {
    match StudentsT::new(0.0, 1.0, freedom as f64) {
        Ok(t) => t.inverse_cdf(1.0 - alpha),
        // Only for no degrees of freedom, which `interval` excludes.
        Err(_) => f64::INFINITY,
    }
}

/// What a sequence of looks says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sequential {
    /// So many pairs are needed for the next look.
    More(usize),
    /// The lower bound clears the threshold.
    Above(Interval),
    /// The upper bound is below the threshold.
    Below(Interval),
    /// All pairs are used up.
    Undecided(Interval),
}

/// Walks through the looks over the pairs' `ratios` (candidate over control, in order). Later pairs than those of the
/// deciding look change nothing, so that a verdict does not depend on when it was asked for. The intervals are ratios.
pub(crate) fn sequential(ratios: &[f64], threshold: f64, analysis: &Analysis) -> Sequential {
    let looks = looks(analysis);
    let share = alpha(analysis) / looks.len() as f64;
    let mut newest = None;
    for &look in &looks {
        let Some(pairs) = ratios.get(..look) else { return Sequential::More(look) };
        let logs: Vec<f64> = pairs.iter().map(|ratio| ratio.ln()).collect();
        let Some(interval) = interval(&logs, share) else { return Sequential::More(look) };
        let interval = Interval {
            mean: interval.mean.exp(),
            bounds: interval.bounds.map(|(lower, upper)| (lower.exp(), upper.exp())),
            ..interval
        };
        // One pair has no bounds: its estimate decides, and is labelled.
        let (lower, upper) = interval.bounds.unwrap_or((interval.mean, interval.mean));
        if lower >= threshold {
            return Sequential::Above(interval);
        }
        if upper < threshold {
            return Sequential::Below(interval);
        }
        newest = Some(interval);
    }
    newest.map_or(Sequential::More(1), Sequential::Undecided)
}
