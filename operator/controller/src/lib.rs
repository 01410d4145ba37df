//! The Kubernetes shell: a reconcile fetches, observes, decides, applies, and writes the status.

#![forbid(unsafe_code)]

pub mod client;
pub mod leader;
pub mod live;
pub mod metrics;
pub mod serve;
pub mod telemetry;
