//! Pairs that were disturbed from outside, such as by other programs on the CPUs.
//!
//! Whether a launch was is [observed](pawl_contract::disturbance), whatever its speed, by shares that are the same for
//! both arms. Such a pair is measured again, once; where a repetition is disturbed, too, the machine does not become
//! calm: all pairs count then, and the verdict says so.

use super::median;
use pawl_contract::disturbance::{DisturbanceKind, from_outside};
use pawl_contract::measured::Disturbance;

/// Disturbed pairs among others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Unrest {
    pub pairs: usize,
    /// What disturbed most of them.
    pub kind: DisturbanceKind,
    /// The median of its shares, 0 to 1.
    pub share: f64,
}

impl Unrest {
    /// That so many of `count` pairs were disturbed: `3 of 5 pairs were measured while other programs used the CPUs:
    /// 41 %`.
    pub fn among(&self, count: usize) -> String {
        let Self { pairs, kind, share } = *self;
        let of_all = match (pairs, count) {
            (1, 1) => "it was".to_owned(),
            (1, _) => format!("1 of {count} pairs was"),
            (_, _) => format!("{pairs} of {count} pairs were"),
        };
        format!("{of_all} measured while {kind}: {:.0} %", share * 100.0)
    }

    /// As [`Unrest::among`], after a text that has counted them: `all of them were measured while [...]`.
    pub fn of_them(&self, count: usize) -> String {
        let Self { pairs, kind, share } = *self;
        let of_them = match pairs {
            _ if pairs == count => "all of them were".to_owned(),
            1 => "1 of them was".to_owned(),
            _ => format!("{pairs} of them were"),
        };
        format!("{of_them} measured while {kind}: {:.0} %", share * 100.0)
    }
}

/// What disturbed a pair from outside.
fn disturbance(pair: &[Disturbance; 2]) -> Option<(DisturbanceKind, f64)> {
    from_outside(pair.each_ref())
}

/// The places of the pairs that count, by what was observed in them. Those after the first `wanted` are repetitions.
pub(super) fn calm(observed: &[[Disturbance; 2]], wanted: usize) -> Vec<usize> {
    let is_disturbed = |place: &usize| disturbance(&observed[*place]).is_some();
    let all = 0..observed.len();
    if all.clone().skip(wanted).any(|place| is_disturbed(&place)) {
        // A single pair stays one: two would have an interval that is too wide for a verdict.
        return if wanted == 1 { all.last().into_iter().collect() } else { all.collect() };
    }
    all.filter(|place| !is_disturbed(place)).collect()
}

/// The disturbed ones among these pairs; `None` if there are none.
pub(crate) fn unrest(pairs: impl Iterator<Item = [Disturbance; 2]>) -> Option<Unrest> {
    let found: Vec<(DisturbanceKind, f64)> = pairs.filter_map(|pair| disturbance(&pair)).collect();
    let shares = |kind: DisturbanceKind| found.iter().filter(move |found| found.0 == kind).map(|found| found.1);
    let kind = DisturbanceKind::ALL.into_iter().max_by_key(|kind| shares(*kind).count())?;
    Some(Unrest { pairs: found.len(), kind, share: median(shares(kind))? })
}

#[cfg(test)]
mod tests {
    use super::super::disturbed::{Launches, undisturbed};
    use super::super::sequential::{Sequential, required, sequential};
    use super::*;
    use crate::simulation::noise::Random;
    use pawl_api::spec::Analysis;

    /// A pair with the share of the CPUs that other programs used in either launch.
    #[derive(Clone, Copy)]
    struct Observed((f64, f64), [f64; 2]);

    impl Launches for Observed {
        fn speeds(&self) -> (f64, f64) {
            self.0
        }

        fn disturbances(&self) -> [Disturbance; 2] {
            self.1.map(|share| Disturbance { other_cpu_share: Some(share), ..Disturbance::default() })
        }
    }

    const CALM: Observed = Observed((100.0, 110.0), [0.02, 0.03]);
    const BUSY: Observed = Observed((100.0, 110.0), [0.02, 0.41]);

    #[test]
    fn a_disturbed_pair_is_repeated_in_either_arm_also_where_most_are() {
        for busy in [BUSY, Observed(BUSY.0, [0.41, 0.02])] {
            assert_eq!(required(&[CALM, busy, CALM], 3), Some(4));
            assert_eq!(undisturbed(&[CALM, busy, CALM, CALM], 3), [0, 2, 3]);
            assert_eq!(required(&[busy, CALM, busy], 3), Some(5));
            assert_eq!(required(&[busy, CALM, busy, CALM, CALM], 3), None);
        }
        assert_eq!(required(&[BUSY, CALM], 3), Some(4), "it is repeated with what is missing anyway");
        assert_eq!(required(&[BUSY], 1), Some(2));
        assert_eq!(required(&[BUSY, CALM], 1), None);
        assert_eq!(undisturbed(&[BUSY, BUSY], 1), [1], "a single pair stays one");
    }

    #[test]
    fn a_machine_that_is_never_calm_costs_one_more_pair_and_the_verdict_says_so() {
        assert_eq!(required(&[BUSY; 3], 3), Some(4), "one tells whether it has become calm");
        assert_eq!(required(&[BUSY, BUSY, BUSY, CALM], 3), Some(6), "it has");
        assert_eq!(required(&[BUSY; 4], 3), None);
        let Sequential::Above(found) = sequential(&[BUSY; 4], 1.02, &Analysis::default()) else {
            panic!("equal pairs")
        };
        let unrest = Some(Unrest { pairs: 4, kind: DisturbanceKind::OtherCpu, share: 0.41 });
        assert_eq!((found.count, found.repeated, found.unrest), (4, 0, unrest));
        let Sequential::Above(found) = sequential(&[CALM; 3], 1.02, &Analysis::default()) else {
            panic!("equal pairs")
        };
        assert_eq!(found.unrest, None);
    }

    #[test]
    fn repetitions_are_bounded_and_the_same_when_the_arms_change_places() {
        let mut random = Random::seeded(11);
        for sample in 0..5_000 {
            let wanted = 1 + sample % 7;
            let mut pairs: Vec<Observed> = Vec::new();
            while let Some(more) = required(&pairs, wanted) {
                assert!(more > pairs.len() && more <= 2 * wanted + 2, "{more} pairs for {wanted}");
                let mut share = || if random.uniform() < 0.3 { 0.5 } else { 0.02 };
                pairs.resize_with(more, || Observed((100.0, 110.0), [share(), share()]));
            }
            let swapped: Vec<Observed> =
                pairs.iter().map(|pair| Observed((pair.0.1, pair.0.0), [pair.1[1], pair.1[0]])).collect();
            assert_eq!(undisturbed(&pairs, wanted), undisturbed(&swapped, wanted));
        }
    }

    #[test]
    fn a_calm_machine_gives_the_verdicts_of_one_that_was_not_observed() {
        let mut random = Random::seeded(12);
        for _ in 0..5_000 {
            let mut launch = |speed: f64| speed * (0.02 * random.normal()).exp();
            let speeds: Vec<(f64, f64)> = (0..9).map(|_| (launch(1.0), launch(1.03))).collect();
            let observed: Vec<Observed> = speeds.iter().map(|speeds| Observed(*speeds, [0.1, 0.03])).collect();
            let analysis = Analysis::default();
            assert_eq!(sequential(&observed, 1.02, &analysis), sequential(&speeds, 1.02, &analysis));
        }
    }

    /// Share of 4,000 phases exactly at `minSpeedup` that are accepted, where other programs take 4 % of the speed of
    /// this share of the launches.
    fn accepted(busy: f64) -> f64 {
        const SAMPLES: usize = 4_000;
        let (analysis, mut random) = (Analysis::default(), Random::seeded(13));
        let sample = |_: &usize| {
            let mut launch = |speed: f64| {
                let (factor, share) = if random.uniform() < busy { (0.96, 0.3) } else { (1.0, 0.02) };
                (speed * factor * (0.004 * random.normal()).exp(), share)
            };
            let pairs: Vec<Observed> = (0..16)
                .map(|_| {
                    let (control, candidate) = (launch(1.0), launch(1.02));
                    Observed((control.0, candidate.0), [control.1, candidate.1])
                })
                .collect();
            matches!(sequential(&pairs, 1.02, &analysis), Sequential::Above(_))
        };
        let share = (0..SAMPLES).filter(sample).count() as f64 / SAMPLES as f64;
        println!("{:.0} % of the launches are disturbed: {:.1} % are accepted", busy * 100.0, share * 100.0);
        share
    }

    #[test]
    fn the_error_rate_is_kept_however_many_launches_are_disturbed() {
        for busy in [0.0, 0.1, 0.3, 0.6, 1.0] {
            assert!(accepted(busy) <= 0.055, "{busy}");
        }
    }
}
