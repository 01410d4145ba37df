//! Kernels as CUDA C, generated for static shapes: pure functions of lowered kernels.
//!
//! Equal kernels at other addresses or with other random keys (the blocks of a model) have equal sources: addresses and
//! keys are parameters.

mod fused;
mod geometry;
mod index;
mod lookup;
mod product;
mod scatter;
mod segments;
mod transpose;
mod types;

use super::compile::Source;
use pawl_lower::{Body, Buffer};

const PRELUDE: &str = include_str!("prelude.cu");

/// A generated kernel: `main_kernel`, and `finish_kernel` when partial results of blocks are combined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The translation unit.
    pub source: Source,
    /// Threads of a block.
    pub threads: usize,
    /// Blocks.
    pub grid: Grid,
    /// Parameters of `main_kernel`, in order.
    pub arguments: Vec<Argument>,
    /// The second kernel, with 1,024 threads a block.
    pub finish: Option<Finish>,
    /// Bytes of workspace.
    pub workspace: usize,
}

/// Blocks of a launch: `blocks * beside` along x, `tiles` along y.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// Blocks for the rows of a segment; at most, for a persistent grid.
    pub blocks: usize,
    /// Segments.
    pub beside: usize,
    /// Parts of the columns.
    pub tiles: usize,
    /// Whether blocks loop until all rows are done: more blocks than the GPU runs at once are not needed.
    pub persistent: bool,
}

/// An argument of a generated kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// Address in a buffer.
    Buffer {
        /// Index into [`Lowered::buffers`](pawl_lower::Lowered::buffers).
        buffer: usize,
        /// Bytes from its start.
        offset: usize,
    },
    /// Address in the workspace, in bytes from its start.
    Workspace(usize),
    /// The key of a random draw: blocks of a model draw under other keys, and are one source all the same.
    Key(u64),
}

/// The kernel that combines the partial results of blocks. Its parameters: the workspace, the number of blocks (`u32`),
/// then `arguments`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Addresses of the results.
    pub arguments: Vec<Argument>,
    /// Blocks.
    pub grid: [u32; 3],
}

/// The kernel of fused loops, of a gather or scatter, or over segments, for a GPU with that many multiprocessors;
/// `None` for other kinds of kernels.
pub fn generate(body: &Body, buffers: &[Buffer], multiprocessors: usize) -> Option<Generated> {
    match body {
        Body::Fused(kernel) => {
            let turned = transpose::bytes(kernel, buffers);
            Some(turned.unwrap_or_else(|| fused::fused(kernel, buffers, multiprocessors)))
        }
        Body::Gather(kernel) => Some(lookup::gather(kernel, buffers)),
        Body::ScatterAdd(kernel) => Some(scatter::scatter_add(kernel, buffers)),
        Body::Segments(kernel) => Some(segments::segments(kernel, buffers)),
        Body::MatMul(_) | Body::Attention(_) | Body::AttentionGrad(_) | Body::Collective(_) => None,
    }
}

pub use product::{product, scaling};
