//! States: what lives on between runs.

use std::{path::Path, sync::Arc};

use super::{DType, Meta, Shape};
use crate::array::Array;

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
    /// Elements in a file, cast to the state's dtype: nothing is read before the value is wanted.
    File(FileSlice),
    /// A matrix as 8-bit integers, four in a word: see [`quantize`](super::quantize). The state is U32.
    Quantized(Box<StateDecl>),
    /// What a row of the [`Init::Quantized`] form of a matrix is to be multiplied with. The state is `[rows, 1]`.
    QuantizationScales(Box<StateDecl>),
}

/// Elements that lie in a file one after the other, little-endian.
#[derive(Debug, Clone, PartialEq)]
pub struct FileSlice {
    /// The file.
    pub path: Arc<Path>,
    /// Where the first element begins, in bytes.
    pub offset: u64,
    /// Element type in the file.
    pub dtype: DType,
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
