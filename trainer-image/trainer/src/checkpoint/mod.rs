//! Checkpoints: independent of layout and number of ranks, atomic, hashed.
//!
//! A checkpoint is a folder `<generation>-step-<step>` of safetensors shards and a `manifest.json` with the SHA-256 of
//! each, written last. Generations only increase, so that a new checkpoint never overwrites an older one, not even after a
//! rollback to an earlier step. Tensors are unsharded fp32 tensors under the model's names, independent of ranks, optimizer
//! buffers and precision, so that a run can resume with other settings.

mod manifest;
mod shards;
mod storage;

pub use manifest::Position;
pub use shards::Tensors;
pub use storage::StorageError;

use manifest::{Manifest, Shard, hash};
use pawl_contract::progress::{BestCheckpoint, CheckpointRef};
use pawl_graph::array::Array;
use storage::Storage;

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
        let Self { position, tensors } = self;
        let foreign = |what: String| Err(format!("the checkpoint belongs to another {what}"));
        if position.workload != workload {
            return foreign(format!("workload ({}, not {workload})", position.workload));
        }
        if position.seed != seed {
            return foreign(format!("seed ({}, not {seed})", position.seed));
        }
        for (name, wanted) in extras {
            if tensors.iter().find(|(known, _)| known == name).is_none_or(|(_, array)| array != wanted) {
                return foreign(format!("set of data ({name} differs)"));
            }
        }
        Ok(())
    }
}

/// A checkpoint that was read from storage and verified.
#[derive(Debug)]
pub struct Found {
    /// Name, step and items.
    pub reference: CheckpointRef,
    /// Its content.
    pub checkpoint: Checkpoint,
}

/// The checkpoints of one job.
#[derive(Debug)]
pub struct Store {
    storage: Storage,
    keep: usize,
}

impl Store {
    /// Opens the storage at `url`, which retains the newest `keep` (at least 1) complete checkpoints.
    ///
    /// # Errors
    /// When the address is not supported or unreachable.
    pub fn open(url: &str, keep: u32) -> Result<Self, CheckpointError> {
        Ok(Self { storage: Storage::open(url)?, keep: keep.max(1) as usize })
    }

    /// Writes a checkpoint, then deletes those older than the newest `keep`, except the best one that its position names.
    /// Until this returns `Ok`, all older checkpoints are left unchanged.
    ///
    /// # Errors
    /// When storage fails; the incomplete checkpoint is removed, and would never be resumed from.
    pub fn save(&self, launch: &str, checkpoint: &Checkpoint) -> Result<CheckpointRef, CheckpointError> {
        let reference = self.next(checkpoint)?;
        self.save_as(&reference, launch, checkpoint)?;
        Ok(reference)
    }

    /// As [`Store::save`], of a checkpoint that is the best so far with `value` of `metric`.
    ///
    /// # Errors
    /// As [`Store::save`].
    pub fn save_best(
        &self,
        launch: &str,
        mut checkpoint: Checkpoint,
        metric: &str,
        value: f64,
    ) -> Result<BestCheckpoint, CheckpointError> {
        let reference = self.next(&checkpoint)?;
        let best = BestCheckpoint { checkpoint: reference.clone(), metric: metric.to_owned(), value };
        checkpoint.position.best_checkpoint = Some(best.clone());
        self.save_as(&reference, launch, &checkpoint)?;
        Ok(best)
    }

    /// What a checkpoint that is written now is called.
    fn next(&self, checkpoint: &Checkpoint) -> Result<CheckpointRef, CheckpointError> {
        let Position { step, items, .. } = checkpoint.position;
        let generation = self.names()?.first().map_or(0, |newest| newest.0) + 1;
        Ok(CheckpointRef { name: format!("{generation:08}-step-{step}"), step, items })
    }

    fn save_as(&self, reference: &CheckpointRef, launch: &str, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let name = &reference.name;
        if let Err(error) = self.write(name, launch, checkpoint) {
            if let Err(also) = self.remove(name) {
                tracing::warn!(checkpoint = name, "cannot remove an incomplete checkpoint: {also}");
            }
            return Err(error);
        }
        // The checkpoint is complete: a failed clean-up is not an error.
        if let Err(error) = self.prune() {
            tracing::warn!("cannot remove older checkpoints: {error}");
        }
        Ok(())
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
            Ok(manifest) => self.load(&reference.name, &manifest)?.map(|tensors| (manifest.position, tensors)),
            Err(problem) => Err(problem),
        };
        match read {
            Ok((position, tensors)) => Ok(Some(Found { reference, checkpoint: Checkpoint { position, tensors } })),
            Err(problem) => {
                tracing::warn!(checkpoint = reference.name, "the best checkpoint: {problem}; using the newest one");
                Ok(Some(newest))
            }
        }
    }

    /// The newest complete checkpoint of at most `not_after_items` items. Incomplete and corrupt ones are logged and skipped.
    ///
    /// # Errors
    /// When storage cannot be read.
    pub fn newest(&self, not_after_items: Option<u64>) -> Result<Option<Found>, CheckpointError> {
        for (_, name) in self.names()? {
            let manifest = match self.manifest(&name)? {
                Ok(manifest) => manifest,
                Err(problem) => {
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
                    return Ok(Some(Found { reference, checkpoint }));
                }
                Err(problem) => {
                    tracing::warn!(checkpoint = name, "skipped: {problem}; trying the previous one");
                }
            }
        }
        Ok(None)
    }

    /// Deletes every checkpoint after `items` items: they are bad, and must not become the newest of a later launch.
    ///
    /// # Errors
    /// When storage fails.
    pub fn discard_after(&self, items: u64) -> Result<(), CheckpointError> {
        for (_, name) in self.names()? {
            if let Ok(manifest) = self.manifest(&name)?
                && manifest.position.items > items
            {
                tracing::info!(checkpoint = name, "deleted: it is after the last good position at {items} items");
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    fn write(&self, name: &str, launch: &str, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let format = |problem: String| CheckpointError::Format { name: name.to_owned(), problem };
        if let Some(twice) = shards::duplicate(&checkpoint.tensors) {
            return Err(format(format!("two tensors have the name {twice}, which is a bug")));
        }
        let parts = shards::cut(&checkpoint.tensors);
        let mut written = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let file = format!("model-{:05}-of-{:05}.safetensors", index + 1, parts.len());
            let bytes = shards::encode(part).map_err(format)?;
            written.push(Shard { file: file.clone(), bytes: bytes.len() as u64, sha256: hash(&bytes) });
            self.storage.put(&format!("{name}/{file}"), bytes)?;
        }
        let manifest = Manifest::new(launch, checkpoint.position.clone(), written);
        let bytes = manifest.to_bytes().map_err(|e| format(e.to_string()))?;
        Ok(self.storage.put(&format!("{name}/manifest.json"), bytes)?)
    }

    /// All checkpoints, complete or not, newest first.
    fn names(&self) -> Result<Vec<(u64, String)>, CheckpointError> {
        let all = self.storage.list(None)?;
        let mut names: Vec<(u64, String)> =
            all.into_iter().filter_map(|name| Some((name.split_once("-step-")?.0.parse().ok()?, name))).collect();
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }

    /// A checkpoint's manifest, or its problem.
    fn manifest(&self, name: &str) -> Result<Result<Manifest, String>, CheckpointError> {
        let bytes = self.storage.get(&format!("{name}/manifest.json"))?;
        Ok(bytes.map_or(Err("it is incomplete: there is no manifest".to_owned()), |bytes| Manifest::parse(&bytes)))
    }

    /// A checkpoint's tensors, or their problem.
    fn load(&self, name: &str, manifest: &Manifest) -> Result<Result<Tensors, String>, CheckpointError> {
        let mut tensors = Vec::new();
        for shard in &manifest.shards {
            let Some(bytes) = self.storage.get(&format!("{name}/{}", shard.file))? else {
                return Ok(Err(format!("it is incomplete: {} is missing", shard.file)));
            };
            if bytes.len() as u64 != shard.bytes || hash(&bytes) != shard.sha256 {
                return Ok(Err(format!("it is corrupt: {} does not match its hash", shard.file)));
            }
            match shards::decode(&bytes) {
                Ok(part) => tensors.extend(part),
                Err(problem) => return Ok(Err(format!("{}: {problem}", shard.file))),
            }
        }
        tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Ok(tensors))
    }

    /// Deletes all but the newest `keep` complete checkpoints and the best one that the newest names, and incomplete ones that
    /// are older than one of those.
    fn prune(&self) -> Result<(), CheckpointError> {
        let mut complete = 0;
        let mut best = None;
        for (_, name) in self.names()? {
            let manifest = if complete < self.keep { self.manifest(&name)?.ok() } else { None };
            let whole = manifest.is_some();
            if let Some(manifest) = manifest.filter(|_| complete == 0) {
                best = manifest.position.best_checkpoint.map(|best| best.checkpoint.name);
            }
            complete += usize::from(whole);
            if !whole && complete > 0 && best.as_ref() != Some(&name) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Deletes a checkpoint, its manifest first: partially deleted, it counts as incomplete.
    fn remove(&self, name: &str) -> Result<(), CheckpointError> {
        self.storage.delete(&format!("{name}/manifest.json"))?;
        Ok(self.storage.delete_folder(name)?)
    }
}
