//! The training engine: graph, autodiff, passes, executors.
