//! `pawl` end to end: complete runs with the scripted trainer, in a pipe.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod browser;
mod export;
mod interrupted;
mod killed;
mod plain;
mod plan;
mod records;
mod refused;
mod scene;
mod script;
mod search;
mod state;
mod storage;
mod track;
mod trained;
mod ui;
mod whole;
