//! Checkpoints: independent of layout and number of ranks, atomic, hashed.
//!
//! A checkpoint is a folder `<generation>-step-<step>-by-<epoch>` of safetensors shards and a `manifest.json` with the
//! SHA-256 of each, written last. Generations only increase, so that a new checkpoint never overwrites an older one,
//! not even after a rollback to an earlier step. Tensors are unsharded fp32 tensors under the model's names,
//! independent of ranks, optimizer buffers and precision, so that a run can resume with other settings.
//!
//! A storage belongs to one job. Of several gangs of that job only the one with the latest epoch may write
//! (`epoch.rs`). A checkpoint that is damaged is skipped; one of a later format is an error, and is never deleted.

mod archive;
mod author;
mod choice;
mod epoch;
mod manifest;
mod probe;
mod records;
mod shards;
mod storage;
mod writer;

pub use archive::{ArchiveError, archive, unpack};
pub use author::Author;
pub use choice::{Choice, Described, is_own_name};
pub use manifest::Position;
pub use probe::probe;
pub use records::{AllRecords, RecordFile, Records};
pub(crate) use shards::largest_shard;
pub use shards::{Tensors, decode};
pub use storage::{Heartbeat, StorageError};
pub use writer::Writer;

use epoch::Epoch;
use manifest::{Manifest, Problem, Shard};
use parking_lot::Mutex;
use pawl_contract::checkpoint::{CheckpointRef, MAX_QUARANTINED};
use pawl_graph::array::Array;
use std::collections::HashSet;
use storage::{Fetched, Storage};

/// SHA-256 in hexadecimal.
fn hash(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A manifest that has grown to more bytes is damaged: it is not read.
const LONGEST_MANIFEST: u64 = 64 << 20;

/// A checkpoint that could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A storage operation failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The tensors cannot be serialized.
    #[error("checkpoint {name}: {problem}")]
    Format {
        /// The checkpoint.
        name: String,
        /// The problem.
        problem: String,
    },
    /// A checkpoint exists that this trainer does not understand.
    #[error("checkpoint {name}: {problem}")]
    Unreadable {
        /// The checkpoint.
        name: String,
        /// Its format and the remedy.
        problem: String,
    },
    /// The storage has no such checkpoint.
    #[error("{storage}: {problem}")]
    Absent {
        /// The storage.
        storage: String,
        /// What is missing, and the remedy.
        problem: String,
    },
    /// A tensor contains NaN or infinity: such a checkpoint must never be the newest.
    #[error("{tensor} is not finite after step {step}; lower settings.learningRate")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The step.
        step: u64,
    },
    /// The storage contains checkpoints of another job.
    #[error(
        "checkpoint {name} in {storage} is of another job ({job}, uid {uid}): nothing was read or deleted: move the checkpoints \
         elsewhere; to continue from them, set train.resumeFrom.storage to where they are"
    )]
    Foreign {
        /// The checkpoint.
        name: String,
        /// The storage.
        storage: String,
        /// The job that wrote it.
        job: String,
        /// Its uid.
        uid: String,
    },
    /// A later gang of the job writes to the storage.
    #[error(
        "this gang of attempt {attempt} was superseded: a later one ({by}) writes to the checkpoint storage; nothing was written"
    )]
    Superseded {
        /// The own attempt.
        attempt: String,
        /// The later epoch: attempt number and gang.
        by: String,
    },
}

/// A checkpoint in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Position of the run.
    pub position: Position,
    /// Every persistent state; when read, in the order of their names.
    pub tensors: Tensors,
}

impl Checkpoint {
    /// Checks that the checkpoint is from a run of `workload` with `seed` and the frozen arrays `extras`.
    ///
    /// # Errors
    /// What differs.
    pub fn made_by(&self, workload: &str, seed: u64, extras: &[(String, Array)]) -> Result<(), String> {
        if self.position.workload == workload && self.position.seed != seed {
            return Err(format!("the checkpoint belongs to another seed ({}, not {seed})", self.position.seed));
        }
        self.fits(workload, extras)
    }

    /// Checks that the checkpoint is of `workload` with the frozen arrays `extras`, whatever its seed.
    ///
    /// # Errors
    /// What differs.
    pub fn fits(&self, workload: &str, extras: &[(String, Array)]) -> Result<(), String> {
        let Self { position, tensors } = self;
        let foreign = |what: String| Err(format!("the checkpoint belongs to another {what}"));
        if position.workload != workload {
            return foreign(format!("workload ({}, not {workload})", position.workload));
        }
        for (name, wanted) in extras {
            if tensors.iter().find(|(known, _)| known == name).is_none_or(|(_, array)| array != wanted) {
                return foreign(format!("set of data ({name} differs)"));
            }
        }
        Ok(())
    }
}

/// The names, a line each, of the checkpoints that were deleted because the training that had saved them had diverged.
/// A name is never given again.
const DIVERGED: &str = ".pawl/diverged";
/// Most of them: the newest.
const MOST_NOTED: usize = 500;
/// Longest list of them, bytes.
const LONGEST_LIST: u64 = 1 << 16;

/// Epoch and generation of a checkpoint.
type Order = (Epoch, u64);

/// The order of the checkpoint called `name`; `None` when it is something else.
fn order(name: &str) -> Option<Order> {
    let (generation, rest) = name.split_once("-step-")?;
    let (step, epoch) = rest.split_once("-by-")?;
    step.parse::<u64>().ok()?;
    Some((epoch.parse().ok()?, generation.parse().ok()?))
}

/// A checkpoint that was read from storage and verified.
#[derive(Debug)]
pub struct Found {
    /// Name, step and items.
    pub reference: CheckpointRef,
    /// Its content.
    pub checkpoint: Checkpoint,
    /// Who wrote it.
    pub author: Author,
}

/// The checkpoints of one job, for reading.
#[derive(Debug)]
pub struct Store {
    storage: Storage,
    /// Names of checkpoints whose manifest or tensors were found to be damaged.
    damaged: Mutex<HashSet<String>>,
}

impl Store {
    /// Opens the storage at `url` for reading.
    ///
    /// # Errors
    /// When the address is not supported or unreachable.
    pub fn open(url: &str) -> Result<Self, CheckpointError> {
        Ok(Self { storage: Storage::open(url)?, damaged: Mutex::default() })
    }

    /// This store, which reports the bytes that it reads to `heartbeat`.
    #[must_use]
    pub fn with_heartbeat(mut self, heartbeat: Heartbeat) -> Self {
        self.storage.set_heartbeat(heartbeat);
        self
    }

    /// The best checkpoint that the newest complete one names, or that one itself where the best is none or unreadable.
    ///
    /// # Errors
    /// When storage cannot be read.
    pub fn best(&self) -> Result<Option<Found>, CheckpointError> {
        let Some(newest) = self.newest(None)? else { return Ok(None) };
        let Some(best) = newest.checkpoint.position.best_checkpoint.clone() else { return Ok(Some(newest)) };
        let reference = best.checkpoint;
        let read = match self.manifest(&reference.name)? {
            Ok(manifest) => self.load(&reference.name, &manifest)?.map(|tensors| (manifest, tensors)),
            Err(problem) => Err(problem.to_string()),
        };
        match read {
            Ok((Manifest { position, author, .. }, tensors)) => {
                Ok(Some(Found { reference, checkpoint: Checkpoint { position, tensors }, author }))
            }
            Err(problem) => {
                tracing::warn!(checkpoint = reference.name, "the best checkpoint: {problem}; using the newest one");
                Ok(Some(newest))
            }
        }
    }

    /// The newest complete checkpoint of at most `not_after_items` items. Incomplete and corrupt ones are logged and
    /// skipped, as are those of a training that had diverged which nobody has deleted yet.
    ///
    /// # Errors
    /// When storage cannot be read, or the newest checkpoint is of a later format.
    pub fn newest(&self, not_after_items: Option<u64>) -> Result<Option<Found>, CheckpointError> {
        let diverged = self.diverged()?;
        for (_, name) in self.names()?.into_iter().filter(|(_, name)| !diverged.contains(name)) {
            let manifest = match self.manifest(&name)? {
                Ok(manifest) => manifest,
                Err(Problem::Unknown(problem)) => return Err(CheckpointError::Unreadable { name, problem }),
                Err(Problem::Damaged(problem)) => {
                    tracing::warn!(checkpoint = name, "skipped: {problem}; trying the previous one");
                    continue;
                }
            };
            let Position { step, items, .. } = manifest.position;
            if let Some(bound) = not_after_items.filter(|bound| items > *bound) {
                tracing::warn!(
                    checkpoint = name,
                    "skipped: it is at {items} items, after the last good position at {bound} items"
                );
                continue;
            }
            match self.load(&name, &manifest)? {
                Ok(tensors) => {
                    let reference = CheckpointRef { name, step, items };
                    let checkpoint = Checkpoint { position: manifest.position, tensors };
                    return Ok(Some(Found { reference, checkpoint, author: manifest.author }));
                }
                Err(problem) => {
                    tracing::warn!(checkpoint = name, "skipped: {problem}; trying the previous one");
                }
            }
        }
        Ok(None)
    }

    /// Names of the checkpoints that were found to be damaged, the newest last: as many as progress contains.
    pub(crate) fn damaged(&self) -> Vec<String> {
        let mut names: Vec<String> = self.damaged.lock().iter().cloned().collect();
        names.sort_unstable();
        names.split_off(names.len().saturating_sub(MAX_QUARANTINED))
    }

    /// Checks that the newest checkpoint whose manifest can be read is of the job with the uid of `author`, as far as
    /// the two are known.
    fn require_own(&self, author: &Author) -> Result<(), CheckpointError> {
        for (_, name) in self.names()? {
            let Ok(manifest) = self.manifest(&name)? else { continue };
            let Author { uid, job, .. } = manifest.author;
            if uid.is_empty() || author.uid.is_empty() || uid == author.uid {
                return Ok(());
            }
            return Err(CheckpointError::Foreign { name, storage: self.storage.name().to_owned(), job, uid });
        }
        Ok(())
    }

    /// Names of the checkpoints that were deleted because the training that had saved them had diverged.
    fn diverged(&self) -> Result<Vec<String>, CheckpointError> {
        let text = match self.storage.fetch(DIVERGED, LONGEST_LIST)? {
            Some(Fetched::Bytes(bytes)) => String::from_utf8(bytes).unwrap_or_default(),
            Some(Fetched::Larger(_)) | None => String::new(),
        };
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// All checkpoints, complete or not, newest first: of the latest epoch, and there of the highest generation.
    fn names(&self) -> Result<Vec<(Order, String)>, CheckpointError> {
        let all = self.storage.list(None)?;
        let mut names: Vec<_> = all.into_iter().filter_map(|name| Some((order(&name)?, name))).collect();
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }

    /// A checkpoint's manifest, or its problem.
    fn manifest(&self, name: &str) -> Result<Result<Manifest, Problem>, CheckpointError> {
        let found = match self.storage.fetch(&format!("{name}/manifest.json"), LONGEST_MANIFEST)? {
            Some(Fetched::Bytes(bytes)) => Manifest::parse(&bytes),
            Some(Fetched::Larger(size)) => {
                Err(Problem::Damaged(format!("its manifest is corrupt: it has {size} bytes")))
            }
            // It was not written to its end, or its deletion was not ended.
            None => return Ok(Err(Problem::Damaged("it is incomplete: there is no manifest".to_owned()))),
        };
        if matches!(found, Err(Problem::Damaged(_))) {
            self.damaged.lock().insert(name.to_owned());
        }
        Ok(found)
    }

    /// A checkpoint's tensors, or their problem. One that is damaged is known to be so from now on.
    fn load(&self, name: &str, manifest: &Manifest) -> Result<Result<Tensors, String>, CheckpointError> {
        let mut tensors = Vec::new();
        for shard in &manifest.shards {
            let bytes = match self.shard(name, shard)? {
                Ok(bytes) => bytes,
                Err(problem) => {
                    self.damaged.lock().insert(name.to_owned());
                    return Ok(Err(problem));
                }
            };
            match decode(&bytes) {
                Ok(part) => tensors.extend(part),
                Err(problem) => return Ok(Err(format!("{}: {problem}", shard.file))),
            }
        }
        tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Ok(tensors))
    }

    /// The bytes of a shard, or their problem.
    fn shard(&self, name: &str, shard: &Shard) -> Result<Result<Vec<u8>, String>, CheckpointError> {
        let Shard { file, bytes: size, sha256 } = shard;
        Ok(match self.storage.fetch(&format!("{name}/{file}"), *size)? {
            None => Err(format!("it is incomplete: {file} is missing")),
            Some(Fetched::Larger(found)) => Err(format!("it is corrupt: {file} has {found} bytes, not {size}")),
            Some(Fetched::Bytes(bytes)) if bytes.len() as u64 != *size || hash(&bytes) != *sha256 => {
                Err(format!("it is corrupt: {file} does not match its hash"))
            }
            Some(Fetched::Bytes(bytes)) => Ok(bytes),
        })
    }
}
