//! Where the time goes.

use crate::Lowered;

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

impl Lowered {
    /// The time of each kernel, given the seconds that each took in `runs` runs.
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
