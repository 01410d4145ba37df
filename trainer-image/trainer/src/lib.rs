//! The trainer: contract, loop, ranks, checkpoints.
