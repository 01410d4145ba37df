//! Exact solutions of the advection equation on a periodic interval.

use super::config::AdvectionConfig;
use crate::random::Stream;
use std::f64::consts::TAU;

/// Time between two frames: PDEBench's 0.01, every second frame.
pub const FRAME_SPACING: f64 = 0.02;
/// Candidate wave numbers are 1 to this.
const MODES: u64 = 4;
/// Width of the edges of a window.
const EDGE: f64 = 0.01;

/// Initial conditions: two sine waves; some rectified, some negated, some windowed.
#[derive(Debug)]
pub struct Advection {
    waves: Vec<[Wave; 2]>,
    rectified: Vec<bool>,
    negated: Vec<bool>,
    windows: Vec<Option<(f64, f64)>>,
    cells: usize,
    frames: usize,
    betas: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Wave {
    mode: f64,
    amplitude: f64,
    phase: f64,
}

impl Advection {
    /// Draws `count` initial conditions from stream 1 of `seed`.
    pub fn new(seed: u64, count: usize, config: &AdvectionConfig) -> Self {
        let (stream, n) = (Stream::new(seed, 1), count as u64);
        // Drawn as whole arrays one after the other: (n, 2) modes, amplitudes, phases, then five of (n).
        let (modes, amplitudes, phases, single) = (0, 2 * n, 4 * n, 6 * n);
        let wave = |at: u64| Wave {
            mode: (stream.below(modes + at, MODES) + 1) as f64,
            amplitude: stream.uniform(amplitudes + at),
            phase: TAU * stream.uniform(phases + at),
        };
        let flag = |array: u64, i: u64, below: f64| stream.uniform(single + array * n + i) < below;
        let edge = |array: u64, i: u64, from: f64| from + 0.35 * stream.uniform(single + array * n + i);
        Self {
            waves: (0..n).map(|i| [wave(2 * i), wave(2 * i + 1)]).collect(),
            rectified: (0..n).map(|i| flag(0, i, 0.1)).collect(),
            negated: (0..n).map(|i| flag(1, i, 0.5)).collect(),
            windows: (0..n).map(|i| flag(2, i, 0.1).then(|| (edge(3, i, 0.1), edge(4, i, 0.55)))).collect(),
            cells: config.cells,
            frames: config.frames,
            betas: config.betas.values().to_vec(),
        }
    }

    /// Writes trajectory `index` to `out`, (frames, cells) row-major: u0((x - beta t) mod 1) at the cell centres.
    pub fn trajectory(&self, index: usize, out: &mut [f32]) {
        let beta = self.betas[index % self.betas.len()];
        for (frame, row) in out.chunks_exact_mut(self.cells).take(self.frames).enumerate() {
            let shift = beta * (frame as f64 * FRAME_SPACING);
            for (cell, value) in row.iter_mut().enumerate() {
                let x = (cell as f64 + 0.5) / self.cells as f64;
                *value = self.initial(index, (x - shift).rem_euclid(1.0)) as f32;
            }
        }
    }

    fn initial(&self, index: usize, x: f64) -> f64 {
        let [first, second] =
            self.waves[index].map(|wave| wave.amplitude * libm::sin(TAU * wave.mode * x + wave.phase));
        let mut u = first + second;
        if self.rectified[index] {
            u = u.abs();
        }
        if self.negated[index] {
            u = -u;
        }
        if let Some((left, right)) = self.windows[index] {
            u = u * 0.5 * (libm::tanh((x - left) / EDGE) - libm::tanh((x - right) / EDGE));
        }
        u
    }
}
