//! The shell on an API server in memory, with scripted trainers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api;
mod claim;
mod cluster;
mod crash;
mod histories;
mod later;
mod operator;
mod refused;
mod service;
mod stopped;
#[path = "../../../decision/tests/storage/mod.rs"]
mod storage;
mod template;
