//! The trainer contract, version 1: the data that operator, agent and trainer exchange.
//!
//! This crate contains plain data types with serde and does no I/O, so that the decision core, the agent and any
//! trainer can depend on it.
//!
//! - [`attempt`]: the names of attempts, and how they end.
//! - [`plan`]: the launches of an attempt; one [`plan::LaunchPlan`] is the `plan.json` of one launch.
//! - [`measured`]: measurements, in the same form wherever they occur.
//! - [`disturbance`]: what else happened on the machine of a launch, and when it counts.
//! - [`details`]: measurements that only the report contains.
//! - [`report`]: the report of a launch; [`report::LaunchResult`] is its compact form, the input of decisions.
//! - [`curve`]: the loss curve in a few numbers.
//! - [`progress`]: the progress of a running launch.
//! - [`losses`]: the curve of the training loss, and when it spikes.
//! - [`provenance`]: what an attempt was measured with: machine, versions and source.
//! - [`record`]: what outlives the pods of a job, in its storage; [`happened`]: its events.
//! - [`live`]: the state of a running attempt, as agent 0 serves it.
//! - [`exit`]: exit codes and outcomes; [`fingerprint`]: by what a failure that repeats is recognized.
//! - [`mod@env`]: the environment variables of a rank.
//! - [`pod`]: the environment variables of an agent's pod, set by the operator.
//! - [`settings`]: the typed optimization settings; [`effect`]: those that have no effect beside others.
//! - [`problem`]: errors of a specification.
//! - [`script`]: scripts that do not implement the contract; [`template`]: placeholders in their command; [`log`]:
//!   patterns over their output; [`text`]: texts that others chose.

#![warn(clippy::missing_errors_doc)]

pub mod attempt;
pub mod checkpoint;
pub mod curve;
pub mod decimal;
pub mod details;
pub mod disturbance;
pub mod effect;
pub mod env;
pub mod exit;
pub mod fingerprint;
pub mod happened;
pub mod live;
pub mod log;
pub mod losses;
pub mod measured;
pub mod plan;
pub mod plausible;
pub mod pod;
pub mod problem;
pub mod progress;
pub mod provenance;
pub mod record;
pub mod report;
pub mod script;
pub mod settings;
pub mod steady;
pub mod template;
pub mod text;

/// The contract version that plans and reports carry.
pub const CONTRACT_VERSION: u32 = 1;
