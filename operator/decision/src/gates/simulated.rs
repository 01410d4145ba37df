//! Simulations of the test of the speed: its level and power under noise that is not normal, with their standard errors.

use super::sequential::tests::Noise as Random;
use super::sequential::{Sequential, sequential};
use crate::comparison::control_first;
use pawl_api::spec::Analysis;
use std::f64::consts::TAU;

/// What moves the speed of launches, in logarithms. `base` is the standard deviation of a launch.
#[derive(Clone, Copy, Debug)]
enum Noise {
    Normal {
        base: f64,
    },
    /// Student's t with two degrees of freedom, with the quartiles of a normal distribution.
    HeavyTails {
        base: f64,
    },
    /// A share of the launches is slower by a factor.
    Slow {
        base: f64,
        share: f64,
        factor: f64,
    },
    /// Linear over 14 launches.
    Drift {
        base: f64,
        total: f64,
    },
    /// A load with a period in launches; phase `None`: random.
    Load {
        base: f64,
        amplitude: f64,
        period: f64,
        phase: Option<f64>,
    },
}

use Noise::{Drift, HeavyTails, Load, Normal, Slow};

/// All models under which the level must hold.
const MODELS: [Noise; 17] = [
    Normal { base: 0.01 },
    Normal { base: 0.1 },
    HeavyTails { base: 0.01 },
    HeavyTails { base: 0.03 },
    Slow { base: 0.01, share: 0.05, factor: 0.5 },
    Slow { base: 0.01, share: 0.2, factor: 0.5 },
    // Two states of the machine.
    Slow { base: 0.005, share: 0.5, factor: 0.8 },
    Slow { base: 0.005, share: 0.2, factor: 0.8 },
    Drift { base: 0.005, total: -0.1 },
    Drift { base: 0.005, total: 0.1 },
    Drift { base: 0.002, total: -0.3 },
    Load { base: 0.005, amplitude: 0.03, period: 2.0, phase: None },
    Load { base: 0.005, amplitude: 0.03, period: 4.0, phase: None },
    Load { base: 0.005, amplitude: 0.03, period: 4.0, phase: Some(-TAU / 8.0) },
    Load { base: 0.005, amplitude: 0.03, period: 8.0, phase: None },
    Load { base: 0.005, amplitude: 0.03, period: 12.0, phase: None },
    Load { base: 0.005, amplitude: 0.03, period: 20.0, phase: None },
];

/// Student's t with two degrees of freedom.
fn heavy(random: &mut Random) -> f64 {
    let squares = -2.0 * (1.0 - random.uniform()).ln();
    random.normal() / (squares / 2.0).sqrt()
}

/// The speed of the launch at place `clock`, without its settings' effect.
fn speed(noise: Noise, clock: usize, random_phase: f64, random: &mut Random) -> f64 {
    let clock = clock as f64;
    let logarithm = match noise {
        Normal { base } => base * random.normal(),
        HeavyTails { base } => 0.826 * base * heavy(random),
        Slow { base, share, factor } => {
            let state = if random.uniform() < share { factor.ln() } else { 0.0 };
            state + base * random.normal()
        }
        Drift { base, total } => base * random.normal() + total * clock / 14.0,
        Load { base, amplitude, period, phase } => {
            base * random.normal() + amplitude * (TAU * clock / period + phase.unwrap_or(random_phase)).sin()
        }
    };
    logarithm.exp()
}

/// Shares of trials.
#[derive(Default)]
struct Shares {
    trials: f64,
    accepted: f64,
    rolled_back: f64,
}

impl Shares {
    /// Two standard errors of a share of 5 %.
    fn tolerance(&self) -> f64 {
        2.0 * (0.05 * 0.95 / self.trials).sqrt()
    }
}

/// Phases with a true speedup `effect`, tested against `threshold`.
fn simulate(noise: Noise, effect: f64, threshold: f64, trials: u32) -> Shares {
    let (analysis, mut random) = (Analysis::default(), Random::seeded(7));
    let mut shares = Shares { trials: trials.into(), ..Shares::default() };
    for trial in 0..trials {
        let (phase, name) = (TAU * random.uniform(), format!("phase-r0-{trial:04x}"));
        let (mut pairs, mut clock) = (Vec::new(), 0);
        let verdict = loop {
            let Sequential::More(required) = sequential(&pairs, threshold, &analysis) else {
                break sequential(&pairs, threshold, &analysis);
            };
            while pairs.len() < required {
                let (first, second) =
                    (speed(noise, clock, phase, &mut random), speed(noise, clock + 1, phase, &mut random));
                clock += 2;
                let first_is_control = control_first(&name, pairs.len() as u32);
                let (control, candidate) = if first_is_control { (first, second) } else { (second, first) };
                pairs.push((control, candidate * effect));
            }
        };
        match verdict {
            Sequential::Above(_) => shares.accepted += 1.0 / shares.trials,
            Sequential::Below(_) => shares.rolled_back += 1.0 / shares.trials,
            Sequential::Undecided(_) | Sequential::More(_) => {}
        }
    }
    let (Shares { accepted, rolled_back, .. }, error) = (&shares, shares.tolerance() / 2.0);
    println!(
        "{noise:?}, true {effect}, minSpeedup {threshold}: accepted {:.2} %, rolled back {:.2} % (standard error at 5 %: {:.2} %)",
        accepted * 100.0,
        rolled_back * 100.0,
        error * 100.0
    );
    shares
}

#[test]
fn the_level_holds_under_every_noise() {
    for noise in MODELS {
        let at_boundary = simulate(noise, 1.02, 1.02, 4_000);
        let most = 0.05 + at_boundary.tolerance();
        assert!(at_boundary.accepted <= most, "{noise:?}: false accepts {}", at_boundary.accepted);
        assert!(at_boundary.rolled_back <= most, "{noise:?}: false rollbacks {}", at_boundary.rolled_back);
        let without_effect = simulate(noise, 1.0, 1.02, 1_000);
        assert!(without_effect.accepted <= most, "{noise:?}: A against A {}", without_effect.accepted);
    }
}

#[test]
fn a_few_slow_launches_cost_little_power() {
    let slow = Slow { base: 0.01, share: 0.05, factor: 0.5 };
    for (effect, least) in [(1.10, 0.9), (1.05, 0.85)] {
        let [clean, slow] = [Normal { base: 0.01 }, slow].map(|noise| simulate(noise, effect, 1.02, 2_000));
        assert!(clean.accepted >= 0.99, "{}", clean.accepted);
        assert!(slow.accepted >= least * clean.accepted, "{effect}: {} beside {}", slow.accepted, clean.accepted);
        assert!(slow.rolled_back <= 0.01, "{effect}: false rollbacks {}", slow.rolled_back);
    }
}
