//! A safetensors file of a model, written one tensor at a time, in any order.

use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{DType, StateDecl};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Format of the floats in a file; integers are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatFormat {
    /// As checkpoints have them.
    F32,
    /// Rounded to the nearest one.
    Bf16,
}

impl FloatFormat {
    /// Its name in PyTorch and in Hugging Face's configurations.
    pub const fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
        }
    }

    /// Its name in safetensors files, and the bytes of an element.
    const fn stored(self) -> (&'static str, usize) {
        match self {
            Self::F32 => ("F32", 4),
            Self::Bf16 => ("BF16", 2),
        }
    }
}

/// Error of a model's file.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// The checkpoint lacks a tensor of the model.
    #[error("the checkpoint has no {0}: it belongs to another model, or to another configuration of it")]
    Missing(String),
    /// The checkpoint has a tensor of another shape or type.
    #[error("the checkpoint has {name} of shape {shape}: it belongs to another model or another configuration of it")]
    Other {
        /// The tensor.
        name: String,
        /// Its shape in the checkpoint.
        shape: String,
    },
    /// The file cannot be written.
    #[error("{path}: cannot be written: {source}; choose another directory")]
    Io {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Elements that are converted at a time.
const PIECE: usize = 1 << 16;

/// The place of a tensor in the file.
struct Slot {
    /// Offset of its first byte in the file.
    start: u64,
    dims: Vec<usize>,
    integers: bool,
    written: bool,
}

/// A file that is being written. A file that was not [finished](ModelFile::finish) has zeros in the place of what is
/// missing.
pub struct ModelFile {
    file: File,
    path: PathBuf,
    format: FloatFormat,
    slots: BTreeMap<String, Slot>,
}

impl ModelFile {
    /// Creates the file at `path`, which must not exist, with places for `tensors`, in this order.
    ///
    /// # Errors
    /// [`ModelFileError::Io`] when it cannot be created.
    pub fn create(path: &Path, tensors: &[StateDecl], format: FloatFormat) -> Result<Self, ModelFileError> {
        let (header, mut slots, size) = layout(tensors, format);
        let begins = header.len() as u64;
        slots.values_mut().for_each(|slot| slot.start += begins);
        let create = || -> io::Result<File> {
            let file = File::create_new(path)?;
            file.set_len(begins + size)?;
            file.write_all_at(&header, 0)?;
            Ok(file)
        };
        let file = create().map_err(unwritten(path))?;
        Ok(Self { file, path: path.to_owned(), format, slots })
    }

    /// Writes a tensor to its place, over what was written there before.
    ///
    /// # Errors
    /// [`ModelFileError::Missing`] when the file has no place for it, [`ModelFileError::Other`] when it has another
    /// shape, [`ModelFileError::Io`] when writing fails.
    pub fn write(&mut self, name: &str, array: &Array) -> Result<(), ModelFileError> {
        let Some(slot) = self.slots.get_mut(name) else { return Err(ModelFileError::Missing(name.to_owned())) };
        let integers = matches!(array.data(), Data::U32(_));
        if slot.dims != array.shape().dims() || slot.integers != integers {
            return Err(ModelFileError::Other { name: name.to_owned(), shape: array.shape().to_string() });
        }
        let (file, mut at) = (&self.file, slot.start);
        let mut put = |bytes: Vec<u8>| {
            file.write_all_at(&bytes, at)?;
            at += bytes.len() as u64;
            Ok::<(), io::Error>(())
        };
        let written = match (array.data(), self.format) {
            (Data::U32(words), _) => words.chunks(PIECE).try_for_each(|piece| put(bytes(piece, u32::to_le_bytes))),
            (other, FloatFormat::F32) => {
                floats(other).chunks(PIECE).try_for_each(|piece| put(bytes(piece, f32::to_le_bytes)))
            }
            (other, FloatFormat::Bf16) => {
                let narrow = |value| half::bf16::from_f32(value).to_le_bytes();
                floats(other).chunks(PIECE).try_for_each(|piece| put(bytes(piece, narrow)))
            }
        };
        slot.written = true;
        written.map_err(unwritten(&self.path))
    }

    /// Flushes the file to disk.
    ///
    /// # Errors
    /// [`ModelFileError::Missing`] names the first tensor that was not written; [`ModelFileError::Io`] when flushing
    /// fails.
    pub fn finish(self) -> Result<(), ModelFileError> {
        match self.slots.iter().find(|(_, slot)| !slot.written) {
            Some((name, _)) => Err(ModelFileError::Missing(name.clone())),
            None => self.file.sync_all().map_err(unwritten(&self.path)),
        }
    }
}

/// Length and header of a file with `tensors` in order; their places, counted from its end; and the bytes after it.
fn layout(tensors: &[StateDecl], format: FloatFormat) -> (Vec<u8>, BTreeMap<String, Slot>, u64) {
    // Transformers reads no file without it.
    let mut header = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let (mut slots, mut start) = (BTreeMap::new(), 0);
    for decl in tensors {
        let integers = decl.meta.dtype == DType::U32;
        let (dtype, size) = if integers { ("U32", 4) } else { format.stored() };
        let dims = decl.meta.shape.dims().to_vec();
        let end = start + decl.meta.shape.elements() * size;
        header.insert(decl.name.clone(), json!({"dtype": dtype, "shape": dims, "data_offsets": [start, end]}));
        slots.insert(decl.name.clone(), Slot { start: start as u64, dims, integers, written: false });
        start = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    ([&(text.len() as u64).to_le_bytes(), text.as_slice()].concat(), slots, start as u64)
}

fn floats(data: &Data) -> Cow<'_, [f32]> {
    match data {
        Data::F32(values) => Cow::Borrowed(values.as_slice()),
        other => Cow::Owned(other.to_f64().iter().map(|&value| value as f32).collect()),
    }
}

fn bytes<T: Copy, const N: usize>(values: &[T], of: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| of(value)).collect()
}

fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> ModelFileError + '_ {
    move |source| ModelFileError::Io { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_graph::graph::{Init, Meta, Role};
    use safetensors::{Dtype, SafeTensors};

    fn decls() -> Vec<StateDecl> {
        let words = StateDecl {
            name: "words".to_owned(),
            meta: Meta::new(DType::U32, [2]),
            role: Role::Frozen,
            init: Init::Fill(0.0),
        };
        vec![
            StateDecl::f32("matrix", [2, 3], Role::Parameter, Init::Fill(0.0)),
            StateDecl::f32("scalar", [], Role::Buffer, Init::Fill(0.0)),
            words,
        ]
    }

    fn floats(shape: &[usize], values: &[f32]) -> Array {
        Array::new(shape, Data::F32(values.to_vec())).unwrap()
    }

    #[test]
    fn tensors_in_any_order_are_read_as_they_were() {
        let place = tempfile::tempdir().unwrap();
        for (format, dtype, thirds) in
            [(FloatFormat::F32, Dtype::F32, 1.0 / 3.0), (FloatFormat::Bf16, Dtype::BF16, 0.333_984_38)]
        {
            let path = place.path().join(format.torch_name());
            let mut file = ModelFile::create(&path, &decls(), format).unwrap();
            file.write("words", &Array::new([2], Data::U32(vec![7, u32::MAX])).unwrap()).unwrap();
            file.write("scalar", &floats(&[], &[9.0])).unwrap();
            file.write("matrix", &floats(&[2, 3], &[9.0; 6])).unwrap();
            file.write("matrix", &floats(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 1.0 / 3.0])).unwrap();
            file.finish().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let read = SafeTensors::deserialize(&bytes).unwrap();
            let matrix = read.tensor("matrix").unwrap();
            assert_eq!((matrix.dtype(), matrix.shape()), (dtype, &[2, 3][..]));
            let last: f32 = match format {
                FloatFormat::F32 => f32::from_le_bytes(matrix.data()[20..].try_into().unwrap()),
                FloatFormat::Bf16 => half::bf16::from_le_bytes(matrix.data()[10..].try_into().unwrap()).to_f32(),
            };
            assert_eq!(last, thirds);
            assert_eq!(read.tensor("words").unwrap().data(), [7, 0, 0, 0, 255, 255, 255, 255]);
            assert!(read.tensor("scalar").unwrap().shape().is_empty());
        }
    }

    #[test]
    fn what_is_missing_or_of_another_shape_is_named() {
        let place = tempfile::tempdir().unwrap();
        let mut file = ModelFile::create(&place.path().join("model"), &decls(), FloatFormat::F32).unwrap();
        let wrong = file.write("matrix", &floats(&[3, 2], &[0.0; 6])).unwrap_err().to_string();
        assert!(wrong.contains("matrix of shape [3x2]"), "{wrong}");
        let unknown = file.write("other", &floats(&[1], &[0.0])).unwrap_err().to_string();
        assert!(unknown.contains("no other"), "{unknown}");
        file.write("matrix", &floats(&[2, 3], &[0.0; 6])).unwrap();
        let missing = file.finish().unwrap_err().to_string();
        assert!(missing.contains("no scalar"), "{missing}");
        let twice = ModelFile::create(&place.path().join("model"), &decls(), FloatFormat::F32);
        assert!(matches!(twice.err(), Some(ModelFileError::Io { .. })));
    }
}
