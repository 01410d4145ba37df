//! The trainer: contract, loop, ranks, checkpoints.

pub mod collective;
