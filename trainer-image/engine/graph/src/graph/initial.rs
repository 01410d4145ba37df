//! Initial values of states.

use std::{fs::File, os::unix::fs::FileExt as _};

use half::{bf16, f16};

use super::{DType, FileSlice, GraphError, Init, Meta, StateDecl, float8, quantize};
use crate::{
    array::{Array, Data},
    fill::{fill, in_pieces},
    float8::{E4M3, E5M2},
    random,
};

const _: () = assert!(cfg!(target_endian = "little"), "files are little-endian");

/// Draws of a truncated normal before it is taken for uniform: all exceed bounds of a hundredth of the deviation once
/// in 3,000 elements.
const DRAWS: u64 = 1000;

/// Initial values of states, made one at a time: all of a large model may be more than there is room for.
///
/// Element i of a random state is drawn from a stream keyed by the seed and the state's name, so adding a parameter
/// changes no other.
#[derive(Debug)]
pub struct InitialValues<'s> {
    states: &'s [&'s StateDecl],
    seed: u64,
    /// The matrix of which integers or 8-bit floats, or their scales, were made last: the next state is the other of
    /// the two.
    matrix: Option<(StateDecl, Array)>,
}

impl<'s> InitialValues<'s> {
    /// Of `states` for `seed`.
    pub fn new(states: &'s [&'s StateDecl], seed: u64) -> Self {
        Self { states, seed, matrix: None }
    }

    /// The value of `decl`, one of the states, of its declared dtype and shape.
    ///
    /// # Errors
    /// [`GraphError::Unknown`] when a state refers to a name that does not exist, or to itself;
    /// [`GraphError::ElementCount`] when the number of elements differs; [`GraphError::File`] when a file cannot be
    /// read.
    pub fn of(&mut self, decl: &StateDecl) -> Result<Array, GraphError> {
        self.make(decl, 0)
    }

    fn make(&mut self, decl: &StateDecl, depth: usize) -> Result<Array, GraphError> {
        let (states, seed) = (self.states, self.seed);
        let Meta { dtype, shape } = &decl.meta;
        let (dtype, len) = (*dtype, shape.elements());
        let stream = random::stream(seed, &decl.name);
        let data = match &decl.init {
            Init::Fill(value) => generate(dtype, len, |_| *value),
            Init::Uniform { bound } => generate(dtype, len, |i| (2.0 * random::uniform_f64(stream, i) - 1.0) * bound),
            Init::UniformBetween { low, high } => {
                generate(dtype, len, |i| low + (high - low) * random::uniform_f64(stream, i))
            }
            Init::Normal { deviation } => generate(dtype, len, |i| random::normal_f64(stream, i) * deviation),
            Init::TruncatedNormal { deviation, bound } => {
                generate(dtype, len, |i| truncated_normal(&decl.name, seed, i, bound / deviation) * deviation)
            }
            Init::Array(array) => cast(array.data().clone(), dtype),
            Init::File(slice) => cast(read(slice, len, &decl.name)?, dtype),
            Init::SameAs(name) => {
                // A chain longer than the number of declarations goes in circles.
                let mut all = states.iter().flat_map(|s| s.with_parts());
                let source = all.find(|s| s.name == *name && depth < 8).ok_or_else(|| GraphError::Unknown {
                    kind: "state to start from",
                    name: name.clone(),
                    known: states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
                })?;
                cast(self.make(source, depth + 1)?.into_data(), dtype)
            }
            Init::Parts(parts) => {
                let mut flat = Array::new([len], Data::zeros(dtype, len))?;
                let mut start = 0;
                for part in parts {
                    let value = self.make(part, depth + 1)?;
                    let (elements, end) = (value.shape().elements(), start + value.shape().elements());
                    if end > len {
                        return Err(GraphError::ElementCount { shape: shape.clone(), len: end });
                    }
                    flat.write_part(start, &Array::new([elements], cast(value.into_data(), dtype))?);
                    start = end;
                }
                flat.into_data()
            }
            Init::Shard(whole, seat) => {
                return self.make(whole, depth + 1)?.part(seat.rank * len, shape);
            }
            Init::Quantized(of) => Data::U32(quantize::pack(self.matrix(of, depth)?)),
            Init::QuantizationScales(of) => cast(Data::F32(quantize::scales(self.matrix(of, depth)?)), dtype),
            Init::Float8(of) => float8::codes(self.matrix(of, depth)?, dtype),
            Init::Float8Scales(of, codes) => Data::F32(float8::scales(self.matrix(of, depth)?, *codes)),
        };
        Array::new(shape, data)
    }

    fn matrix(&mut self, of: &StateDecl, depth: usize) -> Result<&Array, GraphError> {
        let made = match self.matrix.take() {
            Some(made) if made.0 == *of => made,
            _ => (of.clone(), self.make(of, depth + 1)?),
        };
        Ok(&self.matrix.insert(made).1)
    }
}

/// All values of `states` for `seed`, in their order.
///
/// # Errors
/// As [`InitialValues::of`].
pub fn initial_values(states: &[&StateDecl], seed: u64) -> Result<Vec<Array>, GraphError> {
    let mut values = InitialValues::new(states, seed);
    states.iter().map(|decl| values.of(decl)).collect()
}

/// The value of `decl`, one of `states`, for `seed`.
///
/// # Errors
/// As [`InitialValues::of`].
pub fn initial_value(states: &[&StateDecl], decl: &StateDecl, seed: u64) -> Result<Array, GraphError> {
    InitialValues::new(states, seed).of(decl)
}

/// Standard normal, at most `bound` in magnitude. Draw k of an element is from the k-th stream of the state, so that
/// where nothing is cut off, values are those of [`Init::Normal`].
fn truncated_normal(name: &str, seed: u64, index: u64, bound: f64) -> f64 {
    let first = random::stream(seed, name);
    let stream = |draw: u64| if draw == 0 { first } else { random::stream(first, &format!("draw {draw}")) };
    let mut draws = (0..DRAWS).map(|draw| random::normal_f64(stream(draw), index));
    // Within bounds that reject so many draws, the density is as good as constant.
    draws.find(|x| x.abs() <= bound).unwrap_or((2.0 * random::uniform_f64(first, index) - 1.0) * bound)
}

/// `value(0), value(1), ..` rounded to `dtype`, made by all processors.
fn generate(dtype: DType, len: usize, value: impl Fn(u64) -> f64 + Sync) -> Data {
    let mut data = Data::zeros(dtype, len);
    match &mut data {
        Data::F64(out) => fill(out, &value),
        Data::F32(out) => fill(out, |i| value(i) as f32),
        Data::BF16(out) => fill(out, |i| bf16::from_f64(value(i))),
        Data::F16(out) => fill(out, |i| f16::from_f64(value(i))),
        Data::E4M3(out) => fill(out, |i| E4M3::from_f64(value(i))),
        Data::E5M2(out) => fill(out, |i| E5M2::from_f64(value(i))),
        Data::U32(out) => fill(out, |i| value(i) as u32),
        Data::Bool(out) => fill(out, |i| u8::from(value(i) != 0.0)),
    }
    data
}

/// The elements rounded to another dtype.
fn cast(data: Data, dtype: DType) -> Data {
    match data {
        // Bytes of a file may be other than 0 and 1.
        same if same.view().dtype() == dtype && dtype != DType::Bool => same,
        Data::BF16(v) => generate(dtype, v.len(), |i| v[i as usize].to_f64()),
        Data::F32(v) => generate(dtype, v.len(), |i| f64::from(v[i as usize])),
        other => Data::from_f64(dtype, other.to_f64()),
    }
}

/// The `len` elements at `slice`, which the file has in this machine's byte order.
fn read(slice: &FileSlice, len: usize, state: &str) -> Result<Data, GraphError> {
    let mut data = Data::zeros(slice.dtype, len);
    let done = File::open(&slice.path).and_then(|file| {
        let read = |first: usize, piece: &mut [u8]| file.read_exact_at(piece, slice.offset + first as u64);
        in_pieces(data.bytes_mut(), 1, read).into_iter().collect::<std::io::Result<()>>()
    });
    done.map_err(|error| GraphError::File {
        state: state.to_owned(),
        path: slice.path.display().to_string(),
        problem: error.to_string(),
    })?;
    Ok(data)
}
