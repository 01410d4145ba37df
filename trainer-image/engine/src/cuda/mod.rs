//! The executors on NVIDIA GPUs.

pub mod compile;
pub mod device;
mod error;
