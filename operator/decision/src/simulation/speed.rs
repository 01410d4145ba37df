//! The test of the speed by itself: its level and its power.

use super::noise::{MODELS, Machine, Noise};
use super::{AtLeast, AtMost, Rows};
use crate::comparison::control_first;
use crate::gates::sequential::{Sequential, sequential};
use pawl_api::spec::Analysis;

/// The verdict on a phase with a true speedup `effect`, tested against `threshold`; its pairs.
fn verdict(noise: Noise, effect: f64, threshold: f64, trial: u64) -> (&'static str, usize) {
    let (analysis, mut machine) = (Analysis::default(), Machine::new(noise, trial));
    let (name, mut pairs) = (format!("phase-r0-{trial:04x}"), Vec::new());
    loop {
        match sequential(&pairs, threshold, &analysis) {
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

pub(super) fn rows(rows: &mut Rows) {
    for (name, noise) in MODELS {
        let at_threshold = rows.tally(8_000, |trial| verdict(noise, 1.02, 1.02, trial).0);
        let case = format!("exactly at minSpeedup 1.02; {name}");
        rows.add(at_threshold.row(case.clone(), "accepted", AtMost(5.0)));
        rows.add(at_threshold.row(case, "rolled back", AtMost(5.0)));
        let without_effect = rows.tally(2_000, |trial| verdict(noise, 1.0, 1.02, trial).0);
        rows.add(without_effect.row(format!("without effect, minSpeedup 1.02; {name}"), "accepted", AtMost(5.0)));
    }
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
        let tally = rows.tally(10_000, |trial| verdict(normal(noise), effect, threshold, trial).0);
        let case = format!("normal, {:.1} %; true {effect}, minSpeedup {threshold}", noise * 100.0);
        rows.add(tally.row(case, "accepted", holds));
    }
    for (noise, most) in [(0.01, 5.5), (0.02, 5.0), (0.03, 5.0), (0.1, 5.0)] {
        let case = format!("normal, {:.0} %; without effect, minSpeedup 1.02", noise * 100.0);
        rows.mean((case, "pairs"), AtMost(most), 2_000, |trial| verdict(normal(noise), 1.0, 1.02, trial).1 as f64);
    }
    for (noise, threshold) in [(0.02, 1.0), (0.014, 1.02)] {
        let case = format!("normal, {:.1} %; true 1.05, minSpeedup {threshold}", noise * 100.0);
        let pairs = |trial| verdict(normal(noise), 1.05, threshold, trial).1 as f64;
        rows.mean((case, "pairs"), AtMost(6.0), 2_000, pairs);
    }
}
