//! Disturbed launches: one that something else has slowed down is measured again, together with the other launch of its
//! pair, instead of being averaged. The rule is the same when the arms change places: it removes as many slow controls as
//! slow candidates, so that the error of the test is kept.

use crate::statistics::median;

/// A disturbed launch is further from the other ones than so many typical deviations of a launch from the median of its
/// arm.
const DEVIATIONS: f64 = 8.0;
/// Least relative distance of a disturbed launch, in logarithms: less is noise, which the interval counts.
const LEAST: f64 = 0.05;
/// Fewest pairs in which a launch can be told to be disturbed.
const FEWEST: usize = 3;
/// Maximum number of pairs that are repeated. With more, slow launches are what this machine does, and all pairs count.
const MOST: usize = 2;

/// The pairs without the disturbed ones. A pair is the items per second of the control and of the candidate.
///
/// A disturbed launch is far from all others, but for one of the other arm at most: what slows down a launch of each
/// arm alike is not a property of either. Two launches of the same arm that are alike are not disturbed: slow launches
/// may be what its settings do. Three are a state of the machine, and the launches that are in it must not be removed
/// from an arm by chance.
pub(crate) fn undisturbed(pairs: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let distance = DEVIATIONS * typical_deviation(pairs);
    let distance = distance.max(LEAST);
    let all: Vec<f64> = pairs.iter().flat_map(|(control, candidate)| [control.ln(), candidate.ln()]).collect();
    let apart = |place: usize| {
        let near = |other: &usize| *other != place && (all[*other] - all[place]).abs() <= distance;
        let near: Vec<usize> = (0..all.len()).filter(near).collect();
        // Launches of the control have even places.
        near.is_empty() || near.len() == 1 && near[0] % 2 != place % 2
    };
    let calm = |index: &usize| !apart(2 * index) && !apart(2 * index + 1);
    let kept: Vec<(f64, f64)> = (0..pairs.len()).filter(calm).map(|index| pairs[index]).collect();
    if pairs.len() < FEWEST || pairs.len() - kept.len() > MOST { pairs.to_vec() } else { kept }
}

/// A robust standard deviation of a launch within its arm, in logarithms: from the median of the distances to the
/// median of the arm, without the two medians themselves.
fn typical_deviation(pairs: &[(f64, f64)]) -> f64 {
    let of_arm = |arm: fn(&(f64, f64)) -> f64| {
        let logs: Vec<f64> = pairs.iter().map(|pair| arm(pair).ln()).collect();
        let middle = median(logs.iter().copied()).unwrap_or_default();
        logs.into_iter().map(move |log| (log - middle).abs())
    };
    let mut deviations: Vec<f64> = of_arm(|pair| pair.0).chain(of_arm(|pair| pair.1)).collect();
    deviations.sort_unstable_by(f64::total_cmp);
    1.4826 * median(deviations.into_iter().skip(2)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_far_from_all_others_is_disturbed_in_either_arm() {
        let calm = [(100.0, 110.0), (101.0, 109.0), (99.5, 110.5), (100.5, 110.2)];
        assert_eq!(undisturbed(&calm), calm);
        for slow in [(50.0, 110.0), (100.0, 55.0), (200.0, 110.0), (100.0, 220.0)] {
            let with = [calm[0], slow, calm[1], calm[2]];
            assert_eq!(undisturbed(&with), [calm[0], calm[1], calm[2]], "{slow:?}");
        }
        assert_eq!(
            undisturbed(&[(100.0, 110.0), (50.0, 110.0)]).len(),
            2,
            "two pairs do not tell which one is disturbed"
        );
    }

    #[test]
    fn equally_slow_launches_are_disturbed_if_each_arm_has_one() {
        let calm = [(100.0, 110.0), (101.0, 109.0), (99.5, 110.5), (100.5, 110.2)];
        let both = [calm[0], (50.0, 110.1), calm[1], (100.2, 50.3), calm[2]];
        assert_eq!(undisturbed(&both), [calm[0], calm[1], calm[2]]);
        for of_one_arm in [[(50.0, 110.1), (50.2, 110.0)], [(100.1, 50.0), (100.2, 50.3)]] {
            let with = [calm[0], of_one_arm[0], calm[1], of_one_arm[1], calm[2]];
            assert_eq!(undisturbed(&with), with, "it may be what the settings do");
        }
    }

    #[test]
    fn a_machine_with_two_states_is_not_disturbed() {
        let states = [(100.0, 80.0), (80.1, 100.2), (100.1, 100.3), (80.2, 80.3)];
        assert_eq!(undisturbed(&states), states);
        let rare = [(100.0, 100.0), (80.0, 100.1), (100.2, 80.1), (100.0, 79.9), (100.1, 100.2)];
        assert_eq!(undisturbed(&rare), rare);
        let often = [(100.0, 50.0), (25.0, 100.0), (100.0, 12.5), (100.1, 100.2)];
        assert_eq!(undisturbed(&often), often, "more than the maximum");
    }
}
