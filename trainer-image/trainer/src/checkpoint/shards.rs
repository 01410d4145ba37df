//! Tensors as safetensors files: fp32 by name, whatever dtype and layout the run used.

use pawl_graph::array::{Array, Data};
use pawl_graph::graph::Shape;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
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

/// A duplicate tensor name, if any.
pub(super) fn duplicate(tensors: &[(String, Array)]) -> Option<&str> {
    let mut known = HashSet::new();
    tensors.iter().map(|(name, _)| name.as_str()).find(|name| !known.insert(*name))
}

/// Serializes a shard: integers are unchanged, all other dtypes are converted to float32.
pub(super) fn encode(tensors: &[(String, Array)]) -> Result<Vec<u8>, String> {
    let raw: Vec<(&str, Dtype, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, array)| {
            let (dtype, bytes) = match array.data() {
                Data::F32(values) => (Dtype::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
                Data::U32(values) => (Dtype::U32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
                other => (Dtype::F32, other.to_f64().iter().flat_map(|v| (*v as f32).to_le_bytes()).collect()),
            };
            (name.as_str(), dtype, array.shape().to_vec(), bytes)
        })
        .collect();
    let views: Result<Vec<_>, _> = raw
        .iter()
        .map(|(name, dtype, shape, bytes)| TensorView::new(*dtype, shape.clone(), bytes).map(|view| (*name, view)))
        .collect();
    safetensors::serialize(views.map_err(|e| e.to_string())?, None).map_err(|e| e.to_string())
}

/// The tensors of a shard's file.
pub(super) fn decode(bytes: &[u8]) -> Result<Tensors, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    file.iter()
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
