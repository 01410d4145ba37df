//! The stage on which Pawl is tested: a namespace of the real cluster of `tests/cluster`, an operator of its own that
//! may do only what its service account may, and people who break things.
//!
//! A test is `scene(async |scene| { ... })`. It runs inside the cluster's network (`tests/cluster/with`, or
//! `tests/cluster/enter` on a cluster that is up), with `KUBECONFIG` set.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

pub mod audit;
pub mod gpus;
pub mod job;
pub mod kueue;
pub mod local;
pub mod machines;
pub mod operator;
pub mod programs;
pub mod proxy;
pub mod scene;
pub mod soak;

pub use operator::Operator;
pub use scene::{Scene, scene};
