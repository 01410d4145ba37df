//! The trainer: contract, loop, ranks, checkpoints.

pub mod checkpoint;
pub mod collective;
pub mod signals;
