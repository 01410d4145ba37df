//! `kubectl pawl` as a program, against a scripted API server. The real one is in tests/cluster.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api;
#[path = "../all/browser.rs"]
mod browser;
mod changes;
mod errors;
mod login;
mod looking;
mod preflight;
mod program;
mod ui;
