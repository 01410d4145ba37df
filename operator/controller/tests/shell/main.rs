//! The shell on an API server in memory, with scripted trainers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api;
mod claim;
mod cluster;
mod crash;
mod earlier;
mod histories;
mod later;
mod load;
mod multikueue;
mod nodes;
mod operator;
mod recorded;
mod refused;
mod second;
mod service;
mod stopped;
#[path = "../../../decision/tests/storage/mod.rs"]
mod storage;
mod template;
mod token;
mod writes;
