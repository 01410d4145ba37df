//! Selection of the executor on the CPU, and the configuration common to all executors.

use pawl_contract::settings::{Compile, Settings};
use pawl_cpu::{Buffers, GraphCpu};
use pawl_eager::Eager;
use pawl_graph::executor::Executor;
use pawl_lower::LowerOptions;

pub use pawl_launch::place::threads;

/// `None` runs one library call per operation, `Fuse` fused kernels over pooled buffers, `Graph` the same kernels over
/// a static memory plan.
pub fn on_cpu(settings: &Settings) -> Box<dyn Executor> {
    match fused_on_cpu(settings) {
        Some(executor) => Box::new(executor),
        None => Box::new(Eager::cpu()),
    }
}

/// The executor of fused kernels on the CPU, unless `settings.compile` is `None`.
pub fn fused_on_cpu(settings: &Settings) -> Option<GraphCpu> {
    let buffers = match settings.compile() {
        Compile::None => return None,
        Compile::Fuse => Buffers::Pooled,
        Compile::Graph => Buffers::Planned,
    };
    Some(GraphCpu { threads: threads(), buffers, lowering: lowering(settings), timed: false })
}

/// How programs are lowered to kernels: `compileScope.exclude` is not fused.
pub fn lowering(settings: &Settings) -> LowerOptions {
    LowerOptions { unfused: settings.compile_scope().exclude }
}
