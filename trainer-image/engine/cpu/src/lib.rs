//! The `Graph` executor on the CPU: lowered kernels over one static arena; nothing is allocated inside a run.
//!
//! The trainer uses [`GraphCpu`] for `compile: Graph` and `compile: Fuse`, benchmarks compare it with other executors.
//!
//! Results do not depend on the number of threads: tasks and the order of sums are fixed by shapes.
//!
//! # Example
//! Builds a small program with its gradient, simplifies it, predicts its memory and runs it:
//! ```
//! use pawl_cpu::GraphCpu;
//! use pawl_graph::{
//!     array::{Array, Data, View},
//!     autodiff::gradients,
//!     executor::{ExecError, ExecOptions, Executable, Executor},
//!     graph::{Builder, DType, Init},
//!     passes,
//! };
//!
//! // loss = mean((x w^T)^2), and its gradient with respect to w.
//! let b = Builder::new("loss");
//! let x = b.input("x", DType::F32, [2, 3]);
//! let w = b.parameter("w", [1, 3], Init::Fill(1.0));
//! let loss = x.matmul_t(w).square().mean_all();
//! b.output("loss", loss);
//! if let Some(dw) = gradients(loss, &[w])[0] {
//!     b.output("dw", dw);
//! }
//! let program = passes::simplify(&b.finish()?)?;
//!
//! // The memory is known before the first run, and bounded on request.
//! let cpu = GraphCpu { threads: 1, ..GraphCpu::default() };
//! let mut run = cpu.build(&[program.clone()], &ExecOptions::default())?;
//! let planned = run.memory().planned;
//! let limited = ExecOptions { memory_limit: Some(planned - 1), ..ExecOptions::default() };
//! assert!(matches!(cpu.compile(&[program], &limited), Err(ExecError::OutOfMemory { needed, .. }) if needed == planned));
//!
//! // x w^T is [6, 15]: the loss is (36 + 225) / 2, its gradient 6 x0 + 15 x1.
//! run.run(0, &[View::F32(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])])?;
//! assert_eq!(run.output(0, 0)?.item(), 130.5);
//! assert_eq!(run.output(0, 1)?.to_f64(), [66.0, 87.0, 108.0]);
//! assert!(run.memory().peak <= planned);
//!
//! // States are read and written by name.
//! run.write_state("w", &Array::new([1, 3], Data::F32(vec![0.0; 3]))?)?;
//! run.run(0, &[View::F32(&[1.0; 6])])?;
//! assert_eq!(run.output(0, 0)?.item(), 0.0);
//!
//! // The lowered program, as text.
//! let kernels: String = run.lowered().map(|lowered| lowered.dump_kernels()).collect();
//! assert!(kernels.contains("matmul"), "{kernels}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(clippy::missing_errors_doc)]

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
mod segments;
mod transfer;

pub use executable::GraphExecutable;

use pawl_graph::{
    executor::{ExecError, ExecOptions, Executable, Executor},
    graph::Program,
};
use pawl_lower::LowerOptions;

/// Allocation of arena buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffers {
    /// All are in one arena, at offsets planned before the first run.
    #[default]
    Planned,
    /// Each is taken from a pool before the first kernel that writes it, and returned after the last kernel that reads
    /// it.
    Pooled,
}

/// The executor of fused kernels on the CPU.
#[derive(Debug, Clone)]
pub struct GraphCpu {
    /// Number of threads, including the caller's; at least 1.
    pub threads: usize,
    /// Allocation of values: `compile: Graph` plans, `compile: Fuse` does not.
    pub buffers: Buffers,
    /// Options of lowering (`compileScope`).
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
    /// As [`Executor::compile`], with access to what is specific to this executor: dumps and times.
    ///
    /// # Errors
    /// When a program is ill-formed, does not fit in memory, or has an operator or dtype that this executor does not
    /// support.
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
