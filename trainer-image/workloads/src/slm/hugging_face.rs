//! Weights in Hugging Face's layout: one safetensors file, or shards and `model.safetensors.index.json`.

use crate::workload::WorkloadError;
use memmap2::Mmap;
use pawl_graph::graph::{DType, FileSlice, StateDecl};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ONE_FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Location of each weight in a directory. Only headers are read.
#[derive(Clone, Debug)]
pub struct WeightFiles {
    directory: PathBuf,
    tensors: BTreeMap<String, (FileSlice, Vec<usize>)>,
    fingerprint: [u8; 32],
}

impl WeightFiles {
    /// Reads the headers of the files in `directory`.
    ///
    /// # Errors
    /// When there are none, or one cannot be read.
    pub fn open(directory: &Path) -> Result<Self, WorkloadError> {
        let wrong = |path: &Path, problem: String| {
            WorkloadError::config("weights", &Value::String(path.display().to_string()), &problem)
        };
        let index = directory.join(INDEX);
        let files: BTreeSet<String> = match std::fs::read(&index) {
            Ok(bytes) => {
                let index: Value = serde_json::from_slice(&bytes).map_err(|error| {
                    wrong(&index, format!("is not a valid index of shards: {error}; copy it again"))
                })?;
                let map = index["weight_map"].as_object().into_iter().flatten();
                map.filter_map(|(_, file)| file.as_str().map(str::to_owned)).collect()
            }
            Err(_) => BTreeSet::from([ONE_FILE.to_owned()]),
        };
        let (mut tensors, mut digest) = (BTreeMap::new(), Sha256::new());
        for file in files {
            let path = directory.join(&file);
            let open = File::open(&path).map_err(|error| {
                let problem = format!(
                    "cannot be read: {error}; name a directory that contains {ONE_FILE} or {INDEX} and its shards"
                );
                WorkloadError::file("weights", &path, problem)
            })?;
            // SAFETY: the initial weights of a run are not modified while it starts; otherwise its values would be
            // undefined.
            let map =
                unsafe { Mmap::map(&open) }.map_err(|error| wrong(&path, format!("cannot be mapped: {error}")))?;
            let (header, metadata) = SafeTensors::read_metadata(&map)
                .map_err(|error| wrong(&path, format!("is not a valid safetensors file: {error}; copy it again")))?;
            let path: Arc<Path> = Arc::from(path);
            digest.update(file.as_bytes());
            digest.update(&map[..header + 8]);
            for (name, info) in metadata.tensors() {
                let dtype = match info.dtype {
                    Dtype::F32 => DType::F32,
                    Dtype::BF16 => DType::BF16,
                    Dtype::F16 => DType::F16,
                    // Buffers of other types, such as a mask, are not weights.
                    _ => continue,
                };
                let offset = (8 + header + info.data_offsets.0) as u64;
                let slice = FileSlice { path: Arc::clone(&path), offset, dtype };
                tensors.insert(name.clone(), (slice, info.shape.clone()));
            }
        }
        Ok(Self { directory: directory.to_owned(), tensors, fingerprint: digest.finalize().into() })
    }

    /// Location of the weight `name`.
    pub fn slice(&self, name: &str) -> Option<FileSlice> {
        self.tensors.get(name).map(|(slice, _)| slice.clone())
    }

    /// Names and shapes of all files' headers, as a hash.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Checks that the files have each of `wanted` with its shape, and nothing else that a model would compute with.
    ///
    /// # Errors
    /// Names the first that is missing, different or not wanted.
    pub fn check(&self, wanted: &[StateDecl]) -> Result<(), WorkloadError> {
        wanted.iter().try_for_each(|decl| self.has(decl))?;
        let names: BTreeSet<&str> = wanted.iter().map(|decl| decl.name.as_str()).collect();
        let unknown = |name: &&String| !names.contains(name.as_str()) && !is_derived(name);
        self.tensors.keys().find(unknown).map_or(Ok(()), |name| {
            Err(self.wrong(&format!(
                "has {name}, for which this model has no use: set architecture to that of the weights"
            )))
        })
    }

    /// Checks that the files have the weight `decl` with its shape.
    ///
    /// # Errors
    /// When it is missing or different.
    pub fn has(&self, decl: &StateDecl) -> Result<(), WorkloadError> {
        match self.tensors.get(&decl.name) {
            None => Err(self.wrong(&format!("has no weight {}: choose the size of these weights", decl.name))),
            Some((_, shape)) if decl.meta.shape.dims() != shape => Err(self.wrong(&format!(
                "has {} as {shape:?}, this model needs {}: set size and architecture to those of the weights",
                decl.name, decl.meta.shape
            ))),
            Some(_) => Ok(()),
        }
    }

    fn wrong(&self, problem: &str) -> WorkloadError {
        WorkloadError::config("weights", &Value::String(self.directory.display().to_string()), problem)
    }
}

/// Whether Hugging Face libraries derive this tensor from others: rotary frequencies, and the output matrix of tied
/// embeddings.
fn is_derived(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || name == "lm_head.weight"
}
