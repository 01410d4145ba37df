//! What goes wrong, on a real Kubernetes: `tests/run faults`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api_server;
mod gang;
mod matrix;
mod nodes;
mod objects;
mod operators;
mod pods;
mod quiet;
mod scheduling;
