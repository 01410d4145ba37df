//! The training engine's graph: a model is a forward pass, written once, traced into a static graph; a setting is a
//! pass over that graph.
//!
//! Model code, passes and optimisers need this crate alone. It knows no device: executors are crates of their own that
//! implement [`executor::Executor`].
//!
//! | module | what it is |
//! |---|---|
//! | [`graph`] | the intermediate representation, and the [`Builder`](graph::Builder) that model code is written against |
//! | [`mod@array`] | arrays on the host |
//! | [`float8`] | 8-bit floats |
//! | [`random`] | counter-based random numbers |
//! | [`autodiff`] | reverse mode, graph to graph |
//! | [`passes`] | the settings, each a function from program to program |
//! | [`optim`] | AdamW, Muon and moving averages, as nodes of the graph |
//! | [`recipe`] | forward program and settings in, training programs out |
//! | [`executor`] | the interface of executors; states by name |
//! | [`collective`] | sums over ranks |
//!
//! `pawl-cpu` has an example that evaluates, differentiates, lowers and measures a program.

#![warn(clippy::missing_errors_doc)]

pub mod array;
pub mod autodiff;
pub mod collective;
mod dtype;
mod error;
pub mod executor;
mod fill;
pub mod float8;
pub mod graph;
mod meta;
pub mod optim;
pub mod passes;
pub mod random;
pub mod recipe;
mod shape;
