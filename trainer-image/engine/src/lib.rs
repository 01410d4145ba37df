//! The training engine: graph, autodiff, passes, executors.

pub mod array;
pub mod autodiff;
pub mod collective;
pub mod eager;
pub mod executor;
pub mod graph;
pub mod optim;
pub mod passes;
pub mod random;
pub mod recipe;
#[doc(hidden)]
pub mod testing;
