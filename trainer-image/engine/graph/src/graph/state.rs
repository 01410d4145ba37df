//! States: values that persist between runs.

use std::{path::Path, sync::Arc};

use super::{DType, Meta, Shape};
use crate::array::Array;

/// A state: index into [`Program::states`](super::Program::states).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// Purpose of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// A weight that training changes.
    Parameter,
    /// A weight that training leaves unchanged.
    Frozen,
    /// A slot of the optimiser: momenta, counters, loss scale.
    Optimizer,
    /// A sum of gradients over micro-steps.
    Gradient,
    /// A moving average of a parameter.
    Average,
    /// A data set, or part of one: written once after compilation, never part of a checkpoint.
    Data,
    /// A value of the model that training programs update without a gradient, such as a running statistic; part of
    /// checkpoints.
    Buffer,
}

/// Initial value of a state: a pure function of the run's seed and the state's name, equal on every executor.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// One value everywhere.
    Fill(f64),
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// Half the width.
        bound: f64,
    },
    /// Uniform in `[low, high)`.
    UniformBetween {
        /// The smallest value.
        low: f64,
        /// The end of the range.
        high: f64,
    },
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        deviation: f64,
    },
    /// Normal with mean 0, drawn again while its magnitude exceeds `bound`: `torch.nn.init.trunc_normal_` with `-bound`
    /// and `bound`.
    TruncatedNormal {
        /// Standard deviation before truncation.
        deviation: f64,
        /// The largest magnitude, not in units of the deviation. PyTorch's default is 2.
        bound: f64,
    },
    /// A given array, cast to the state's dtype.
    Array(Array),
    /// The initial value of another state of the same program, by name, cast and reshaped.
    SameAs(String),
    /// The initial values of several declarations, each flattened, concatenated: this state is an arena that holds
    /// them.
    Parts(Vec<StateDecl>),
    /// The part of another declaration that one rank holds: see [`StateDecl::shard`].
    Shard(Box<StateDecl>, Seat),
    /// Elements in a file, cast to the state's dtype; read only when the value is needed.
    File(FileSlice),
    /// A float matrix `[rows, columns]` as 8-bit integers, four per word: see [`quantize`](super::quantize). The state
    /// is U32 `[rows / 4, columns]`.
    Quantized(Box<StateDecl>),
    /// The factor of each row of the [`Init::Quantized`] form of a matrix. The state is `[rows, 1]`.
    QuantizationScales(Box<StateDecl>),
    /// A float32 matrix `[rows, columns]` as 8-bit floats of the state's dtype: see [`float8`](super::float8). The
    /// state is `[rows, columns]`.
    Float8(Box<StateDecl>),
    /// The factor of each row of the [`Init::Float8`] form of a matrix in that dtype. The state is float32, `[rows,
    /// 1]`.
    Float8Scales(Box<StateDecl>, DType),
}

impl Init {
    /// `torch.nn.init.xavier_uniform_` of a matrix `[fan_out, fan_in]`: uniform within `sqrt(6 / (fan_in + fan_out))`.
    pub fn xavier_uniform(fan_in: usize, fan_out: usize) -> Self {
        Self::Uniform { bound: (6.0 / (fan_in + fan_out) as f64).sqrt() }
    }
}

/// A rank's place in a gang that shards its states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// This rank, below `world`.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
}

/// Contiguous elements in a file, little-endian.
#[derive(Debug, Clone, PartialEq)]
pub struct FileSlice {
    /// The file.
    pub path: Arc<Path>,
    /// Offset of the first element, in bytes.
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
    /// Purpose.
    pub role: Role,
    /// Initial value.
    pub init: Init,
}

impl StateDecl {
    /// A float32 state.
    pub fn f32(name: impl Into<String>, shape: impl Into<Shape>, role: Role, init: Init) -> Self {
        Self { name: name.into(), meta: Meta::new(DType::F32, shape), role, init }
    }

    /// What the rank at `seat` holds of this state: its rows `rank * rows / world ..` of the first axis, whose extent
    /// `seat.world` divides.
    pub fn shard(&self, seat: Seat) -> Self {
        let mut dims = self.meta.shape.dims().to_vec();
        debug_assert!(
            dims.first().is_some_and(|rows| rows.is_multiple_of(seat.world)),
            "{} is not divisible",
            self.name
        );
        if let Some(rows) = dims.first_mut() {
            *rows /= seat.world;
        }
        Self {
            name: format!("shard/{}", self.name),
            meta: Meta::new(self.meta.dtype, dims),
            role: self.role,
            init: Init::Shard(Box::new(self.clone()), seat),
        }
    }

    /// The state of which this is one rank's part, and the rank.
    pub fn whole(&self) -> Option<(&StateDecl, Seat)> {
        match &self.init {
            Init::Shard(whole, seat) => Some((whole, *seat)),
            _ => None,
        }
    }

    /// The parts of an arena, or of the arena of which this is a shard, in order; empty for other states.
    pub fn parts(&self) -> &[StateDecl] {
        match &self.init {
            Init::Parts(parts) => parts,
            Init::Shard(whole, _) => whole.parts(),
            _ => &[],
        }
    }

    /// This declaration and the parts it holds.
    pub fn with_parts(&self) -> impl Iterator<Item = &StateDecl> {
        std::iter::once(self).chain(self.parts())
    }
}
