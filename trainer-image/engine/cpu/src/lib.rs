//! The `Graph` executor on the CPU: lowered kernels over one static arena; nothing is allocated inside a run.
//!
//! The trainer uses [`GraphCpu`] for `compile: Graph` and `compile: Fuse`, benchmarks compare it with other executors.
//!
//! Results do not depend on the number of threads: what a task does and the order of sums are fixed by shapes.

mod attention;
mod blocks;
mod bytes;
mod comm;
mod compiled;
mod executable;
mod fused;
mod gemm;
mod kernel;
mod lanes;
mod math;
mod microkernel;
mod pool;
mod profile;
mod transfer;

pub use executable::GraphExecutable;

use pawl_graph::{
    executor::{ExecError, ExecOptions, Executable, Executor},
    graph::Program,
};
use pawl_lower::LowerOptions;

/// How arena buffers come by their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffers {
    /// All lie in one arena, at places planned before the first run.
    #[default]
    Planned,
    /// Each is taken from a pool by the kernel that writes it, and given back after the last that reads it.
    Pooled,
}

/// The executor of fused kernels on the CPU.
#[derive(Debug, Clone)]
pub struct GraphCpu {
    /// Threads, the caller among them.
    pub threads: usize,
    /// Where values lie: `compile: Graph` plans, `compile: Fuse` does not.
    pub buffers: Buffers,
    /// Choices of lowering (`compileScope`).
    pub lowering: LowerOptions,
    /// Whether kernels are timed, for [`GraphExecutable::profile`].
    pub timed: bool,
}

impl Default for GraphCpu {
    /// As many threads as the machine runs at once, planned buffers, everything fused, nothing timed.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, buffers: Buffers::Planned, lowering: LowerOptions::default(), timed: false }
    }
}

impl GraphCpu {
    /// As [`Executor::compile`], with what only this executor knows (dumps, times).
    ///
    /// # Errors
    /// When a program is ill-formed, does not fit, or has something this executor cannot run.
    pub fn build(&self, programs: &[Program], options: &ExecOptions) -> Result<GraphExecutable, ExecError> {
        GraphExecutable::new(self, programs, options)
    }
}

impl Executor for GraphCpu {
    fn name(&self) -> &'static str {
        match self.buffers {
            Buffers::Planned => "graph-cpu",
            Buffers::Pooled => "fuse-cpu",
        }
    }

    fn compile(&self, programs: &[Program], options: &ExecOptions) -> Result<Box<dyn Executable>, ExecError> {
        Ok(Box::new(self.build(programs, options)?))
    }
}
