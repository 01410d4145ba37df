//! The test of the speed by itself: its level and its power.

use super::noise::{CLEAN, FEW_SLOW, MODELS, Machine, Noise, TWO_STATES};
use super::{AtLeast, AtMost, Rows, Shown};
use crate::comparison::control_first;
use crate::statistics::sequential::{Sequential, sequential};
use pawl_api::spec::Analysis;
use std::f64::consts::TAU;

/// The verdict of the default analysis on a phase with a true speedup `effect`, tested against `threshold`; its pairs.
fn verdict(noise: Noise, effect: f64, threshold: f64, sample: u64) -> (&'static str, usize) {
    verdict_of(&Analysis::default(), noise, effect, threshold, sample)
}

fn verdict_of(analysis: &Analysis, noise: Noise, effect: f64, threshold: f64, sample: u64) -> (&'static str, usize) {
    let mut machine = Machine::new(noise, sample);
    let (name, mut pairs) = (format!("phase-r0-{sample:04x}"), Vec::new());
    loop {
        match sequential(&pairs, threshold, analysis) {
            Sequential::More(required) => {
                while pairs.len() < required {
                    let (first, second) = (machine.launch(), machine.launch());
                    let first_is_control = control_first(&name, pairs.len() as u32);
                    let (control, candidate) = if first_is_control { (first, second) } else { (second, first) };
                    pairs.push((control, candidate * effect));
                }
            }
            Sequential::Above(_) => return ("accepted", pairs.len()),
            Sequential::Below(_) => return ("rolled back", pairs.len()),
            Sequential::Undecided(_) => return ("inconclusive", pairs.len()),
        }
    }
}

/// Models that hide also 10 % from seven pairs more often than in a tenth of the cases.
const HIDING: [&str; 6] = [
    "normal, 10 %",
    "Student's t, 2 degrees of freedom, quartiles of 3 %",
    "20 % of the launches half as fast",
    "two states 20 % apart, at random",
    "two states 20 % apart, the slow one in a fifth",
    "two states 20 % apart, which persist for 10 launches",
];

pub(super) fn rows(rows: &mut Rows) {
    for (name, noise) in MODELS {
        let at_threshold = rows.tally(8_000, |sample| verdict(noise, 1.02, 1.02, sample).0);
        let case = format!("exactly at minSpeedup 1.02; {name}");
        rows.add(at_threshold.row(case.clone(), "accepted", AtMost(5.0)));
        rows.add(at_threshold.row(case, "rolled back", AtMost(5.0)));
        let without_effect = rows.tally(2_000, |sample| verdict(noise, 1.0, 1.02, sample).0);
        rows.add(without_effect.row(format!("without effect, minSpeedup 1.02; {name}"), "accepted", AtMost(5.0)));
        for effect in [1.05, 1.1] {
            let found = rows.tally(2_000, |sample| verdict(noise, effect, 1.02, sample).0);
            // Within a tenth of the clean case, or nothing is promised.
            let holds = if effect == 1.05 || HIDING.contains(&name) { Shown } else { AtLeast(89.8) };
            let case = format!("true {effect}, minSpeedup 1.02; {name}");
            rows.add(found.row(case.clone(), "accepted", holds));
            rows.add(found.row(case, "rolled back", AtMost(5.0)));
        }
    }
    // The level holds where a load meets the launches at a random phase. A load that began with them favours some
    // orders.
    for (period, phase) in [(2.25, TAU / 12.0), (2.5, 17.0 * TAU / 24.0), (12.0, TAU / 12.0)] {
        let noise = Noise::Load { base: 0.005, amplitude: 0.03, period, phase: Some(phase) };
        let found = rows.tally(8_000, |sample| verdict(noise, 1.02, 1.02, sample).0);
        let case = format!("exactly at minSpeedup 1.02; load of 3 % with a period of {period} launches, worst phase");
        rows.add(found.row(case.clone(), "accepted", Shown));
        rows.add(found.row(case, "rolled back", Shown));
    }
    designs(rows);
    let normal = |base| Noise::Normal { base };
    for (noise, effect, threshold, holds) in [
        (0.02, 1.02, 1.02, AtMost(5.0)),
        (0.02, 1.0, 1.0, AtMost(5.0)),
        (0.02, 1.0, 1.02, AtMost(2.5)),
        (0.02, 1.05, 1.0, AtLeast(97.0)),
        (0.01, 1.05, 1.02, AtLeast(97.0)),
        // Against 1.02 only 3 % are left of it: no test sees that in 7 pairs of such launches 97 times of 100 (one t
        // test of all 7 at alpha: 77 %).
        (0.02, 1.05, 1.02, AtLeast(65.0)),
        (0.014, 1.05, 1.02, AtLeast(80.0)),
    ] {
        let tally = rows.tally(10_000, |sample| verdict(normal(noise), effect, threshold, sample).0);
        let case = format!("normal, {:.1} %; true {effect}, minSpeedup {threshold}", noise * 100.0);
        rows.add(tally.row(case, "accepted", holds));
    }
    for (noise, most) in [(0.01, 5.5), (0.02, 5.0), (0.03, 5.0), (0.1, 5.0)] {
        let case = format!("normal, {:.0} %; without effect, minSpeedup 1.02", noise * 100.0);
        rows.mean((case, "pairs"), AtMost(most), 2_000, |sample| verdict(normal(noise), 1.0, 1.02, sample).1 as f64);
    }
    for (noise, threshold) in [(0.02, 1.0), (0.014, 1.02)] {
        let case = format!("normal, {:.1} %; true 1.05, minSpeedup {threshold}", noise * 100.0);
        let pairs = |sample| verdict(normal(noise), 1.05, threshold, sample).1 as f64;
        rows.mean((case, "pairs"), AtMost(6.0), 2_000, pairs);
    }
}

/// Analyses with other looks: the sign test is used at the last look of the first two only.
fn designs(rows: &mut Rows) {
    for (min_pairs, max_pairs) in [(5, 7), (7, 7), (4, 7), (3, 6), (3, 5)] {
        let analysis = Analysis { min_pairs, max_pairs, ..Analysis::default() };
        for (name, noise, effect, holds) in [
            ("exactly at minSpeedup 1.02; normal, 1 %", CLEAN, 1.02, AtMost(5.0)),
            ("exactly at minSpeedup 1.02; 5 % of the launches half as fast", FEW_SLOW, 1.02, AtMost(5.0)),
            // Ratios of two states have three values, which t does not know.
            ("exactly at minSpeedup 1.02; two states 20 % apart, at random", TWO_STATES, 1.02, Shown),
            ("true 1.05, minSpeedup 1.02; 5 % of the launches half as fast", FEW_SLOW, 1.05, Shown),
        ] {
            let found = rows.tally(4_000, |sample| verdict_of(&analysis, noise, effect, 1.02, sample).0);
            rows.add(found.row(format!("{min_pairs} to {max_pairs} pairs; {name}"), "accepted", holds));
        }
    }
}
