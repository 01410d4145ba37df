//! Simulations of the gates on quality.

use super::{Early, Judged, Requirement, criteria, early, error, verdict};
use crate::gates::Verdict;
use crate::gates::band::Band;
use crate::simulation::Bound::{AtLeast, AtMost, Shown};
use crate::simulation::noise::Random;
use crate::simulation::{Rows, Tally};
use crate::statistics::sequential::interval;
use pawl_api::spec::{Analysis, Gates};

/// A gate whose limit is 1.
#[derive(Clone, Copy)]
struct Case {
    /// True regression, in limits.
    regression: f64,
    /// Standard deviation of the difference of two launches, in limits.
    noise: f64,
    seeds: usize,
    looks: u32,
    metrics: usize,
}

const ONE_LOOK: Case = Case { regression: 1.0, noise: 0.3, seeds: 3, looks: 1, metrics: 1 };

impl Case {
    fn text(&self) -> String {
        let Self { regression, noise, seeds, looks, metrics } = self;
        let worse = match *regression {
            0.0 => "no regression".to_owned(),
            1.0 => "exactly at the limit".to_owned(),
            times => format!("{times} times the limit"),
        };
        let several =
            |count: usize, what: &str| if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") };
        let [seeds, looks, metrics] = [(*seeds, "seed"), (*looks as usize, "look"), (*metrics, "metric")]
            .map(|(count, what)| several(count, what));
        format!("{worse}, noise {noise}; {seeds}, {looks}, {metrics}")
    }

    /// Regressions of each metric and seed along their curves, with a true regression and noise, of which half is the
    /// seed's own in all looks. The verdict, and the items trained, in launches of full length.
    fn judge(&self, sample: u64) -> (&'static str, f64) {
        let &Self { regression, noise, seeds, looks, metrics } = self;
        let (analysis, mut random) = (Analysis { quality_looks: looks, ..Analysis::default() }, Random::seeded(sample));
        let mut own = || noise * std::f64::consts::FRAC_1_SQRT_2 * random.normal();
        let gate: Gates = serde_json::from_value(serde_json::json!({"validationLossDelta": "1"})).unwrap();
        let criteria: Vec<Requirement<'_>> = (0..metrics).flat_map(|_| criteria(&gate)).collect();
        let each: Vec<Vec<f64>> = (0..metrics).map(|_| (0..seeds).map(|_| own()).collect()).collect();
        let (mut before, mut cost) = (Early::Unclear, 0.0);
        for look in 0..looks {
            cost += 0.25f64.powi((looks - 1 - look) as i32);
            let error = error(&analysis, look, looks);
            let one = |seeds: &Vec<f64>| {
                let values: Vec<f64> = seeds.iter().map(|seed| regression + seed + own()).collect();
                let (interval, to_fail) = (interval(&values, error), interval(&values, error / metrics as f64));
                Judged { band: Band::at_most(1.0), interval, to_fail }
            };
            let judged: Vec<Judged> = each.iter().map(one).collect();
            if look + 1 < looks && before.and(early(&judged)) == Early::Unclear {
                before = early(&judged);
                continue;
            }
            return match verdict(&criteria, &judged) {
                None => ("accepted", cost),
                Some(Verdict::Fails { .. }) => ("rolled back", cost),
                Some(_) => ("inconclusive", cost),
            };
        }
        unreachable!("the last look decides")
    }

    fn tally(&self, rows: &Rows) -> Tally {
        rows.tally(20_000, |sample| self.judge(sample).0)
    }
}

pub(crate) fn rows(rows: &mut Rows) {
    for (seeds, metrics) in [(2, 1), (3, 1), (3, 3), (7, 1), (7, 3)] {
        for noise in [0.3, 1.0, 3.0] {
            let limit = Case { noise, seeds, metrics, ..ONE_LOOK };
            let tally = limit.tally(rows);
            rows.add(tally.row(limit.text(), "accepted", AtMost(5.0)));
            rows.add(tally.row(limit.text(), "rolled back", AtMost(5.0)));
            let harmless = Case { regression: 0.0, ..limit };
            rows.add(harmless.tally(rows).row(harmless.text(), "rolled back", AtMost(5.0)));
        }
    }
    for looks in [3, 5] {
        let limit = Case { noise: 0.5, looks, metrics: 3, ..ONE_LOOK };
        let tally = limit.tally(rows);
        rows.add(tally.row(limit.text(), "accepted", AtMost(5.0)));
        rows.add(tally.row(limit.text(), "rolled back", AtMost(5.0)));
    }
    for looks in 1..=5 {
        for noise in [0.05, 0.2, 0.5] {
            let limit = Case { noise, looks, ..ONE_LOOK };
            rows.add(limit.tally(rows).row(limit.text(), "accepted", AtMost(5.0)));
        }
    }
    let worse = Case { regression: 3.0, ..ONE_LOOK };
    rows.add(worse.tally(rows).row(worse.text(), "rolled back", AtLeast(95.0)));
    // That is why the examples have three seeds.
    let one_seed = Case { noise: 0.5, seeds: 1, ..ONE_LOOK };
    rows.add(one_seed.tally(rows).row(one_seed.text(), "accepted", Shown));
    let looks = |regression, noise, looks| Case { regression, noise, looks, ..ONE_LOOK };
    for (case, holds) in [
        (looks(0.0, 0.05, 1), AtLeast(99.0)),
        (looks(0.0, 0.05, 4), AtLeast(99.0)),
        (looks(3.0, 0.05, 4), AtMost(0.1)),
        (looks(0.0, 1.0, 4), AtMost(50.0)),
    ] {
        rows.add(case.tally(rows).row(case.text(), "accepted", holds));
    }
    for (case, holds) in [
        (looks(0.0, 0.05, 4), AtMost(0.15)),
        (looks(3.0, 0.05, 4), AtMost(0.15)),
        // Noise as large as the limit is looked at to the end.
        (looks(0.0, 1.0, 4), AtLeast(1.0)),
    ] {
        rows.mean((case.text(), "launches of full length"), holds, 2_000, |sample| case.judge(sample).1);
    }
}
