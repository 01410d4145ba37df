//! What can be wrong with a graph.

use crate::{dtype::DType, shape::Shape};

/// An ill-formed operator, program, or set of arrays for one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// An operator was given operands it cannot take.
    #[error("{op} cannot take operands {operands}: {reason}")]
    Operands {
        /// The operator, printed.
        op: String,
        /// Dtypes and shapes of the operands.
        operands: String,
        /// What would be right.
        reason: String,
    },
    /// An error in model code, with where.
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
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A value has another shape or dtype than its place wants.
    #[error("{what} wants {dtype}{shape}, got {got_dtype}{got_shape}")]
    Mismatch {
        /// The place.
        what: String,
        /// Dtype wanted.
        dtype: DType,
        /// Shape wanted.
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
    /// The file that a state's first value is in cannot be read.
    #[error("{path}: cannot read the first value of `{state}`: {problem}; check the file")]
    File {
        /// Name of the state.
        state: String,
        /// The file.
        path: String,
        /// What the system said.
        problem: String,
    },
    /// The arena is broken: a pass made a mistake.
    #[error("node {node} is ill-formed: {reason}")]
    IllFormed {
        /// Index of the node.
        node: u32,
        /// What is wrong.
        reason: String,
    },
}
