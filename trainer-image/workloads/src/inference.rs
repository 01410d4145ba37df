//! A model as other programs use it.

use crate::random::Stream;
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{DType, GraphError, InputDecl, Program};

/// Seed of the examples.
const SEED: u64 = 0;

/// A model from its inputs to what it is for, without targets and losses, and an example of the inputs.
#[derive(Clone, Debug)]
pub struct Inference {
    /// The forward pass. Nothing in it is random: what is drawn in training and evaluation is an input or left out.
    pub program: Program,
    /// Values of all its inputs, in their order: such that the model accepts them, and not of the data.
    pub example: Vec<Array>,
}

impl Inference {
    /// Floats of the example are standard normal; element `i` of the integers of an input is `integer(input, i, word)`,
    /// where `word` is random.
    ///
    /// # Errors
    /// Only on a bug in the model's code.
    pub(crate) fn new(program: Program, integer: impl Fn(&str, u64, u64) -> u64) -> Result<Self, GraphError> {
        let example = |decl: &InputDecl| {
            let (stream, count) = (Stream::named(SEED, &decl.name), decl.meta.shape.elements() as u64);
            let values: Vec<f64> = match decl.meta.dtype {
                DType::U32 => (0..count).map(|i| integer(&decl.name, i, stream.word(i)) as f64).collect(),
                _ => (0..count).map(|i| stream.normal(i)).collect(),
            };
            Array::new(&decl.meta.shape, Data::from_f64(decl.meta.dtype, values))
        };
        let example = program.inputs.iter().map(example).collect::<Result<_, _>>()?;
        Ok(Self { program, example })
    }
}
