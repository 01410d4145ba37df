//! Writing and deleting checkpoints, by the gang with the latest epoch only.

use super::epoch::Epoch;
use super::manifest::{Manifest, Problem, Shard, hash};
use super::{Author, Checkpoint, CheckpointError, Position, Store, shards};
use pawl_contract::checkpoint::{BestCheckpoint, CheckpointRef};
use std::ops::Deref;

/// The right of one gang to write the checkpoints of its job; it reads as a [`Store`].
#[derive(Debug)]
pub struct Writer {
    store: Store,
    keep: usize,
    author: Author,
    epoch: Epoch,
}

impl Deref for Writer {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Writer {
    /// Opens the storage at `url`, which retains the newest `keep` (at least 1) complete checkpoints, and supersedes all
    /// earlier gangs of the job.
    ///
    /// # Errors
    /// When the address is not supported or unreachable; [`CheckpointError::Superseded`] when a later attempt has claimed it.
    pub fn open(url: &str, keep: u32, author: Author) -> Result<Self, CheckpointError> {
        let store = Store::open(url)?;
        match Epoch::claim(&store.storage, author.attempt_number())? {
            Ok(epoch) => Ok(Self { store, keep: keep.max(1) as usize, author, epoch }),
            Err(latest) => Err(CheckpointError::Superseded { attempt: author.attempt, by: latest.to_string() }),
        }
    }

    /// Writes a checkpoint, then deletes those older than the newest `keep`, except the best one that its position names.
    /// Until this returns `Ok`, all older checkpoints are left unchanged.
    ///
    /// # Errors
    /// When storage fails; the incomplete checkpoint is removed, and would never be resumed from.
    /// [`CheckpointError::Superseded`] when a later gang of the job has started.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<CheckpointRef, CheckpointError> {
        let reference = self.next(checkpoint)?;
        self.save_as(&reference, checkpoint)?;
        Ok(reference)
    }

    /// As [`Writer::save`], of a checkpoint that is the best so far with `value` of `metric`.
    ///
    /// # Errors
    /// As [`Writer::save`].
    pub fn save_best(
        &self,
        mut checkpoint: Checkpoint,
        metric: &str,
        value: f64,
    ) -> Result<BestCheckpoint, CheckpointError> {
        let reference = self.next(&checkpoint)?;
        let best = BestCheckpoint { checkpoint: reference.clone(), metric: metric.to_owned(), value };
        checkpoint.position.best_checkpoint = Some(best.clone());
        self.save_as(&reference, &checkpoint)?;
        Ok(best)
    }

    /// Deletes every checkpoint after `items` items: they are bad, and must not become the newest of a later launch.
    ///
    /// # Errors
    /// When storage fails, or the gang was superseded.
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

    /// Refuses when a later gang has claimed the storage.
    fn check_epoch(&self) -> Result<(), CheckpointError> {
        match Epoch::latest(&self.storage)? {
            Some(latest) if latest > self.epoch => {
                Err(CheckpointError::Superseded { attempt: self.author.attempt.clone(), by: latest.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// The reference of a checkpoint that is written now.
    fn next(&self, checkpoint: &Checkpoint) -> Result<CheckpointRef, CheckpointError> {
        self.check_epoch()?;
        let Position { step, items, .. } = checkpoint.position;
        let generation = self.names()?.iter().map(|((_, generation), _)| *generation).max().unwrap_or(0) + 1;
        Ok(CheckpointRef { name: format!("{generation:08}-step-{step}-by-{}", self.epoch), step, items })
    }

    fn save_as(&self, reference: &CheckpointRef, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let name = &reference.name;
        if let Err(error) = self.write(name, checkpoint) {
            if let Err(also) = self.delete(name) {
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

    fn write(&self, name: &str, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
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
        let manifest = Manifest::new(&self.author, checkpoint.position.clone(), written);
        let bytes = manifest.to_bytes().map_err(|e| format(e.to_string()))?;
        self.check_epoch()?;
        Ok(self.storage.put(&format!("{name}/manifest.json"), bytes)?)
    }

    /// Deletes all but the newest `keep` complete checkpoints and the best one that the newest names, and damaged ones that
    /// are older than one of those. What this trainer does not understand stays.
    fn prune(&self) -> Result<(), CheckpointError> {
        let mut complete = 0;
        let mut best = None;
        for (_, name) in self.names()? {
            match self.manifest(&name)? {
                Ok(manifest) => {
                    if complete == 0 {
                        best = manifest.position.best_checkpoint.map(|best| best.checkpoint.name);
                    }
                    complete += 1;
                    if complete > self.keep && best.as_ref() != Some(&name) {
                        self.remove(&name)?;
                    }
                }
                Err(Problem::Damaged(_)) if complete > 0 => self.remove(&name)?,
                Err(Problem::Damaged(_) | Problem::Unknown(_)) => {}
            }
        }
        Ok(())
    }

    /// Deletes a checkpoint, unless this gang was superseded.
    fn remove(&self, name: &str) -> Result<(), CheckpointError> {
        self.check_epoch()?;
        self.delete(name)
    }

    /// Deletes a checkpoint, its manifest first: partially deleted, it counts as incomplete.
    fn delete(&self, name: &str) -> Result<(), CheckpointError> {
        self.storage.delete(&format!("{name}/manifest.json"))?;
        Ok(self.storage.delete_folder(name)?)
    }
}
