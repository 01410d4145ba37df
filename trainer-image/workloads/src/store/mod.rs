//! On-disk cache of generated arrays: shards and a manifest with their hashes, which is written last and verified when
//! opened.
//!
//! A [`Recipe`] declares the arrays and generates one shard at a time, as a pure function; the store decides which
//! shards to generate. So memory is bounded by a few shards, only incomplete or corrupt shards are regenerated, and an
//! interrupted generation resumes. Files are written to a temporary name and renamed; one process at a time generates.

mod array;
mod lock;
mod manifest;
pub mod parquet;

pub use array::Rows;

pub(crate) use lock::acquire;
pub(crate) use manifest::{hex, write_atomic};

use manifest::{Entry, Journal, Manifest, Stamps, hash};
use rayon::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of the one tensor in every shard file.
const TENSOR: &str = "data";

/// Element type of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl Element {
    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    fn dtype(self) -> safetensors::Dtype {
        match self {
            Self::F16 => safetensors::Dtype::F16,
            Self::F32 => safetensors::Dtype::F32,
        }
    }
}

/// An array of `rows` equal rows, cut into shards of `shard_rows` rows (the last one may be shorter).
#[derive(Clone, Debug)]
pub struct ArraySpec {
    /// Name, unique in the recipe; also the stem of its files.
    pub name: String,
    /// Element type on disk.
    pub element: Element,
    /// Total number of rows, at least 1.
    pub rows: usize,
    /// Shape of one row.
    pub row_shape: Vec<usize>,
    /// Rows per shard, at least 1.
    pub shard_rows: usize,
}

impl ArraySpec {
    /// An array whose shards hold about `shard_bytes`, and at least one row.
    pub fn new(name: &str, element: Element, rows: usize, row_shape: &[usize], shard_bytes: usize) -> Self {
        let row_bytes = row_shape.iter().product::<usize>() * element.size();
        let shard_rows = (shard_bytes / row_bytes.max(1)).clamp(1, rows.max(1));
        Self { name: name.to_owned(), element, rows, row_shape: row_shape.to_vec(), shard_rows }
    }

    /// Elements in one row.
    pub fn row_len(&self) -> usize {
        self.row_shape.iter().product()
    }

    fn shards(&self) -> impl Iterator<Item = Shard<'_>> {
        (0..self.rows.div_ceil(self.shard_rows)).map(move |number| Shard {
            array: self,
            number,
            first: number * self.shard_rows,
            rows: self.shard_rows.min(self.rows - number * self.shard_rows),
        })
    }
}

/// One shard of an array.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'a> {
    /// The array it belongs to.
    pub array: &'a ArraySpec,
    /// Its number, from 0.
    pub number: usize,
    /// Its first row.
    pub first: usize,
    /// Its number of rows.
    pub rows: usize,
}

impl Shard<'_> {
    fn file(&self) -> String {
        format!("{}-{:05}.safetensors", self.array.name, self.number)
    }
}

/// Content of a cache, and how each part is generated.
pub trait Recipe: Sync {
    /// Everything that the bytes depend on. Two recipes with equal keys generate equal caches.
    fn key(&self) -> Value;

    /// The arrays, in stages: a stage may read the arrays and summaries of those before it.
    fn stages(&self) -> Vec<Vec<ArraySpec>>;

    /// The elements of `shard`, row-major; the store narrows them to the array's element type.
    fn make(&self, shard: Shard<'_>, done: &Store) -> Result<Vec<f32>, StoreError>;

    /// Summary of a finished stage, such as statistics; stored in the manifest.
    fn summarize(&self, stage: usize, done: &Store) -> Result<Value, StoreError>;
}

/// Progress callback of generation: the phase, shards done, total shards (bytes, and 0, while another process
/// generates). A call with other numbers than the one before means that work has advanced.
pub type OnProgress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// A cache could not be opened or generated.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Reading or writing failed.
    #[error("{}: {action}: {source}; {remedy}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation.
        action: &'static str,
        /// The remedy.
        remedy: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A shard is still corrupt after it was regenerated.
    #[error("{}: {problem} right after it was written: check the disk, or choose another data directory", path.display())]
    Damaged {
        /// The shard.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The data source is missing or invalid.
    #[error("{0}")]
    Source(String),
}

impl StoreError {
    /// Whether the directory of the data has no space or no quota left.
    pub fn is_full(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }

    pub(crate) fn io(path: &Path, action: &'static str, source: std::io::Error) -> Self {
        let remedy = match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                "free some space or choose another data directory; finished shards are kept"
            }
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                "make it writable or choose another data directory"
            }
            _ => "check the disk or choose another data directory",
        };
        Self::Io { path: path.to_owned(), action, remedy: remedy.to_owned(), source }
    }
}

/// An opened cache: every array it holds was verified.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    arrays: BTreeMap<String, Rows>,
    summaries: Vec<Value>,
}

impl Store {
    /// Opens the cache of `recipe` under `root`, and generates missing, incomplete or corrupt shards. Returns when it
    /// is complete.
    ///
    /// The directory's name is a hash of the recipe's key, so different settings never share bytes.
    pub fn open(root: &Path, recipe: &dyn Recipe, progress: OnProgress<'_>) -> Result<Self, StoreError> {
        let key = recipe.key();
        let name = &hash(canonical(&key).as_bytes())[..16];
        let directory = root.join(name);
        std::fs::create_dir_all(&directory)
            .map_err(|e| StoreError::io(&directory, "cannot create the directory", e))?;
        let _lock = acquire(&root.join(format!("{name}.lock")), &directory, progress)?;
        Opening { directory: &directory, recipe, progress }.run(&key)
    }

    /// The rows of array `name`.
    ///
    /// # Panics
    /// When the recipe has no such array, or its stage is not finished.
    pub fn rows(&self, name: &str) -> &Rows {
        self.arrays.get(name).unwrap_or_else(|| panic!("the cache has no array `{name}`"))
    }

    /// The recipe's summary of `stage`.
    pub fn summary(&self, stage: usize) -> &Value {
        &self.summaries[stage]
    }

    /// Directory of the files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// JSON with sorted keys: equal values give equal text, independent of the order of their maps.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<_, _> = map.iter().map(|(key, value)| (key, canonical(value))).collect();
            let fields: Vec<_> = sorted.iter().map(|(key, text)| format!("{key:?}:{text}")).collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

struct Opening<'a> {
    directory: &'a Path,
    recipe: &'a dyn Recipe,
    progress: OnProgress<'a>,
}

impl Opening<'_> {
    fn run(&self, key: &Value) -> Result<Store, StoreError> {
        let old = Manifest::read(self.directory).filter(|manifest| manifest.key == *key);
        let journal = Journal::open(self.directory)?;
        let mut known = journal.entries();
        if let Some(old) = &old {
            known.extend(old.shards.iter().map(|(file, entry)| (file.clone(), entry.clone())));
        }
        let mut stamps = Stamps::read(self.directory);
        let mut store = Store { directory: self.directory.to_owned(), arrays: BTreeMap::new(), summaries: vec![] };
        let mut shards = BTreeMap::new();
        let mut remade = 0;
        for (stage, arrays) in self.recipe.stages().iter().enumerate() {
            let all: Vec<Shard<'_>> = arrays.iter().flat_map(ArraySpec::shards).collect();
            let broken = self.broken(&all, &known, &mut stamps);
            remade += broken.len();
            self.make(&broken, &store, &journal, &mut known)?;
            for shard in &all {
                let file = shard.file();
                stamps.add(self.directory, &file);
                let entry = known.get(&file).cloned().unwrap_or_default();
                shards.insert(file, entry);
            }
            for array in arrays {
                let paths: Vec<PathBuf> = array.shards().map(|shard| self.directory.join(shard.file())).collect();
                store.arrays.insert(array.name.clone(), Rows::open(array, &paths)?);
            }
            // Shards are pure functions of the key: a regenerated stage has the same summary.
            let summary = match old.as_ref().and_then(|old| old.summaries.get(stage)) {
                Some(summary) => summary.clone(),
                None => self.recipe.summarize(stage, &store)?,
            };
            store.summaries.push(summary);
        }
        if old.is_none() || remade > 0 {
            let manifest = Manifest { key: key.clone(), shards, summaries: store.summaries.clone() };
            manifest.write(self.directory)?;
        }
        journal.remove()?;
        stamps.write(self.directory)?;
        Ok(store)
    }

    /// The shards that are missing, incomplete or corrupt.
    fn broken<'s>(&self, all: &[Shard<'s>], known: &BTreeMap<String, Entry>, stamps: &mut Stamps) -> Vec<Shard<'s>> {
        let (total, done) = (all.len() as u64, AtomicU64::new(0));
        let problems: Vec<Option<String>> = all
            .par_iter()
            .map(|shard| {
                let file = shard.file();
                let problem = match known.get(&file) {
                    Some(_) if stamps.holds(self.directory, &file) => None,
                    Some(entry) => entry.check(&self.directory.join(&file)).err(),
                    None => Some(String::new()),
                };
                (self.progress)("verifying data", done.fetch_add(1, Ordering::Relaxed) + 1, total);
                problem
            })
            .collect();
        let mut broken = Vec::new();
        for (shard, problem) in all.iter().zip(problems) {
            let Some(problem) = problem else { continue };
            if !problem.is_empty() {
                tracing::warn!(shard = %self.directory.join(shard.file()).display(), problem, "regenerating a corrupt shard");
            }
            broken.push(*shard);
        }
        broken
    }

    fn make(
        &self,
        broken: &[Shard<'_>],
        store: &Store,
        journal: &Journal,
        known: &mut BTreeMap<String, Entry>,
    ) -> Result<(), StoreError> {
        let (total, done) = (broken.len() as u64, AtomicU64::new(0));
        let made: Vec<(String, Entry)> = broken
            .par_iter()
            .map(|shard| {
                let values = self.recipe.make(*shard, store)?;
                let bytes = encode(shard, &values);
                drop(values);
                let (file, entry) = (shard.file(), Entry { bytes: bytes.len() as u64, sha256: hash(&bytes) });
                let path = self.directory.join(&file);
                write_atomic(&path, &bytes)?;
                entry.check(&path).map_err(|problem| StoreError::Damaged { path, problem })?;
                journal.append(&file, &entry)?;
                (self.progress)("generating data", done.fetch_add(1, Ordering::Relaxed) + 1, total);
                Ok((file, entry))
            })
            .collect::<Result<_, StoreError>>()?;
        known.extend(made);
        Ok(())
    }
}

/// The bytes of a shard file.
fn encode(shard: &Shard<'_>, values: &[f32]) -> Vec<u8> {
    assert_eq!(values.len(), shard.rows * shard.array.row_len(), "a recipe made a shard of the wrong size");
    let mut shape = vec![shard.rows];
    shape.extend(&shard.array.row_shape);
    let half: Vec<half::f16>;
    let bytes: &[u8] = match shard.array.element {
        Element::F32 => bytemuck::cast_slice(values),
        Element::F16 => {
            half = values.par_iter().map(|&value| half::f16::from_f32(value)).collect();
            bytemuck::cast_slice(&half)
        }
    };
    let view = safetensors::tensor::TensorView::new(shard.array.element.dtype(), shape, bytes)
        .expect("shape and bytes were checked against each other");
    safetensors::serialize([(TENSOR, view)], None).expect("one tensor with a valid view always serializes")
}
