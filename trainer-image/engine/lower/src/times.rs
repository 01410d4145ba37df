//! Times of kernels.

use crate::Lowered;

/// Time of one kernel, summed over runs.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// Name of the program.
    pub program: String,
    /// Index of the kernel in the program, as in [`Lowered::dump_kernels`].
    pub kernel: usize,
    /// Kind: see [`Body::name`](crate::Body::name).
    pub kind: &'static str,
    /// Scope path.
    pub scope: String,
    /// Number of runs.
    pub runs: u64,
    /// Seconds, summed over all runs.
    pub seconds: f64,
    /// Bytes read and written per run, each element counted once.
    pub bytes: usize,
    /// Floating point operations per run.
    pub flops: u64,
}

impl Lowered {
    /// The time of each kernel, given the seconds of each, summed over `runs` runs.
    pub fn times(&self, seconds: &[f64], runs: u64) -> Vec<KernelTime> {
        let time = |(index, (kernel, &seconds)): (usize, (&crate::Kernel, &f64))| KernelTime {
            program: self.name.clone(),
            kernel: index,
            kind: kernel.body.name(),
            scope: kernel.scope.clone(),
            runs,
            seconds,
            bytes: self.traffic(&kernel.body),
            flops: kernel.body.flops(),
        };
        self.kernels.iter().zip(seconds).enumerate().map(time).collect()
    }
}
