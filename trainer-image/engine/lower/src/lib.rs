//! Lowering: from a program of [`pawl_graph`] to fused kernels over buffers in a planned arena, the same for every
//! device. The executors of kernels, on the CPU and on GPUs, build on it.
//!
//! ```
//! use pawl_graph::graph::{Builder, DType, Init};
//! use pawl_lower::{Body, LowerOptions, Lowered};
//!
//! let b = Builder::new("layer");
//! let x = b.input("x", DType::F32, [64, 32]);
//! let (w, bias) = (b.parameter("w", [16, 32], Init::Fill(0.1)), b.parameter("bias", [16], Init::Fill(0.0)));
//! b.output("y", (x.matmul_t(w) + bias).gelu());
//! let program = b.finish()?;
//!
//! // The product is one kernel; bias and GELU are fused to another.
//! let lowered = Lowered::new(&program, &LowerOptions::default());
//! assert!(matches!(lowered.kernels[..], [_, _]), "{}", lowered.dump_kernels());
//! let Body::MatMul(product) = &lowered.kernels[0].body else { panic!("the product runs first") };
//! assert_eq!(product.extents(), (1, 64, 16, 32));
//! // The arena holds the product: 64 x 16 float32.
//! assert_eq!(lowered.plan.arena, 64 * 16 * 4);
//!
//! // Without fusion, every operator is a kernel.
//! let unfused = LowerOptions { unfused: vec![LowerOptions::EVERYTHING.into()] };
//! assert!(Lowered::new(&program, &unfused).kernels.len() > 2);
//! # Ok::<(), pawl_graph::graph::GraphError>(())
//! ```
//!
//! The steps:
//!
//! 1. [`simplify`]: a working copy in canonical form.
//! 2. [`fuse`]: which nodes run in one kernel.
//! 3. [`recompute`]: which values are cheaper to compute twice than to keep.
//! 4. [`layout`]: which buffer each value is stored in, and how.
//! 5. [`emit`]: the kernels.
//! 6. [`memory`]: places of buffers in one arena.
//! 7. [`gather`]: again from 4., if copies of gradients make the arena smaller.

#![warn(clippy::missing_errors_doc)]

mod access;
mod addresses;
mod dump;
mod emit;
mod emit_fused;
mod fuse;
mod gather;
mod kernel;
mod layout;
mod memory;
mod recompute;
mod simplify;
mod times;

use std::collections::HashSet;

pub use access::{Access, Class, Nest};
pub use addresses::{Address, BaseAddresses};
pub use kernel::{
    Attention, AttentionGrad, Body, Buffer, Collect, CollectOp, Fold, Fused, Instruction, Kernel, Load, Lookup, MatMul,
    Norm, SegmentOp, Segments, Storage, Store,
};
pub use memory::{ALIGNMENT, MemoryPlan, OwnPlan, Packing, aligned};
pub use times::KernelTime;

use pawl_graph::graph::Program;

/// Choices of lowering.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LowerOptions {
    /// Scope paths whose nodes are not fused: each node runs as its own kernel. A path includes its inner scopes.
    pub unfused: Vec<String>,
}

impl LowerOptions {
    /// In [`LowerOptions::unfused`]: all nodes, in any scope.
    pub const EVERYTHING: &str = "*";

    /// Whether nodes in scope `path` run unfused.
    pub fn excludes(&self, path: &str) -> bool {
        self.unfused.iter().any(|scope| {
            scope == Self::EVERYTHING
                || path.strip_prefix(scope.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// A program as kernels.
#[derive(Debug, Clone, PartialEq)]
pub struct Lowered {
    /// Name of the program.
    pub name: String,
    /// Kernels, in execution order.
    pub kernels: Vec<Kernel>,
    /// The memory that kernels read and write.
    pub buffers: Vec<Buffer>,
    /// Offsets of the arena buffers.
    pub plan: MemoryPlan,
}

impl Lowered {
    /// Lowers a verified program.
    ///
    /// # Panics
    /// When the program is not well formed: see [`Program::verify`].
    pub fn new(program: &Program, options: &LowerOptions) -> Self {
        let work = simplify::Work::new(program);
        let views = simplify::Views::new(&work);
        let mut fusion = fuse::Fusion::new(&work, &views, &program.graph, options);
        let mut pinned: HashSet<usize> = work.outputs.iter().map(|&item| views.root[item]).collect();
        pinned.extend(work.updates.iter().map(|&(_, item)| views.root[item]));
        recompute::recompute(&mut fusion, &pinned);
        gather::smallest(|apart| {
            let layout = layout::Layout::new(&fusion, apart);
            let gathered = layout.gathered();
            let (kernels, buffers) = emit::Emit::run(layout, program.graph.scopes());
            let plan = MemoryPlan::new(&buffers);
            (Self { name: program.name.clone(), kernels, buffers, plan }, gathered)
        })
    }

    /// Offsets of the program's constants and outputs.
    pub fn own(&self) -> OwnPlan {
        OwnPlan::new(&self.buffers)
    }
}
