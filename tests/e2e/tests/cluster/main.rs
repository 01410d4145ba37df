//! What users do, on a real Kubernetes: `tests/run cluster`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alone;
mod gangs;
mod kubectl_preflight;
mod ladders;
mod manifests;
mod pods;
mod preflight;
mod queue;
mod rights;
mod search;
mod security;
mod shells;
mod storage;
mod ui;
