//! `kubectl pawl` as a program, against an API server that says what each test wants. The real one is in tests/cluster.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api;
mod changes;
mod errors;
mod looking;
mod preflight;
mod program;
