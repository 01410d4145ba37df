//! States: what lives on between runs.

use super::{DType, GraphError, Meta, Shape};
use crate::{
    array::{Array, Data},
    random,
};

/// A state: index into [`Program::states`](super::Program::states).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// What a state is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// A weight that training changes.
    Parameter,
    /// A weight that training leaves alone.
    Frozen,
    /// A slot of the optimiser: momenta, counters, loss scale.
    Optimizer,
    /// A sum of gradients over micro-steps.
    Gradient,
    /// A moving average of a parameter.
    Average,
}

/// First value of a state: a pure function of the run's seed and the state's name, equal on every executor.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// One value everywhere.
    Fill(f64),
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// Half the width.
        bound: f64,
    },
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        deviation: f64,
    },
    /// A given array, cast to the state's dtype.
    Array(Array),
    /// The first value of another state of the same program, by name, cast and reshaped.
    SameAs(String),
    /// The first values of several declarations, each flattened, one after the other: this state is an arena that holds them.
    Parts(Vec<StateDecl>),
}

/// Declaration of a state.
#[derive(Debug, Clone, PartialEq)]
pub struct StateDecl {
    /// Unique name: the key of checkpoints. Programs compiled together share a state of one name.
    pub name: String,
    /// Dtype and shape.
    pub meta: Meta,
    /// What it is for.
    pub role: Role,
    /// First value.
    pub init: Init,
}

/// First values of `states` for a run with `seed`, in their order.
///
/// Element i of a random state is drawn from a stream keyed by the seed and the state's name, so adding a parameter changes no other.
///
/// # Errors
/// When a state refers to a name that is not there, or to itself, or to another number of elements.
pub fn initial_values(states: &[&StateDecl], seed: u64) -> Result<Vec<Array>, GraphError> {
    states.iter().map(|decl| initial_value(states, decl, seed, 0)).collect()
}

fn initial_value(states: &[&StateDecl], decl: &StateDecl, seed: u64, depth: usize) -> Result<Array, GraphError> {
    let Meta { dtype, shape } = &decl.meta;
    let len = shape.elements();
    let stream = random::stream(seed, &decl.name);
    let values: Vec<f64> = match &decl.init {
        Init::Fill(value) => vec![*value; len],
        Init::Uniform { bound } => {
            (0..len as u64).map(|i| (2.0 * random::uniform_f64(stream, i) - 1.0) * bound).collect()
        }
        Init::Normal { deviation } => (0..len as u64).map(|i| random::normal_f64(stream, i) * deviation).collect(),
        Init::Array(array) => array.to_f64(),
        Init::SameAs(name) => {
            // A chain longer than the number of declarations goes in circles.
            let mut all = states.iter().flat_map(|s| s.with_parts());
            let source = all.find(|s| s.name == *name && depth < 8).ok_or_else(|| GraphError::Unknown {
                kind: "state to start from",
                name: name.clone(),
                known: states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
            })?;
            initial_value(states, source, seed, depth + 1)?.to_f64()
        }
        Init::Parts(parts) => {
            let mut flat = Vec::with_capacity(len);
            for part in parts {
                flat.extend(initial_value(states, part, seed, depth + 1)?.to_f64());
            }
            flat
        }
    };
    Array::new(shape, Data::from_f64(*dtype, values))
}

impl StateDecl {
    /// A float32 state.
    pub fn f32(name: impl Into<String>, shape: impl Into<Shape>, role: Role, init: Init) -> Self {
        Self { name: name.into(), meta: Meta::new(DType::F32, shape), role, init }
    }

    /// What an arena holds, in order; nothing for other states.
    pub fn parts(&self) -> &[StateDecl] {
        match &self.init {
            Init::Parts(parts) => parts,
            _ => &[],
        }
    }

    /// This declaration and the parts it holds.
    pub fn with_parts(&self) -> impl Iterator<Item = &StateDecl> {
        std::iter::once(self).chain(self.parts())
    }
}
