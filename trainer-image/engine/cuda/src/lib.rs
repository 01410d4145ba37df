//! The executors on NVIDIA GPUs.
//!
//! Lowered kernels run as code generated for their static shapes and compiled by NVRTC ([`source`], [`compile`]),
//! products by cuBLASLt, attention by generated kernels ([`attention`]), sums over ranks by NCCL ([`nccl`]). Libraries
//! are opened when they are first needed: a binary with this crate starts on any machine. Compute capability 7.5 or
//! newer and CUDA 13 are required to run; what came with 8.0 (bf16, tf32, attention on tensor cores) is refused or
//! replaced on older GPUs ([`Card`]).
//!
//! The trainer uses [`CudaGraph`] with its feature `cuda`; `pawl-kernels` checks and times single kernels.
//!
//! The eager executor on Candle's CUDA kernels is not in the same program: they need a CUDA toolkit when they are
//! built, and link to libcuda, so that the binary does not start without a driver (feature `candle-cuda` of
//! `pawl-trainer`). The baseline here is [`CudaGraph::unfused`]: one kernel per operator, queued one by one.
//!
//! # Example
//! [`predict`] needs no GPU:
//! ```
//! use pawl_cuda::{Choices, predict};
//! use pawl_graph::graph::{Builder, DType, Init};
//! use pawl_lower::LowerOptions;
//!
//! let b = Builder::new("product");
//! let x = b.input("x", DType::F32, [4096, 1024]);
//! b.output("y", x.matmul_t(b.parameter("w", [1024, 1024], Init::Fill(0.0))).exp());
//! let lowering = LowerOptions::default();
//! let memory = predict(&[b.finish()?], Choices { lowering: &lowering, tf32: false, offload: false })?;
//! assert_eq!(memory.states, 1024 * 1024 * 4);
//! // Two slots of inputs, the product, the output; and the workspace of cuBLASLt.
//! assert!(memory.planned > memory.states + 4 * 4096 * 1024 * 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(clippy::missing_errors_doc)]

pub mod attention;
mod cache;
mod card;
pub mod compile;
mod compiled;
pub mod cudnn;
pub mod device;
mod error;
mod executable;
mod host_states;
mod kernel;
mod matmul;
pub mod nccl;
mod overlap;
mod planned;
mod problem;
pub mod source;
mod spans;
mod transfer;

use std::{path::PathBuf, sync::Arc};

pub use card::Card;
pub use error::Check;
pub use executable::CudaExecutable;
pub use planned::{Choices, predict, predict_on, specialize};

use pawl_graph::{
    executor::{ExecError, ExecOptions, Executable, Executor},
    graph::Program,
};
use pawl_lower::LowerOptions;

/// How the kernels of a program are launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Launching {
    /// All at once, as a captured CUDA graph.
    #[default]
    Captured,
    /// One by one.
    Streamed,
}

/// The executor of generated kernels on a GPU.
#[derive(Clone)]
pub struct CudaGraph {
    /// The GPU.
    pub device: Arc<device::Device>,
    /// How kernels are launched: `compile: Graph` captures, `compile: Fuse` does not.
    pub launching: Launching,
    /// Options of lowering (`compileScope`).
    pub lowering: LowerOptions,
    /// Whether float32 products may round operands to 10 bits of significand (`precision: tf32`).
    pub tf32: bool,
    /// Whether algorithms of matrix products are chosen by timing (else the library's first choice).
    pub tune: bool,
    /// Whether inputs are copied through page-locked memory (`loaderPinned`), which is asynchronous.
    pub pinned: bool,
    /// Whether the optimiser's state is in page-locked host memory (`optimizerOffload: Cpu`), which kernels of the
    /// update access directly.
    pub offload: bool,
    /// Whether cuDNN's attention is bit-reproducible from run to run: no sum depends on the order in which blocks end.
    /// (For products, see `tune`.)
    pub deterministic: bool,
    /// cuDNN, whose attention is used where it is faster; `None`: generated kernels only.
    pub cudnn: Option<Arc<cudnn::Cudnn>>,
    /// The communicator of collectives, when there is more than one rank.
    pub gang: Option<Arc<nccl::Nccl>>,
}

impl CudaGraph {
    /// Everything fused, captured and tuned, float32 products exact, without cuDNN, one rank.
    pub fn new(device: Arc<device::Device>) -> Self {
        Self {
            device,
            launching: Launching::Captured,
            lowering: LowerOptions::default(),
            tf32: false,
            tune: true,
            pinned: true,
            offload: false,
            deterministic: false,
            cudnn: None,
            gang: None,
        }
    }

    /// The baseline (`compile: None`): one kernel per operator, queued one by one, the library's first choice of
    /// algorithms.
    pub fn unfused(device: Arc<device::Device>) -> Self {
        let lowering = LowerOptions { unfused: vec![LowerOptions::EVERYTHING.into()] };
        Self { launching: Launching::Streamed, lowering, tune: false, ..Self::new(device) }
    }

    /// As [`Executor::compile`], with access to what is specific to this executor: dumps and times.
    ///
    /// # Errors
    /// When a program is ill-formed, does not fit in memory, or has an operator or dtype that this executor does not
    /// support.
    pub fn build(&self, programs: &[Program], options: &ExecOptions) -> Result<CudaExecutable, ExecError> {
        CudaExecutable::new(self, programs, options)
    }
}

impl Executor for CudaGraph {
    fn name(&self) -> &'static str {
        let all = self.lowering.unfused.iter().any(|scope| scope == LowerOptions::EVERYTHING);
        match (self.launching, all) {
            (Launching::Captured, _) => "graph-cuda",
            (Launching::Streamed, false) => "fuse-cuda",
            (Launching::Streamed, true) => "operators-cuda",
        }
    }

    fn compile(&self, programs: &[Program], options: &ExecOptions) -> Result<Box<dyn Executable>, ExecError> {
        Ok(Box::new(self.build(programs, options)?))
    }
}

/// Directory in which compiled kernels and chosen algorithms are cached: `$PAWL_KERNEL_CACHE`,
/// `$XDG_CACHE_HOME/pawl/kernels` or `~/.cache/pawl/kernels`.
pub fn cache_directory() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    variable("PAWL_KERNEL_CACHE").or_else(|| cache().map(|cache| cache.join("pawl").join("kernels")))
}
