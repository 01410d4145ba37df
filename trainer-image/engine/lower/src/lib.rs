//! Lowering: from a program of [`pawl_graph`] to fused kernels over buffers in a planned arena, the same for every device. The executors of
//! kernels, on the CPU and on GPUs, build on it.
//!
//! 1. [`simplify`]: a working copy in canonical form.
//! 2. [`fuse`]: which nodes run in one kernel.
//! 3. [`recompute`]: what is cheaper to compute twice than to keep.
//! 4. [`layout`]: which buffer each value is stored in, and how.
//! 5. [`emit`]: the kernels.
//! 6. [`memory`]: places of buffers in one arena.

mod access;
mod addresses;
mod dump;
mod emit;
mod emit_fused;
mod fuse;
mod kernel;
mod layout;
mod memory;
mod recompute;
mod simplify;
mod times;

use std::collections::HashSet;

pub use access::{Access, Class, Nest};
pub use addresses::{Address, Regions};
pub use kernel::{
    Attention, AttentionGrad, Body, Buffer, Collect, CollectOp, Fold, Fused, Instruction, Kernel, Load, Lookup, MatMul,
    Norm, Storage, Store,
};
pub use memory::{ALIGNMENT, MemoryPlan, OwnPlan, Packing, aligned};
pub use times::KernelTime;

use pawl_graph::graph::Program;

/// Choices of lowering.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LowerOptions {
    /// Scope paths whose nodes are not fused: each runs as a kernel of its own. A path names its inner scopes too.
    pub unfused: Vec<String>,
}

impl LowerOptions {
    /// In [`LowerOptions::unfused`]: every node, whatever its scope.
    pub const EVERYTHING: &str = "*";

    fn excludes(&self, path: &str) -> bool {
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
    /// What they read and write.
    pub buffers: Vec<Buffer>,
    /// Where arena buffers lie.
    pub plan: MemoryPlan,
}

impl Lowered {
    /// Lowers a verified program.
    pub fn new(program: &Program, options: &LowerOptions) -> Self {
        let work = simplify::Work::new(program);
        let views = simplify::Views::new(&work);
        let mut fusion = fuse::Fusion::new(&work, &views, &program.graph, options);
        let mut pinned: HashSet<usize> = work.outputs.iter().map(|&item| views.root[item]).collect();
        pinned.extend(work.updates.iter().map(|&(_, item)| views.root[item]));
        recompute::recompute(&mut fusion, &pinned);
        let layout = layout::Layout::new(&fusion);
        let (kernels, buffers) = emit::Emit::run(layout, program.graph.scopes());
        let plan = MemoryPlan::new(&buffers);
        Self { name: program.name.clone(), kernels, buffers, plan }
    }

    /// Places of what the program keeps for itself.
    pub fn own(&self) -> OwnPlan {
        OwnPlan::new(&self.buffers)
    }
}
