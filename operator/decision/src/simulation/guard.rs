//! The guard of the training: false alarms, and slow-downs that it finds.

use super::noise::{CLEAN, Correlated, Machine, Random};
use super::shell::{Shell, active, done, phase};
use super::{AtLeast, AtMost, Bound, Rows, Shown};
use crate::gates::cusum::Cusum;
use serde_json::json;

/// The defaults of `train.guard`.
const TOLERANCE: f64 = 0.2;
const WINDOWS: u32 = 5;

/// Windows of a training: noise of this share, each correlated with the one before.
struct Windows {
    random: Random,
    noise: f64,
    state: Correlated,
}

impl Windows {
    fn new(sample: u64, (noise, correlation): (f64, f64)) -> Self {
        let mut random = Random::seeded(sample);
        let state = Correlated::new(correlation, &mut random);
        Self { random, noise, state }
    }

    /// Logarithm of expected over measured items per second of the next window, with a slow-down of this share.
    fn next(&mut self, slower: f64) -> f64 {
        self.noise * self.state.next(&mut self.random) - (1.0 - slower).ln()
    }
}

/// Alarms in 10,000 windows of a training that is as fast as expected.
fn false_alarms(kind: (f64, f64), sample: u64) -> f64 {
    let (mut cusum, mut windows, mut alarms) = (Cusum::default(), Windows::new(sample, kind), 0.0);
    for _ in 0..10_000 {
        cusum.add(windows.next(0.0), TOLERANCE);
        if cusum.alarms(TOLERANCE, WINDOWS) {
            alarms += 1.0;
            cusum.restart();
        }
    }
    alarms
}

/// Windows until a slow-down is found that begins after 300 windows; at most 1,000.
fn delay(kind: (f64, f64), slower: f64, sample: u64) -> usize {
    let (mut cusum, mut windows) = (Cusum::default(), Windows::new(sample, kind));
    for _ in 0..300 {
        cusum.add(windows.next(0.0), TOLERANCE);
        if cusum.alarms(TOLERANCE, WINDOWS) {
            cusum.restart();
        }
    }
    let found = (1..=1_000).find(|_| {
        cusum.add(windows.next(slower), TOLERANCE);
        cusum.alarms(TOLERANCE, WINDOWS)
    });
    found.unwrap_or(1_000)
}

/// A job in whose training one phase of +20 % is in effect.
fn training<'t>(sample: u64) -> Shell<'t> {
    let mut machine = Machine::new(CLEAN, sample);
    let trainer = move |plan: &_| done(plan, 100.0 * 1.2f64.powi(active(plan).count() as i32) * machine.launch(), 1.0);
    let spec = json!({"phases": [phase(0)], "train": {"items": 1_000_000_000_000u64},
        "settings": {"batchPerGpu": 8 + sample % 64}});
    let mut shell = Shell::new(spec, Box::new(trainer));
    shell.run();
    shell
}

/// Windows of a training until its cause is measured, at most `most`: `slower` begins after `quiet` windows.
fn until_checked(slower: f64, correlation: f64, (quiet, most): (usize, usize), sample: u64) -> Option<usize> {
    let (mut shell, mut windows) = (training(sample), Windows::new(!sample, (0.03, correlation)));
    (1..=quiet + most).find(|number| {
        let speed = 120.0 * (-windows.next(if *number > quiet { slower } else { 0.0 })).exp();
        shell.trains(|progress| {
            (progress.windows, progress.step) = (progress.windows + 1, progress.step + 10);
            (progress.items, progress.items_per_second) = (progress.items + 100, Some(speed));
        });
        shell.events.contains_key("SlowdownCheck")
    })
}

pub(super) fn rows(rows: &mut Rows) {
    for (noise, correlation) in [(0.03, 0.0), (0.03, 0.5), (0.03, 0.9), (0.1, 0.0), (0.1, 0.5)] {
        let case = format!("10,000 windows, noise of {} %, correlation {correlation}", noise * 100.0);
        let holds = if (noise, correlation) == (0.03, 0.0) { AtMost(0.1) } else { AtMost(1.0) };
        rows.mean((case, "false alarms"), holds, 100, |sample| false_alarms((noise, correlation), sample));
    }
    let cases: [(f64, usize, (f64, f64), Bound); 7] = [
        (0.1, 20, (0.03, 0.0), AtLeast(90.0)),
        (0.1, 20, (0.03, 0.5), AtLeast(90.0)),
        (0.2, 5, (0.03, 0.0), AtLeast(80.0)),
        (0.2, 5, (0.03, 0.5), AtLeast(80.0)),
        (0.5, 5, (0.03, 0.0), AtLeast(99.0)),
        (0.2, 20, (0.03, 0.9), AtLeast(90.0)),
        (0.05, 20, (0.03, 0.0), Shown),
    ];
    for (slower, within, (noise, correlation), holds) in cases {
        let found = |sample| delay((noise, correlation), slower, sample) <= within;
        let tally = rows.tally(1_000, |sample| if found(sample) { "found" } else { "not found" });
        let case = format!(
            "{} % slower, noise of {} %, correlation {correlation}, within {within} windows",
            slower * 100.0,
            noise * 100.0
        );
        rows.add(tally.row(case, "found", holds));
    }
    // The promise of a job is a lower bound, so that a part of the slow-down is within its uncertainty.
    for (slower, within, correlation, holds) in [
        (0.1, 20, 0.0, AtLeast(65.0)),
        (0.1, 20, 0.5, AtLeast(65.0)),
        (0.1, 40, 0.5, AtLeast(95.0)),
        (0.2, 5, 0.0, AtLeast(65.0)),
        (0.2, 5, 0.5, AtLeast(60.0)),
        (0.2, 10, 0.5, AtLeast(98.0)),
    ] {
        let tally = rows.tally(100, |sample| match until_checked(slower, correlation, (50, within), sample) {
            Some(window) if window > 50 => "found",
            Some(_) => "false alarm",
            None => "not found",
        });
        let case = format!(
            "job, {} % slower, noise of 3 %, correlation {correlation}, within {within} windows",
            slower * 100.0
        );
        rows.add(tally.row(case, "found", holds));
    }
    let alarms = |sample| until_checked(0.0, 0.5, (0, 10_000), sample).map_or(0.0, |_| 1.0);
    let case = "job, 10,000 windows as fast as measured, noise of 3 %, correlation 0.5";
    rows.mean((case, "false alarms"), AtMost(1.0), 2, alarms);
}
