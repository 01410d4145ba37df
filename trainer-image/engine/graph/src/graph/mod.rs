//! The intermediate representation: a typed, static-shaped graph in single-assignment form.
//!
//! A [`Program`] is a [`Graph`] with its inputs, its states (parameters, optimiser slots), its outputs and its state
//! updates. Nodes live in an arena; operands have smaller ids than their users, and **the order of the arena is the
//! order of execution**: passes place a node where it should run.

mod arena;
mod builder;
pub mod float8;
mod infer;
mod initial;
mod op;
mod print;
mod program;
pub mod quantize;
mod state;
mod verify;

pub use arena::{Graph, Node, NodeId, ScopeId, Stage};
pub use builder::{Builder, FeatureDropout, FeatureNetworks, Operand, Var, concat};
pub use infer::{infer, infer_sides};
pub use initial::{InitialValues, initial_value, initial_values};
pub use op::{AttentionSpec, BinaryOp, CompareOp, InputId, NormedAttentionSpec, Op, ReduceOp, UnaryOp};
pub use program::{InputDecl, Output, Program, Update};
pub use state::{FileSlice, Init, Role, Seat, StateDecl, StateId};
pub use verify::fits;

pub use crate::{dtype::DType, error::GraphError, meta::Meta, shape::Shape};
