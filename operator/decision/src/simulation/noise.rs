//! Random numbers, and models of what moves the speed of launches.

use std::f64::consts::TAU;

/// Random numbers: SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// At least 0, below 1.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal deviate.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }

    /// Student's t with two degrees of freedom.
    pub fn student(&mut self) -> f64 {
        let squares = -2.0 * (1.0 - self.uniform()).ln();
        self.normal() / (squares / 2.0).sqrt()
    }
}

/// A sequence of standard normal deviates, each correlated with the one before.
pub(crate) struct Correlated {
    correlation: f64,
    state: f64,
}

impl Correlated {
    pub fn new(correlation: f64, random: &mut Random) -> Self {
        Self { correlation, state: random.normal() }
    }

    pub fn next(&mut self, random: &mut Random) -> f64 {
        let fresh = (1.0 - self.correlation * self.correlation).sqrt() * random.normal();
        self.state = self.correlation * self.state + fresh;
        self.state
    }
}

/// What moves the speed of launches. `base` is the standard deviation of the logarithm of a launch's speed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Noise {
    Normal {
        base: f64,
    },
    /// Student's t with two degrees of freedom, with the quartiles of a normal distribution.
    HeavyTails {
        base: f64,
    },
    /// The launch takes longer by a delay whose logarithm is normal with a standard deviation of 1, and whose median is
    /// a share of the launch.
    Delays {
        median: f64,
    },
    /// A share of the launches is slower by a factor.
    Slow {
        base: f64,
        share: f64,
        factor: f64,
    },
    /// Two states of the machine, each of which persists from one launch to the next with a probability.
    States {
        base: f64,
        factor: f64,
        persists: f64,
    },
    /// Linear over 14 launches, and on.
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
    /// Launches that resemble the one before.
    Autocorrelated {
        base: f64,
        correlation: f64,
    },
}

use Noise::{Autocorrelated, Delays, Drift, HeavyTails, Load, Normal, Slow, States};

pub(crate) const CLEAN: Noise = Normal { base: 0.01 };
pub(crate) const HEAVY: Noise = HeavyTails { base: 0.01 };
pub(crate) const FEW_SLOW: Noise = Slow { base: 0.01, share: 0.05, factor: 0.5 };
pub(crate) const TWO_STATES: Noise = States { base: 0.005, factor: 0.8, persists: 0.5 };

/// All models under which errors must be rare, with their names.
pub(crate) const MODELS: [(&str, Noise); 20] = [
    ("normal, 1 %", CLEAN),
    ("normal, 10 %", Normal { base: 0.1 }),
    ("Student's t, 2 degrees of freedom, quartiles of 1 %", HEAVY),
    ("Student's t, 2 degrees of freedom, quartiles of 3 %", HeavyTails { base: 0.03 }),
    ("log-normal delays, 2 % in the median", Delays { median: 0.02 }),
    ("5 % of the launches half as fast", FEW_SLOW),
    ("20 % of the launches half as fast", Slow { base: 0.01, share: 0.2, factor: 0.5 }),
    ("two states 20 % apart, at random", TWO_STATES),
    ("two states 20 % apart, the slow one in a fifth", Slow { base: 0.005, share: 0.2, factor: 0.8 }),
    ("two states 20 % apart, which persist for 10 launches", States { base: 0.005, factor: 0.8, persists: 0.9 }),
    ("drift of -10 % in 14 launches", Drift { base: 0.005, total: -0.1 }),
    ("drift of +10 % in 14 launches", Drift { base: 0.005, total: 0.1 }),
    ("drift of -30 % in 14 launches", Drift { base: 0.002, total: -0.3 }),
    ("load of 3 % with a period of 2 launches", Load { base: 0.005, amplitude: 0.03, period: 2.0, phase: None }),
    ("load of 3 % with a period of 4 launches", Load { base: 0.005, amplitude: 0.03, period: 4.0, phase: None }),
    (
        "load of 3 % with a period of 4 launches, worst phase",
        Load { base: 0.005, amplitude: 0.03, period: 4.0, phase: Some(-TAU / 8.0) },
    ),
    ("load of 3 % with a period of 8 launches", Load { base: 0.005, amplitude: 0.03, period: 8.0, phase: None }),
    ("load of 3 % with a period of 12 launches", Load { base: 0.005, amplitude: 0.03, period: 12.0, phase: None }),
    ("load of 3 % with a period of 20 launches", Load { base: 0.005, amplitude: 0.03, period: 20.0, phase: None }),
    ("3 %, correlation of 0.8 between launches", Autocorrelated { base: 0.03, correlation: 0.8 }),
];

/// A machine on which launches run one after the other.
pub(crate) struct Machine {
    noise: Noise,
    random: Random,
    phase: f64,
    state: Correlated,
    slow: bool,
    clock: u32,
}

impl Machine {
    pub fn new(noise: Noise, seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let phase = TAU * random.uniform();
        let correlation = if let Autocorrelated { correlation, .. } = noise { correlation } else { 0.0 };
        let state = Correlated::new(correlation, &mut random);
        let slow = random.uniform() < 0.5;
        Self { noise, random, phase, state, slow, clock: 0 }
    }

    /// By which factor the next launch is faster than its settings are.
    pub fn launch(&mut self) -> f64 {
        let (clock, random) = (f64::from(self.clock), &mut self.random);
        self.clock += 1;
        let logarithm = match self.noise {
            Normal { base } => base * random.normal(),
            HeavyTails { base } => 0.826 * base * random.student(),
            Delays { median } => -(1.0 + median * random.normal().exp()).ln(),
            Slow { base, share, factor } => {
                let state = if random.uniform() < share { factor.ln() } else { 0.0 };
                state + base * random.normal()
            }
            States { base, factor, persists } => {
                self.slow ^= random.uniform() >= persists;
                base * random.normal() + if self.slow { factor.ln() } else { 0.0 }
            }
            Drift { base, total } => base * random.normal() + total * clock / 14.0,
            Load { base, amplitude, period, phase } => {
                base * random.normal() + amplitude * (TAU * clock / period + phase.unwrap_or(self.phase)).sin()
            }
            Autocorrelated { base, .. } => base * self.state.next(random),
        };
        logarithm.exp()
    }
}
