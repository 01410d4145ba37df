//! Forward programs as [ONNX](https://onnx.ai) models, which other runtimes evaluate.
//!
//! Every operator of the graph that computes a forward pass in 32-bit floats becomes a few of ONNX's; what has no
//! counterpart there is an error that names it. States become the model's weights.
//!
//! Programs have fixed shapes. A model whose batch size is free is found by comparing programs that were traced for
//! several batch sizes: where they differ only in extents that grow with it, each such extent is computed from the
//! input.
//!
//! ```
//! use pawl_graph::graph::{Builder, DType, Init};
//! use pawl_onnx::{MOST_INSIDE, Traced, export};
//! let traced = [2, 3, 5].map(|batch| {
//!     let b = Builder::new("example");
//!     let x = b.input("x", DType::F32, [batch, 3]);
//!     let weight = b.parameter("weight", [4, 3], Init::Uniform { bound: 0.5 });
//!     b.output("y", x.matmul_t(weight).tanh());
//!     Traced { batch, program: b.finish().expect("it is well formed") }
//! });
//! let model = export(&traced, MOST_INSIDE)?;
//! assert_eq!((model.inputs.as_slice(), model.batch), (&["x".to_owned()][..], None));
//! # Ok::<(), pawl_onnx::OnnxError>(())
//! ```

#![warn(clippy::missing_errors_doc)]

mod extents;
mod lower;
mod proto;
mod tensor;
#[cfg(test)]
mod tests;

use pawl_graph::graph::GraphError;
use prost::Message as _;

pub use extents::Traced;

use lower::Lowering;
use proto::{ModelProto, OperatorSetIdProto, StringStringEntryProto};

/// Version of the file format, and that of the operators: the first that has all of those that models use.
const IR_VERSION: i64 = 8;
const OPSET: i64 = 18;

/// Bytes of weights above which they stay in the files of their declarations: a model of 2 GiB is no valid message.
pub const MOST_INSIDE: usize = 2_000_000_000;

/// Key of the metadata that says for which batch size a model is: [`ANY_BATCH`], or the number.
pub const BATCH: &str = "pawl.batch";
/// The value of [`BATCH`] of a model whose batch size is free.
pub const ANY_BATCH: &str = "any";

/// Error of exporting a program.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// An operator, or one on values of this type, has no counterpart in ONNX.
    #[error("operation {operation}{} has no counterpart in ONNX", place(.scope))]
    Operation {
        /// The operator and its value.
        operation: String,
        /// Where in the model; empty at its root.
        scope: String,
    },
    /// There is no program.
    #[error("there is no program to export")]
    Nothing,
    /// A weight cannot be read.
    #[error(transparent)]
    Weight(#[from] GraphError),
}

fn place(scope: &str) -> String {
    if scope.is_empty() { String::new() } else { format!(" in {scope}") }
}

/// An exported model.
#[derive(Clone, Debug)]
pub struct Model {
    /// The content of the file.
    pub bytes: Vec<u8>,
    /// Names of the inputs: those of the program from which an output is computed, in its order.
    pub inputs: Vec<String>,
    /// The batch size, unless it is free.
    pub batch: Option<usize>,
}

/// Exports the first of `traced`, which are one program for different batch sizes. Weights above `most_inside` bytes in
/// all stay in the files of their declarations ([`Init::File`](pawl_graph::graph::Init::File)), which the model names
/// without their directories: put it beside them.
///
/// # Errors
/// [`OnnxError::Operation`] names what has no counterpart in ONNX; [`OnnxError::Weight`] when the value of a state
/// cannot be read.
pub fn export(traced: &[Traced], most_inside: usize) -> Result<Model, OnnxError> {
    let Some(Traced { batch, program }) = traced.first() else { return Err(OnnxError::Nothing) };
    let needed = extents::needed(program);
    let free = extents::of_all(traced, &needed).and_then(|extents| Lowering::of_any_batch(program, extents));
    let (lowering, batch) = match free {
        Some(lowering) => (lowering, None),
        None => (Lowering::of_one_batch(program, extents::of_one(program, &needed)), Some(*batch)),
    };
    let graph = lowering.graph(&needed, most_inside)?;
    let inputs = graph.input.iter().map(|input| input.name.clone()).collect();
    let said = batch.map_or(ANY_BATCH.to_owned(), |batch| batch.to_string());
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: "pawl".to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
        metadata_props: vec![StringStringEntryProto { key: BATCH.to_owned(), value: said }],
    };
    Ok(Model { bytes: model.encode_to_vec(), inputs, batch })
}
