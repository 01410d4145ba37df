//! Which executor a launch runs on.

use crate::ending::Ending;
use pawl_contract::settings::{Compile, Settings};
use pawl_engine::eager::Eager;
use pawl_engine::executor::Executor;
use pawl_engine::lower::LowerOptions;

/// The executor that `settings.compile` names, on the CPU.
///
/// # Errors
/// [`Ending::Unsupported`] when there is none.
pub fn executor(settings: &Settings) -> Result<Box<dyn Executor>, Ending> {
    match settings.compile.unwrap_or_default() {
        Compile::Off => Ok(Box::new(Eager::cpu())),
        Compile::Fuse | Compile::Graph => Err(Ending::Unsupported("settings.compile".to_owned())),
    }
}

/// How programs are lowered to kernels: `compileScope.exclude` is not fused.
pub fn lowering(settings: &Settings) -> LowerOptions {
    let scope = settings.compile_scope.clone().unwrap_or_default();
    LowerOptions { unfused: scope.exclude }
}
