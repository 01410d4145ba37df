//! What operator and trainer share: settings, plan, report, progress, exit codes, environment.
//!
//! This crate is the trainer contract, version 1. It holds plain data and serde, nothing that does I/O, so that the
//! decision core, the agent and any trainer can depend on it.
//!
//! - [`plan`]: what an attempt runs; one [`plan::LaunchPlan`] is the `plan.json` of one launch.
//! - [`measured`]: what was measured, the same wherever it is written.
//! - [`report`]: what a launch found; [`report::LaunchResult`] is the compact form on which decisions are made.
//! - [`progress`]: what a running launch says of itself.
//! - [`live`]: what agent 0 says of the attempt that it runs.
//! - [`exit`]: exit codes and outcomes.
//! - [`mod@env`]: the environment of a rank.
//! - [`pod`]: what the operator gives to the agent of a pod.
//! - [`settings`]: the typed optimization settings.

pub mod decimal;
pub mod env;
pub mod exit;
pub mod live;
pub mod measured;
pub mod plan;
pub mod pod;
pub mod progress;
pub mod report;
pub mod settings;
mod termination;

/// The contract version that plans and reports carry.
pub const CONTRACT_VERSION: u32 = 1;
