//! Errors of graphs.

use crate::{dtype::DType, shape::Shape};

/// An ill-formed operator, program, or set of arrays for one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// The dtypes or shapes of operands are invalid for the operator.
    #[error("{op} cannot take operands {operands}: {reason}")]
    Operands {
        /// The operator, printed.
        op: String,
        /// Dtypes and shapes of the operands.
        operands: String,
        /// The rule that is violated.
        reason: String,
    },
    /// An error in model code, with its location.
    #[error("{source} (at {location}{scope})")]
    At {
        /// What is wrong.
        source: Box<GraphError>,
        /// `file:line` of the model code.
        location: String,
        /// `, in scope ..`, or empty.
        scope: String,
    },
    /// Two inputs, states or outputs have one name.
    #[error("{kind} `{name}` is declared twice: names are unique")]
    Duplicate {
        /// input, state or output.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// No input, state or output has this name.
    #[error("there is no {kind} `{name}`; there are: {known}")]
    Unknown {
        /// input, state or output.
        kind: &'static str,
        /// The name that was looked up.
        name: String,
        /// The names that exist, joined by commas.
        known: String,
    },
    /// A value does not have the dtype and shape that are declared for it.
    #[error("{what} must be {dtype}{shape}, got {got_dtype}{got_shape}")]
    Mismatch {
        /// The input, state or update.
        what: String,
        /// Declared dtype.
        dtype: DType,
        /// Declared shape.
        shape: Shape,
        /// Dtype given.
        got_dtype: DType,
        /// Shape given.
        got_shape: Shape,
    },
    /// An array's elements do not fill its shape.
    #[error("shape {shape} has {} elements, got {len}", shape.elements())]
    ElementCount {
        /// The shape.
        shape: Shape,
        /// Number of elements given.
        len: usize,
    },
    /// The file of a state's initial value cannot be read.
    #[error("{path}: cannot read the initial value of `{state}`: {problem}; check the file")]
    File {
        /// Name of the state.
        state: String,
        /// The file.
        path: String,
        /// The error of the operating system.
        problem: String,
    },
    /// The graph violates an invariant: a pass has a defect.
    #[error("node {node} is ill-formed: {reason}")]
    IllFormed {
        /// Index of the node.
        node: u32,
        /// The invariant that is violated.
        reason: String,
    },
}
