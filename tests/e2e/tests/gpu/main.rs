//! The whole product on GPUs: the chart's operator, real pods, the trainer. `tests/device/cluster` runs this on a
//! machine with GPUs, or with pretended ones.
//!
//! A test that needs what the machine does not have says SKIPPED.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod devices;
mod faults;
mod gangs;
mod ladder;
mod queue;
mod start;
mod straggler;
