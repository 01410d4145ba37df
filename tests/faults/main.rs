//! What goes wrong, on a real Kubernetes: `tests/run faults`.
//!
//! Each test has a namespace and an operator of its own, so they run side by side; those in [`alone`] do not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alone;
// Two minutes of mostly waiting: by its name it is among the first to start.
mod at_rest;
mod field;
mod gang;
mod matrix;
mod nodes;
mod objects;
mod operators;
mod overload;
mod pods;
mod scheduling;
