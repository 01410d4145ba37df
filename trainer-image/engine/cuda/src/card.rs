//! What kernels are planned for: a model of GPU, of which none has to be there.

use super::error::NAME;
use pawl_graph::{
    executor::ExecError,
    graph::{DType, Program},
};

/// A model of GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Card {
    /// Compute capability: `(9, 0)`.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of dynamic shared memory that a block may have.
    pub shared: usize,
}

impl Card {
    /// The oldest compute capability for which CUDA 13 compiles.
    pub const OLDEST: (i32, i32) = (7, 5);
    /// The oldest compute capability with 8-bit floats.
    const FLOAT8: (i32, i32) = (8, 9);
    /// An H100 or H200.
    pub const H200: Self = Self { capability: (9, 0), multiprocessors: 132, shared: 227 << 10 };

    /// Whether it has what came with compute capability 8.0: bfloat16, TensorFloat-32, products of 16 x 8 x 16 on
    /// tensor cores, and copies into shared memory beside other work.
    pub fn is_ampere(self) -> bool {
        self.capability >= (8, 0)
    }

    /// Whether cuBLASLt multiplies 8-bit products by scales of rows and columns on it.
    pub(super) fn scales_by_vectors(self) -> bool {
        self.capability == (9, 0)
    }

    /// Checks that it has the number formats that `programs` use. What else a card lacks decides which kernels are
    /// planned for it.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] naming the setting, the compute capability and the remedy: it ends the launch whose
    /// setting it is, and the job continues with what was accepted before.
    pub fn check(self, programs: &[Program], tf32: bool) -> Result<(), ExecError> {
        let has = |format: fn(DType) -> bool| {
            programs.iter().any(|program| program.graph.nodes().iter().any(|node| format(node.meta.dtype)))
        };
        let (lacking, since, instead) = if self.capability < Self::FLOAT8 && has(DType::is_float8) {
            ("fp8", Self::FLOAT8, if self.is_ampere() { "bf16" } else { "fp16 or fp32" })
        } else if self.is_ampere() {
            return Ok(());
        } else if tf32 {
            ("tf32", (8, 0), "fp16 or fp32")
        } else if has(|dtype| dtype == DType::BF16) {
            ("bf16", (8, 0), "fp16 or fp32")
        } else {
            return Ok(());
        };
        let (major, minor) = self.capability;
        let what = format!(
            "{lacking} on a GPU of compute capability {major}.{minor}: it came with {}.{}; set settings.precision: {instead}",
            since.0, since.1
        );
        Err(ExecError::Unsupported { executor: NAME, what })
    }
}
