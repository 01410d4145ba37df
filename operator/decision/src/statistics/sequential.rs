//! Group-sequential test: interim analyses ("looks") after fixed numbers of pairs, with one-sided t bounds and an
//! alpha-spending function.
//!
//! The error is spent by the power family of Kim and DeMets (Biometrika 74, 1987): after the fraction `t` of all pairs,
//! `alpha * t^3` is spent, so that later looks, which have more data, get more of it. Each look is tested at the error
//! spent since the previous look: by the union bound, the total is at most `alpha` for any correlation of the looks.
//!
//! The last look has a second test: `n` pairs decide also where all of them are on one side of the threshold. A slow
//! launch makes the standard deviation large, so that t does not decide although no pair contradicts. The error of this
//! sign test is at most `2^-n`, whatever the distribution: it needs only that the pairs are independent, and that the
//! median of their ratio does not reach the threshold. Only what it adds to t is spent: of normal samples with all
//! pairs on one side, t misses few ([`MISSED`]), so that by the union bound the look keeps its share under the
//! assumption on which the error of t rests, too. Where that does not hold, the sign test adds at most `2^-n` to
//! whatever the error of t is, and the sum is simulated.

use super::disturbed::{Launches, NotCounted, counting, undisturbed, weigh};
use super::outside::{Unrest, unrest};
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

/// Largest part of the share of the last look that the error of the sign test may be. With fewer pairs it is larger,
/// and so is what it adds to t: of the default three looks at 5 %, a quarter with seven pairs, and three quarters with
/// six.
const SIGNS: f64 = 0.25;
/// Bound of the share of the samples with all pairs on the same side of the threshold that t does not decide, where
/// logarithms are normal with their mean at the threshold and the sign test is allowed by [`SIGNS`]: 0.032 with seven
/// pairs, less with fewer. A mean on the wrong side makes both tests rarer.
const MISSED: f64 = 0.05;

/// Error rate of the sign test at the look after `pairs` pairs, or at the next look; `None` where t alone decides.
fn signs(analysis: &Analysis, pairs: usize) -> Option<f64> {
    let looks = looks(analysis);
    let (last, before) = looks.split_last()?;
    let is_last = before.last().is_none_or(|&before| pairs > before);
    let error = 0.5_f64.powi(*last as i32);
    (is_last && error <= SIGNS * share(analysis, *last)).then_some(error)
}

/// Error rate of the t bounds of the look after `pairs` pairs, or of the next look if there is none at `pairs`.
pub(crate) fn share_of_t(analysis: &Analysis, pairs: usize) -> f64 {
    share(analysis, pairs) - signs(analysis, pairs).map_or(0.0, |error| MISSED * error)
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
    /// Values that count although they were disturbed.
    pub unrest: Option<Unrest>,
}

/// The mean of `values` and its one-sided t bounds at error rate `alpha` each. `None` without values, or with one that
/// is not finite.
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
    Some(Interval { mean, bounds, count, repeated: 0, unrest: None })
}

/// The mean of `logs` and its bounds at the look after `look` pairs. A bound is the value of the threshold at which the
/// test changes its decision: at the last look that of t or the outermost value, whichever is closer to the mean.
fn at_look(logs: &[f64], look: usize, analysis: &Analysis) -> Option<Interval> {
    let found = interval(logs, share_of_t(analysis, look))?;
    if signs(analysis, look).is_none() {
        return Some(found);
    }
    let least = logs.iter().copied().fold(f64::INFINITY, f64::min);
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let bounds = found.bounds.map(|(lower, upper)| (lower.max(least), upper.min(most)));
    Some(Interval { bounds, ..found })
}

/// The upper `alpha` quantile of Student's t.
fn quantile(alpha: f64, freedom: usize) -> f64 {
    match StudentsT::new(0.0, 1.0, freedom as f64) {
        Ok(t) => t.inverse_cdf(1.0 - alpha),
        // Only without degrees of freedom, which `interval` excludes.
        Err(_) => f64::INFINITY,
    }
}

/// An interval, and why each pair of its analysis does not count in it; `None` for those that do.
pub(crate) type Weighed = (Interval, Vec<Option<NotCounted>>);

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

/// Why each of the first pairs of which `wanted` are undisturbed does not count, if it does not; the number of pairs
/// required when there are too few. Later pairs do not change the result.
fn first_undisturbed(pairs: &[impl Launches], wanted: usize) -> Result<Vec<Option<NotCounted>>, usize> {
    for end in wanted..=pairs.len() {
        let weighed = weigh(&pairs[..end], wanted);
        if counting(&weighed).len() >= wanted {
            return Ok(weighed);
        }
    }
    let kept = undisturbed(pairs, wanted).len();
    // Where all were disturbed, one more tells whether the machine has become calm.
    Err(if kept == 0 { wanted.max(pairs.len() + 1) } else { wanted + pairs.len() - kept })
}

/// Number of pairs that are required for `wanted` undisturbed ones; `None` when there are enough.
pub(crate) fn required(pairs: &[impl Launches], wanted: usize) -> Option<usize> {
    first_undisturbed(pairs, wanted).err()
}

/// Logarithms of the ratios, candidate over control, of the pairs at these places.
fn logs(pairs: &[impl Launches], places: &[usize]) -> Vec<f64> {
    let speeds = places.iter().map(|place| pairs[*place].speeds());
    speeds.map(|(control, candidate)| (candidate / control).ln()).collect()
}

/// The interval of the undisturbed `pairs`, of which `wanted` are needed, as ratios; of all while all are disturbed.
/// With it, why each pair does not count.
pub(crate) fn ratio(pairs: &[impl Launches], wanted: usize, error: impl Fn(usize) -> f64) -> Option<Weighed> {
    let weighed = Some(weigh(pairs, wanted)).filter(|weighed| weighed.iter().any(Option::is_none));
    let weighed = weighed.unwrap_or_else(|| vec![None; pairs.len()]);
    let kept = counting(&weighed);
    let found = interval(&logs(pairs, &kept), error(kept.len()))?;
    let repeated = pairs.len() - kept.len();
    Some((Interval { repeated, unrest: unrest_of(pairs, &kept), ..as_ratio(found) }, weighed))
}

/// The disturbed ones among the pairs at these places, which count.
fn unrest_of(pairs: &[impl Launches], places: &[usize]) -> Option<Unrest> {
    unrest(places.iter().map(|place| pairs[*place].disturbances()))
}

/// An interval of logarithms as one of ratios.
fn as_ratio(interval: Interval) -> Interval {
    let bounds = interval.bounds.map(|(lower, upper)| (lower.exp(), upper.exp()));
    Interval { mean: interval.mean.exp(), bounds, ..interval }
}

/// Probability that the last look accepts below which more pairs are not worth it: of phases that do not help, most are
/// given up at the first look, and of those that do, hardly one.
const ACCEPTS: f64 = 0.1;
/// Probability that the last look shows a phase to be too slow below which more pairs are not worth it.
const REJECTS: f64 = 0.5;

/// Whether the pairs that are left would hardly lead to a verdict, by the predictive probabilities that the bounds of
/// the last look are on either side of `threshold`, given the mean and the spread so far. A stop for futility raises no
/// error rate: it only replaces a possible verdict. Only t of the last look is predicted: a phase that its sign test
/// alone would have decided may be given up.
fn is_futile(found: &Interval, logs: &[f64], threshold: f64, analysis: &Analysis) -> bool {
    let last = looks(analysis).last().copied().unwrap_or(1);
    let count = logs.len();
    let Some(freedom) = count.checked_sub(1).filter(|freedom| *freedom > 0 && count < last) else { return false };
    let variance = logs.iter().map(|value| (value - found.mean).powi(2)).sum::<f64>() / freedom as f64;
    let (spread, size) = (variance.sqrt(), last as f64);
    let reach = quantile(share_of_t(analysis, last), last - 1) * spread / size.sqrt();
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

/// Tests the `pairs`, in order, against `threshold`, a ratio, at each look. Disturbed pairs do not count. Pairs after
/// the deciding look do not change the result, so that a verdict does not depend on the time of its computation. The
/// intervals are ratios.
pub(crate) fn sequential(pairs: &[impl Launches], threshold: f64, analysis: &Analysis) -> Sequential {
    tested(pairs, threshold, analysis).0
}

/// As [`sequential`], with why each pair up to the deciding look does not count; without any while it is not decided.
pub(crate) fn tested(
    pairs: &[impl Launches],
    threshold: f64,
    analysis: &Analysis,
) -> (Sequential, Vec<Option<NotCounted>>) {
    let mut newest = None;
    for look in looks(analysis) {
        let weighed = match first_undisturbed(pairs, look) {
            Ok(found) => found,
            Err(required) => return (Sequential::More(required), Vec::new()),
        };
        let kept = counting(&weighed);
        let logs = logs(pairs, &kept);
        let Some(of_logs) = at_look(&logs, look, analysis) else { return (Sequential::More(look), Vec::new()) };
        let repeated = weighed.len() - kept.len();
        let interval = Interval { repeated, unrest: unrest_of(pairs, &kept), ..as_ratio(of_logs) };
        // One pair has no bounds: its estimate decides, and is labelled.
        let (lower, upper) = interval.bounds.unwrap_or((interval.mean, interval.mean));
        if lower >= threshold {
            return (Sequential::Above(interval), weighed);
        }
        if upper < threshold {
            return (Sequential::Below(interval), weighed);
        }
        // What is accepted unless it is shown to be slow is measured to the end.
        let may_end = analysis.on_inconclusive == OnInconclusive::RollBack;
        if may_end && is_futile(&of_logs, &logs, threshold.ln(), analysis) {
            return (Sequential::Undecided(interval), weighed);
        }
        newest = Some((Sequential::Undecided(interval), weighed));
    }
    newest.unwrap_or((Sequential::More(1), Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::noise::Random;
    use std::cmp::Ordering;

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
    fn the_sign_test_takes_a_small_part_of_the_last_look() {
        let at = |min_pairs, max_pairs, pairs| {
            let analysis = Analysis { min_pairs, max_pairs, ..Analysis::default() };
            let of_t = share_of_t(&analysis, pairs);
            match signs(&analysis, pairs) {
                Some(error) => {
                    let whole = share(&analysis, pairs);
                    assert!(error <= whole / 4.0 && (of_t + MISSED * error - whole).abs() < 1e-15);
                    true
                }
                None => {
                    assert_eq!(of_t, share(&analysis, pairs));
                    false
                }
            }
        };
        assert!(at(3, 7, 7) && at(5, 7, 7) && at(7, 7, 7));
        assert!(at(3, 7, 6), "before the last look, its own errors");
        assert!(!at(3, 7, 3) && !at(3, 7, 5));
        // 2^-7 of 1.9 %, and fewer pairs.
        assert!(!at(4, 7, 7) && !at(6, 7, 7));
        for (min, max) in (1..7).flat_map(|max| (1..=max).map(move |min| (min, max))) {
            assert!(!at(min, max, max as usize), "{min} to {max}");
        }
    }

    /// A normal sample around the threshold, given that all pairs are above it, is one of half-normal values.
    #[test]
    fn t_misses_few_samples_with_all_pairs_on_one_side() {
        let mut random = Random::seeded(3);
        for count in 2..=7 {
            let share = (0.5_f64.powi(count as i32) / SIGNS).min(0.5);
            let (reach, size) = (quantile(share, count - 1), count as f64);
            let missed = |_: &usize| {
                let values: Vec<f64> = (0..count).map(|_| random.normal().abs()).collect();
                let mean = values.iter().sum::<f64>() / size;
                let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (size - 1.0);
                mean < reach * (variance / size).sqrt()
            };
            let found = (0..100_000).filter(missed).count() as f64 / 100_000.0;
            println!("{count} pairs: t at {share:.4} misses {found:.4}");
            assert!(found < 0.9 * MISSED, "{count} pairs: {found}");
        }
    }

    /// The position of a sample by its bounds at the last look of the default analysis, and by those of t at the whole
    /// share.
    fn positions(logs: &[f64]) -> [Ordering; 2] {
        let analysis = Analysis::default();
        let position = |found: Option<Interval>| match found.and_then(|found| found.bounds) {
            Some((lower, _)) if lower >= 0.0 => Ordering::Greater,
            Some((_, upper)) if upper < 0.0 => Ordering::Less,
            Some(_) | None => Ordering::Equal,
        };
        [position(at_look(logs, 7, &analysis)), position(interval(logs, share(&analysis, 7)))]
    }

    /// How many of the 128 samples with these distances from the threshold are above it and below it, by both bounds.
    fn enumerated(distances: &[f64; 7]) -> [[usize; 2]; 2] {
        let mut counts = [[0; 2]; 2];
        for signs in 0..128_u32 {
            let logs = (0..7).map(|place| if signs >> place & 1 == 1 { distances[place] } else { -distances[place] });
            for (counts, position) in counts.iter_mut().zip(positions(&logs.collect::<Vec<_>>())) {
                counts[0] += usize::from(position == Ordering::Greater);
                counts[1] += usize::from(position == Ordering::Less);
            }
        }
        counts
    }

    #[test]
    fn of_all_signs_of_the_same_distances_one_more_is_decided_at_most() {
        // t decides none of them, because one pair is as far from the threshold as all others together.
        assert_eq!(enumerated(&[0.01, 0.02, 0.03, 0.01, 0.02, 0.03, 1.0]), [[1, 1], [0, 0]]);
        let mut random = Random::seeded(4);
        for scale in [0.1, 1.0, 3.0] {
            for _ in 0..100 {
                let [[above, below], [t_above, t_below]] =
                    enumerated(&std::array::from_fn(|_| 0.01 * (scale * random.normal()).exp()));
                assert!((1..=t_above + 1).contains(&above) && (1..=t_below + 1).contains(&below));
            }
        }
    }

    #[test]
    fn a_slow_control_in_seven_pairs_does_not_hide_an_effect_that_every_pair_shows() {
        let analysis = Analysis::default();
        let usual = [(1.0, 1.03), (1.0, 1.028), (1.0, 1.027), (1.0, 1.029), (1.0, 1.026), (1.0, 1.028)];
        let inverse = |pairs: &[(f64, f64)]| pairs.iter().map(|(control, candidate)| (*candidate, *control)).collect();
        // Too little to be recognized as disturbed; two alike, which count.
        for slow in [&[(0.955, 1.03)][..], &[(0.5, 1.028), (0.501, 1.027)]] {
            let pairs: Vec<(f64, f64)> = usual.iter().chain(slow).copied().rev().take(7).collect();
            let Sequential::Above(found) = sequential(&pairs, 1.02, &analysis) else { panic!("every pair is above") };
            let (lower, upper) = found.bounds.unwrap();
            assert!((lower - 1.026).abs() < 1e-12 && lower <= found.mean && found.mean <= upper, "{found:?}");
            let logs: Vec<f64> = pairs.iter().map(|(control, candidate)| (candidate / control).ln()).collect();
            let of_t = interval(&logs, share(&analysis, 7)).and_then(|found| found.bounds).unwrap();
            assert!(of_t.0 < 1.02_f64.ln() && 1.02_f64.ln() < of_t.1, "t does not decide: {of_t:?}");

            // A phase that is too slow is given up earlier, unless it is measured to the end.
            let to_the_end = Analysis { on_inconclusive: OnInconclusive::Accept, ..Analysis::default() };
            let slower: Vec<(f64, f64)> = inverse(&pairs);
            assert!(matches!(sequential(&slower, 1.0 / 1.02, &to_the_end), Sequential::Below(_)));
            let mut contradicted = pairs.clone();
            contradicted[6] = (1.0, 1.019);
            assert!(matches!(sequential(&contradicted, 1.02, &analysis), Sequential::Undecided(_)));
        }
    }

    #[test]
    fn a_verdict_agrees_with_its_bounds() {
        let mut random = Random::seeded(5);
        for sample in 0..20_000 {
            let (min_pairs, max_pairs) = (1 + sample % 4, 4 + sample % 4);
            let analysis = Analysis { min_pairs, max_pairs, ..Analysis::default() };
            let mut launch = |speed: f64| {
                let slow = if random.uniform() < 0.2 { 0.6 } else { 1.0 };
                speed * slow * (0.02 * random.normal()).exp()
            };
            let pairs: Vec<(f64, f64)> = (0..9).map(|_| (launch(1.0), launch(1.04))).collect();
            match sequential(&pairs, 1.02, &analysis) {
                Sequential::Above(found) => assert!(found.bounds.unwrap().0 >= 1.02, "{found:?}"),
                Sequential::Below(found) => assert!(found.bounds.unwrap().1 < 1.02, "{found:?}"),
                Sequential::Undecided(found) => {
                    let (lower, upper) = found.bounds.unwrap();
                    assert!(lower < 1.02 && 1.02 <= upper && lower <= found.mean && found.mean <= upper, "{found:?}");
                }
                Sequential::More(_) => panic!("nine pairs are enough"),
            }
        }
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
