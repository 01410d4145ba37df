//! Tensors as safetensors files: fp32 by name, whatever dtype and layout the run used.

use pawl_graph::array::{Array, Data};
use pawl_graph::graph::Shape;
use safetensors::tensor::{Dtype, SafeTensors};
use std::borrow::Cow;
use std::collections::HashSet;

/// Tensors by name.
pub type Tensors = Vec<(String, Array)>;

/// Maximum bytes of a shard with several tensors.
const SHARD_BYTES: usize = 256 << 20;

/// Cuts `tensors` into shards, in order: each holds at least one tensor and, if it holds more, at most [`SHARD_BYTES`].
pub(super) fn cut(tensors: &[(String, Array)]) -> Vec<&[(String, Array)]> {
    let mut shards = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, (_, array)) in tensors.iter().enumerate() {
        let size = array.view().len() * 4;
        if index > start && bytes + size > SHARD_BYTES {
            shards.push(&tensors[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += size;
    }
    shards.push(&tensors[start..]);
    shards
}

/// Maximum bytes of a shard of tensors of `sizes` bytes.
pub fn largest_shard(sizes: &[usize]) -> usize {
    let largest = sizes.iter().copied().max().unwrap_or(0);
    sizes.iter().sum::<usize>().min(largest.max(SHARD_BYTES))
}

/// A duplicate tensor name, if any.
pub(super) fn duplicate(tensors: &[(String, Array)]) -> Option<&str> {
    let mut known = HashSet::new();
    tensors.iter().map(|(name, _)| name.as_str()).find(|name| !known.insert(*name))
}

/// A tensor as it is written: integers are unchanged, all other dtypes are converted to float32.
struct Written<'a>(&'a Array);

impl safetensors::View for Written<'_> {
    fn dtype(&self) -> Dtype {
        if matches!(self.0.data(), Data::U32(_)) { Dtype::U32 } else { Dtype::F32 }
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.0.data() {
            Data::F32(_) | Data::U32(_) if cfg!(target_endian = "little") => Cow::Borrowed(self.0.view().bytes()),
            Data::U32(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            other => other.to_f64().iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
        }
    }

    fn data_len(&self) -> usize {
        self.0.view().len() * 4
    }
}

/// Serializes a shard.
pub(super) fn encode(tensors: &[(String, Array)]) -> Result<Vec<u8>, String> {
    let views = tensors.iter().map(|(name, array)| (name.as_str(), Written(array)));
    safetensors::serialize(views, None).map_err(|e| e.to_string())
}

/// The first tensor that contains NaN or infinity.
pub(super) fn not_finite(tensors: &[(String, Array)]) -> Option<&str> {
    let finite = |array: &Array| match array.data() {
        Data::F32(values) => values.iter().all(|value| value.is_finite()),
        Data::U32(_) | Data::Bool(_) => true,
        other => other.to_f64().iter().all(|value| value.is_finite()),
    };
    tensors.iter().find(|(_, array)| !finite(array)).map(|(name, _)| name.as_str())
}

/// The tensors of a shard's file.
///
/// # Errors
/// It is no safetensors file, or a tensor is neither float32 nor uint32.
pub fn decode(bytes: &[u8]) -> Result<Tensors, String> {
    decode_chosen(bytes, &|_| true)
}

/// As [`decode`], only the tensors whose names are `wanted`.
pub(super) fn decode_chosen(bytes: &[u8], wanted: &dyn Fn(&str) -> bool) -> Result<Tensors, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    file.iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, view)| {
            let words = view.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
            let data = match view.dtype() {
                Dtype::F32 => Data::F32(words.map(f32::from_le_bytes).collect()),
                Dtype::U32 => Data::U32(words.map(u32::from_le_bytes).collect()),
                other => return Err(format!("tensor {name} is {other:?}: only F32 and U32 are supported")),
            };
            let array = Array::new(Shape::from(view.shape()), data).map_err(|e| format!("tensor {name}: {e}"))?;
            Ok((name.to_owned(), array))
        })
        .collect()
}
