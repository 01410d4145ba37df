//! Simulations of the verdicts: how often they are wrong, and how often they find what is there. One list of rows, each
//! with its standard error. Each group has a test with few samples, and an ignored one with more: `tests/verdicts/run`
//! runs those, and records their rows in `simulated.json`, from which a page of the book is made.
//!
//! Sample number `n` of a row is the same in both: the long run repeats those of the short one and adds others.

pub(crate) mod noise;
pub(crate) mod shell;

mod cost;
mod equal_losses;
mod guard;
mod ladders;
mod quality;
mod speed;
mod steady;

use crate::gates::{equivalence, quality as quality_gate};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The rows of the long run, by group.
const RECORDED: &str = include_str!("../../simulated.json");

const REMEDY: &str = "simulated.json is out of date: run 'tests/verdicts/run --record', then docs/generate";

/// A number that a simulation has measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// What was simulated.
    pub case: String,
    /// What was counted.
    pub counted: String,
    /// Which values are right.
    pub holds: Bound,
    pub unit: Unit,
    /// In the unit.
    pub value: f64,
    /// Standard error of the value.
    pub error: f64,
    /// Number of independent simulations.
    pub samples: u32,
}

/// What must hold of a row, in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// Nothing is promised: the row shows what the test cannot do.
    Shown,
}

/// Unit of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Unit {
    /// Percent of the samples.
    Percent,
    /// Number in each sample.
    Number,
}

use Bound::{AtLeast, AtMost, Shown};

/// Standard errors by which chance may move an error rate beyond its bound: many are close to it by design.
const CHANCE: f64 = 2.0;

impl Row {
    /// Whether the bound holds; an upper one up to chance.
    fn is_right(&self) -> bool {
        match (self.holds, self.unit) {
            (AtMost(most), Unit::Percent) => self.value <= most + CHANCE * 100.0 * error_of(most / 100.0, self.samples),
            (AtMost(most), Unit::Number) => self.value <= most + CHANCE * self.error,
            (AtLeast(least), _) => self.value >= least,
            (Shown, _) => true,
        }
    }

    /// Whether another run of it has found the same, up to chance.
    fn agrees(&self, other: &Self) -> bool {
        let least = match self.unit {
            Unit::Percent => 100.0 / f64::from(self.samples.min(other.samples)),
            // Recorded numbers have four decimals.
            Unit::Number => 1e-4,
        };
        let error = self.error.hypot(other.error).max(least);
        self.holds == other.holds && self.unit == other.unit && (self.value - other.value).abs() <= 4.0 * error
    }
}

/// Standard error of a share.
fn error_of(share: f64, samples: u32) -> f64 {
    (share * (1.0 - share) / f64::from(samples)).sqrt()
}

/// How often each outcome was found.
pub(crate) struct Tally {
    samples: u32,
    counts: BTreeMap<&'static str, u32>,
}

impl Tally {
    /// Share of an outcome, 0 to 1.
    pub fn share(&self, outcome: &str) -> f64 {
        f64::from(self.counts.get(outcome).copied().unwrap_or(0)) / f64::from(self.samples)
    }

    /// The row of an outcome.
    pub fn row(&self, case: impl Into<String>, outcome: &str, holds: Bound) -> Row {
        let share = self.share(outcome);
        Row {
            case: case.into(),
            counted: outcome.to_owned(),
            holds,
            unit: Unit::Percent,
            value: share * 100.0,
            error: error_of(share, self.samples) * 100.0,
            samples: self.samples,
        }
    }
}

/// Rows as they are measured.
pub(crate) struct Rows {
    group: &'static str,
    /// How many times as many samples as a short run has.
    times: u32,
    rows: Vec<Row>,
}

impl Rows {
    /// Simulates samples; each is given its number.
    pub fn tally(&self, samples: u32, mut sample: impl FnMut(u64) -> &'static str) -> Tally {
        let samples = samples * self.times;
        let mut counts = BTreeMap::new();
        for number in 0..u64::from(samples) {
            *counts.entry(sample(number)).or_default() += 1;
        }
        Tally { samples, counts }
    }

    /// Numbers of the samples of a run.
    pub fn samples(&self, samples: u32) -> impl Iterator<Item = u64> + use<> {
        0..u64::from(samples * self.times)
    }

    /// Adds the row of a mean over samples.
    pub fn mean(&mut self, name: (impl Into<String>, &str), holds: Bound, samples: u32, sample: impl Fn(u64) -> f64) {
        let values: Vec<f64> = self.samples(samples).map(sample).collect();
        self.mean_of(name, holds, &values);
    }

    /// Adds the row of the mean of what each sample has measured.
    pub fn mean_of(&mut self, (case, counted): (impl Into<String>, &str), holds: Bound, values: &[f64]) {
        let samples = u32::try_from(values.len()).expect("samples are few");
        let count = f64::from(samples);
        let value = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|found| (found - value).powi(2)).sum::<f64>() / (count - 1.0);
        let (case, counted, unit) = (case.into(), counted.to_owned(), Unit::Number);
        self.add(Row { case, counted, holds, unit, value, error: (variance / count).sqrt(), samples });
    }

    /// Adds a row, and prints it.
    pub fn add(&mut self, row: Row) {
        let unit = if row.unit == Unit::Percent { " %" } else { "" };
        let holds = match row.holds {
            AtMost(most) => format!("at most {most}{unit}"),
            AtLeast(least) => format!("at least {least}{unit}"),
            Shown => "no bound".to_owned(),
        };
        let sign = if row.is_right() { "ok  " } else { "FAIL" };
        let Row { case, counted, value, error, samples, .. } = &row;
        println!("{sign} {}: {case}: {counted} {value:.2} ± {error:.2}{unit} ({holds}; {samples} samples)", self.group);
        self.rows.push(row);
    }
}

/// A group of rows.
type Group = (&'static str, fn(&mut Rows));

const SPEED: Group = ("speed", speed::rows);
const POWER: Group = ("power", ladders::power);
const LADDERS: Group = ("ladders", ladders::rows);
const STEADY: Group = ("steady", steady::rows);
const EQUIVALENCE: Group = ("equivalence", |rows| {
    equivalence::simulated::rows(rows);
    equal_losses::rows(rows);
});
const QUALITY: Group = ("quality", |rows| {
    quality_gate::simulated::rows(rows);
    quality::rows(rows);
});
const GUARD: Group = ("guard", guard::rows);
const COST: Group = ("cost", cost::rows);

/// Measures the rows of a group, each of which must hold.
fn measure((group, measure): Group, times: u32) -> Vec<Row> {
    let mut found = Rows { group, times, rows: Vec::new() };
    measure(&mut found);
    let wrong: Vec<&Row> = found.rows.iter().filter(|row| !row.is_right()).collect();
    assert!(wrong.is_empty(), "{group}: {wrong:#?}");
    found.rows
}

/// Measures the rows of a group with few samples. Each must be the recorded one up to chance.
fn short(group: Group) {
    let rows = measure(group, 1);
    let recorded: BTreeMap<String, Vec<Row>> = serde_json::from_str(RECORDED).expect("simulated.json is valid");
    let recorded = recorded.get(group.0).cloned().unwrap_or_default();
    let names = |rows: &[Row]| rows.iter().map(|row| (row.case.clone(), row.counted.clone())).collect::<Vec<_>>();
    assert_eq!(names(&recorded), names(&rows), "{REMEDY}");
    for (row, recorded) in rows.iter().zip(&recorded) {
        assert!(row.agrees(recorded), "{REMEDY}: {row:#?} is not {recorded:#?}");
    }
}

/// Measures the rows of a group with five times as many samples, and prints them for `tests/verdicts/run`.
fn long(group: Group) {
    longer(group, 5);
}

fn longer(group: Group, times: u32) {
    for row in measure(group, times) {
        println!("ROW {} {}", group.0, serde_json::to_string(&row).expect("a row is JSON"));
    }
}

#[test]
fn speed() {
    short(SPEED);
}

#[test]
#[ignore = "minutes: tests/verdicts/run"]
fn speed_with_more_samples() {
    long(SPEED);
}

#[test]
fn power() {
    short(POWER);
}

#[test]
#[ignore = "minutes: tests/verdicts/run"]
fn power_with_more_samples() {
    long(POWER);
}

#[test]
fn ladders() {
    short(LADDERS);
}

#[test]
#[ignore = "minutes: tests/verdicts/run"]
fn ladders_with_more_samples() {
    long(LADDERS);
}

#[test]
fn steady_state() {
    short(STEADY);
}

#[test]
#[ignore = "minutes: tests/verdicts/run"]
fn steady_state_with_more_samples() {
    long(STEADY);
}

#[test]
fn equal_losses() {
    short(EQUIVALENCE);
}

#[test]
#[ignore = "minutes: tests/verdicts/run"]
fn equal_losses_with_more_samples() {
    long(EQUIVALENCE);
}

#[test]
fn quality_gate() {
    short(QUALITY);
}

#[test]
#[ignore = "minutes: tests/verdicts/run"]
fn quality_gate_with_more_samples() {
    long(QUALITY);
}

#[test]
fn guard_of_trainings() {
    short(GUARD);
}

#[test]
#[ignore = "minutes: tests/verdicts/run"]
fn guard_of_trainings_with_more_samples() {
    long(GUARD);
}

#[test]
fn cost_of_judging() {
    short(COST);
}

#[test]
#[ignore = "minutes: tests/verdicts/run"]
fn cost_of_judging_with_more_samples() {
    // Whole ladders take long, and their means few samples.
    longer(COST, 3);
}
