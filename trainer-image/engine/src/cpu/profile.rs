//! Where the time goes.

use crate::lower::Lowered;

/// Time of one kernel, over all runs so far.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// Name of the program.
    pub program: String,
    /// Number of the kernel in it, as in the dump.
    pub kernel: usize,
    /// Kind.
    pub kind: &'static str,
    /// Scope path.
    pub scope: String,
    /// Times it ran.
    pub runs: u64,
    /// Seconds in all.
    pub seconds: f64,
    /// Bytes it reads and writes in a run, each element once.
    pub bytes: usize,
    /// Floating point operations of a run.
    pub flops: u64,
}

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
        let rows =
            lowered.kernels.iter().zip(&self.seconds).enumerate().map(|(index, (kernel, &seconds))| KernelTime {
                program: lowered.name.clone(),
                kernel: index,
                kind: kernel.body.name(),
                scope: kernel.scope.clone(),
                runs: self.runs,
                seconds,
                bytes: lowered.traffic(&kernel.body),
                flops: kernel.body.flops(),
            });
        rows.collect()
    }
}
