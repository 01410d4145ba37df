//! The intermediate representation: a typed, static-shaped graph in single-assignment form.
//!
//! A [`Program`] is a [`Graph`] with its inputs, its states (parameters, optimiser slots), its outputs and its state
//! updates. Nodes live in an arena; operands have smaller ids than their users, and **the order of the arena is the
//! order of execution**: passes place a node where it should run.

mod arena;
mod builder;
mod dtype;
mod error;
mod infer;
mod initial;
mod op;
mod print;
mod program;
pub mod quantize;
mod shape;
mod state;
mod var;
mod verify;

pub use arena::{Graph, Node, NodeId, ScopeId, Stage};
pub use builder::Builder;
pub use dtype::DType;
pub use error::GraphError;
pub use infer::{Meta, infer, infer_sides};
pub use initial::{initial_value, initial_values};
pub use op::{AttentionSpec, BinaryOp, CompareOp, NormedAttentionSpec, Op, ReduceOp, UnaryOp};
pub use program::{InputDecl, InputId, Output, Program, Update};
pub use shape::Shape;
pub use state::{FileSlice, Init, Role, StateDecl, StateId};
pub use var::{Operand, Var, concat};

pub use verify::fits;
