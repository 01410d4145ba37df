//! Disturbed launches: one that something else has slowed down is measured again, together with the other launch of its
//! pair, instead of being averaged.
//!
//! Some disturbances are observed: by the pressure on CPUs and memory, by a GPU that lowers its clocks or is shared.
//! Others are seen in the speed alone. Both rules are the same when the arms change places. What is observed is
//! compared within an arm, because the settings of an arm may cause it themselves (workers of a loader wait for CPUs,
//! too), and regardless of the speed; what surely comes from [outside](super::outside) is repeated first. The speed is
//! compared between all launches: it removes as many slow controls as slow candidates, so that the error of the test is
//! kept.

use super::median;
use super::outside::calm;
use pawl_contract::disturbance::{DisturbanceKind, from_outside};
use pawl_contract::measured::Disturbance;
use std::fmt;

/// A disturbed launch is further from the other ones than so many typical deviations of a launch from the median of its
/// arm.
const DEVIATIONS: f64 = 8.0;
/// Least relative distance of a disturbed launch, in logarithms: less is noise, which the interval counts.
const LEAST: f64 = 0.05;
/// Fewest pairs in which a launch can be recognized as disturbed.
const FEWEST: usize = 3;
/// Maximum number of pairs that are repeated by comparison with others. With more, slow launches are what this machine
/// does, and all pairs count.
const MOST: usize = 2;

/// A launch is disturbed if a share is above the median of its arm by more than this; `None` for what comes from
/// outside, of which the share alone decides.
const fn excess(kind: DisturbanceKind) -> Option<f64> {
    match kind {
        DisturbanceKind::MemoryPressure => Some(0.05),
        DisturbanceKind::CpuPressure | DisturbanceKind::IoPressure | DisturbanceKind::CpuThrottled => Some(0.1),
        DisturbanceKind::GpuThrottled => Some(0.2),
        DisturbanceKind::OtherCpu | DisturbanceKind::SharedGpu => None,
    }
}

/// Why a pair of launches does not count in a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NotCounted {
    /// A launch was disturbed from outside, so much of the time, 0 to 1: another pair was measured in its place.
    Disturbed(DisturbanceKind, f64),
    /// Of a launch more was observed than of most others with its settings, 0 to 1: another pair was measured.
    Strained(DisturbanceKind, f64),
    /// The speed of a launch is far from that of all others: another pair was measured.
    Outlier,
    /// Another pair was measured in its place, because that pair was disturbed once.
    Replaced,
    /// The speed of a launch still changed within its last window.
    NotSteady,
    /// Its launches ran on different devices, or in different attempts.
    Apart,
    /// A launch of it did not end as planned.
    Failed,
    /// It was measured with another build of the trainer.
    OtherBuild,
    /// The verdict was reached before it.
    Late,
    /// The verdict is not that of these launches: the job was changed, or launches are not in its status any more.
    Unknown,
}

/// The reason, for people.
impl fmt::Display for NotCounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Disturbed(kind, share) => return write!(f, "{kind}: {:.0} %; it was repeated", share * 100.0),
            Self::Strained(kind, share) => {
                return write!(f, "{kind}: {:.0} %, more than in most launches; it was repeated", share * 100.0);
            }
            Self::Outlier => "the speed of a launch is far from all others; it was repeated",
            Self::Replaced => "it was repeated",
            Self::NotSteady => "the speed of a launch still changed",
            Self::Apart => "its launches ran on different devices or in different attempts",
            Self::Failed => "a launch did not end as planned",
            Self::OtherBuild => "it was measured with another build of the trainer",
            Self::Late => "the verdict was reached before it",
            Self::Unknown => "whether it counts is not known: the verdict is of other launches",
        };
        f.write_str(text)
    }
}

/// The launches of a pair.
pub(crate) trait Launches {
    /// Items per second of the control and of the candidate.
    fn speeds(&self) -> (f64, f64);

    /// What was observed in the control and in the candidate.
    fn disturbances(&self) -> [Disturbance; 2];
}

/// The places of the pairs that count, of which `wanted` are needed: without the disturbed ones, which are repeated.
pub(crate) fn undisturbed(pairs: &[impl Launches], wanted: usize) -> Vec<usize> {
    counting(&weigh(pairs, wanted))
}

/// The places of the pairs that count.
pub(crate) fn counting(weighed: &[Option<NotCounted>]) -> Vec<usize> {
    (0..weighed.len()).filter(|place| weighed[*place].is_none()).collect()
}

/// Why each pair does not count; `None` for those that do, of which `wanted` are needed.
pub(crate) fn weigh(pairs: &[impl Launches], wanted: usize) -> Vec<Option<NotCounted>> {
    let observed: Vec<[Disturbance; 2]> = pairs.iter().map(Launches::disturbances).collect();
    let all = calm(&observed, wanted);
    let strained = |place: usize| strain(&observed, &all, place);
    let calm: Vec<usize> = all.iter().copied().filter(|place| strained(*place).is_none()).collect();
    let calm = if all.len() < FEWEST || all.len() - calm.len() > MOST { all.clone() } else { calm };
    let speeds: Vec<(f64, f64)> = calm.iter().map(|place| pairs[*place].speeds()).collect();
    let kept: Vec<usize> = without_outliers(&speeds).into_iter().map(|index| calm[index]).collect();
    let kept = if all.len() - kept.len() > MOST { &calm } else { &kept };
    let why = |place: usize| {
        if kept.contains(&place) {
            None
        } else if calm.contains(&place) {
            Some(NotCounted::Outlier)
        } else if all.contains(&place) {
            strained(place).map(|(kind, share)| NotCounted::Strained(kind, share))
        } else {
            let outside = from_outside(observed[place].each_ref());
            Some(outside.map_or(NotCounted::Replaced, |(kind, share)| NotCounted::Disturbed(kind, share)))
        }
    };
    (0..pairs.len()).map(why).collect()
}

/// What was observed in a launch of the pair at `place` that was not in most launches of its arm, those of the pairs at
/// `all`, and its share.
fn strain(observed: &[[Disturbance; 2]], all: &[usize], place: usize) -> Option<(DisturbanceKind, f64)> {
    let above = |arm: usize, kind: DisturbanceKind| {
        let share = |place: usize| observed[place][arm].share(kind).copied();
        let (own, excess) = (share(place)?, excess(kind)?);
        let shares: Vec<f64> = all.iter().filter_map(|other| share(*other)).collect();
        let usual = median(shares.iter().copied()).filter(|_| shares.len() >= FEWEST)?;
        (own > usual + excess).then_some((kind, own))
    };
    (0..2).find_map(|arm| DisturbanceKind::ALL.into_iter().find_map(|kind| above(arm, kind)))
}

/// The places of the pairs without those whose speed is disturbed. A pair is the items per second of the control and of
/// the candidate.
///
/// A disturbed launch is far from all others, but for one of the other arm at most: what slows down a launch of each
/// arm alike is not a property of either. Two launches of the same arm that are alike are not disturbed: slow launches
/// may be what its settings do. Three are a state of the machine, and the launches that are in it must not be removed
/// from an arm by chance.
fn without_outliers(pairs: &[(f64, f64)]) -> Vec<usize> {
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
    let kept: Vec<usize> = (0..pairs.len()).filter(calm).collect();
    if pairs.len() < FEWEST || pairs.len() - kept.len() > MOST { (0..pairs.len()).collect() } else { kept }
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
impl Launches for (f64, f64) {
    fn speeds(&self) -> (f64, f64) {
        *self
    }

    fn disturbances(&self) -> [Disturbance; 2] {
        Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sequential::{Sequential, sequential};
    use super::*;
    use crate::simulation::noise::Random;
    use pawl_api::spec::Analysis;

    /// A pair with the pressure on the CPUs in either launch.
    struct Observed((f64, f64), [f64; 2]);

    impl Launches for Observed {
        fn speeds(&self) -> (f64, f64) {
            self.0
        }

        fn disturbances(&self) -> [Disturbance; 2] {
            self.1.map(|share| Disturbance { cpu_pressure: Some(share), ..Disturbance::default() })
        }
    }

    /// The speeds of the pairs that count.
    fn undisturbed(pairs: &[impl Launches]) -> Vec<(f64, f64)> {
        super::undisturbed(pairs, pairs.len()).into_iter().map(|place| pairs[place].speeds()).collect()
    }

    #[test]
    fn a_launch_under_more_pressure_than_its_arm_is_disturbed_whatever_its_speed() {
        let observed = |pressures: &[[f64; 2]]| -> Vec<Observed> {
            (0..).zip(pressures).map(|(index, shares)| Observed((f64::from(100 + index), 110.0), *shares)).collect()
        };
        // The settings of the candidate cause pressure themselves.
        let usual = observed(&[[0.1, 0.6], [0.12, 0.62], [0.08, 0.58]]);
        assert_eq!(undisturbed(&usual).len(), 3);
        for shares in [[0.3, 0.6], [0.1, 0.8]] {
            let kept = undisturbed(&observed(&[[0.1, 0.6], shares, [0.12, 0.6], [0.08, 0.6]]));
            assert_eq!(kept, [(100.0, 110.0), (102.0, 110.0), (103.0, 110.0)], "{shares:?}");
        }
        let calmer = observed(&[[0.5, 0.6], [0.1, 0.2], [0.5, 0.6]]);
        assert_eq!(undisturbed(&calmer).len(), 3, "less pressure is no disturbance");
        let often = observed(&[[0.1, 0.1], [0.1, 0.1], [0.1, 0.1], [0.1, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]);
        assert_eq!(undisturbed(&often).len(), 7, "more than the maximum");
        assert_eq!(undisturbed(&observed(&[[0.1, 0.1], [0.9, 0.1]])).len(), 2, "two pairs tell nothing");
    }

    #[test]
    fn old_reports_without_observations_are_judged_by_their_speeds() {
        struct Sometimes((f64, f64), Option<f64>);
        impl Launches for Sometimes {
            fn speeds(&self) -> (f64, f64) {
                self.0
            }
            fn disturbances(&self) -> [Disturbance; 2] {
                [Disturbance { cpu_pressure: self.1, ..Disturbance::default() }, Disturbance::default()]
            }
        }
        let speeds = (100.0, 110.0);
        assert_eq!(
            undisturbed(&[Sometimes(speeds, None), Sometimes(speeds, Some(0.9)), Sometimes(speeds, Some(0.1))]).len(),
            3
        );
    }

    /// Share of 4,000 phases that are accepted at `minSpeedup` 1.02. A tenth of the launches have a neighbor that takes
    /// 4 % of the speed, of which their pressure tells if it is `observed`.
    fn accepted(speedup: f64, observed: bool) -> f64 {
        const SAMPLES: usize = 4_000;
        let (analysis, mut random) = (Analysis::default(), Random::seeded(7));
        let sample = |_: &usize| {
            let mut launch = |speed: f64| {
                let neighbor = random.uniform() < 0.1;
                let pressure = 0.02 * random.uniform() + if neighbor && observed { 0.3 } else { 0.0 };
                (speed * (0.004 * random.normal()).exp() * if neighbor { 0.96 } else { 1.0 }, pressure)
            };
            let pairs: Vec<Observed> = (0..9)
                .map(|_| {
                    let (control, candidate) = (launch(1.0), launch(speedup));
                    Observed((control.0, candidate.0), [control.1, candidate.1])
                })
                .collect();
            matches!(sequential(&pairs, 1.02, &analysis), Sequential::Above(_))
        };
        let share = (0..SAMPLES).filter(sample).count() as f64 / SAMPLES as f64;
        println!("speedup {speedup}, observed {observed}: {:.1} % are accepted", share * 100.0);
        share
    }

    #[test]
    fn observed_neighbors_cost_less_power_and_the_level_holds() {
        assert!(accepted(1.02, true) <= 0.055, "exactly at the threshold");
        assert!(accepted(1.02, false) <= 0.055, "exactly at the threshold");
        let (seen, unseen) = (accepted(1.04, true), accepted(1.04, false));
        assert!(seen > unseen + 0.05, "{seen} and {unseen}");
    }

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
