//! Times of kernels.

use pawl_lower::{KernelTime, Lowered};

/// Times of the kernels of one program.
#[derive(Debug, Default)]
pub(super) struct Times {
    seconds: Vec<f64>,
    runs: u64,
}

impl Times {
    pub(super) fn new(kernels: usize) -> Self {
        Self { seconds: vec![0.0; kernels], runs: 0 }
    }

    pub(super) fn add(&mut self, kernel: usize, seconds: f64) {
        self.seconds[kernel] += seconds;
    }

    pub(super) fn ran(&mut self) {
        self.runs += 1;
    }

    pub(super) fn table(&self, lowered: &Lowered) -> Vec<KernelTime> {
        lowered.times(&self.seconds, self.runs)
    }
}
