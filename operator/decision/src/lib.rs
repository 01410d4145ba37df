//! The decision core. [`decide`] is a pure function of (spec, status, observations, now): this crate's manifest has
//! nothing to do I/O with.
//!
//! Both shells, Kubernetes and local, call it in the same loop: observe, decide, carry out the actions, write the
//! status, emit the events.

pub mod action;
pub mod observed;
