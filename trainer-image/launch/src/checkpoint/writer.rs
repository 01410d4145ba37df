//! Writing and deleting checkpoints, by the gang with the latest epoch only.

use super::epoch::Epoch;
use super::hash;
use super::manifest::{Manifest, Problem, Shard};
use super::storage::Heartbeat;
use super::{Author, Checkpoint, CheckpointError, DIVERGED, MOST_NOTED, Order, Position, Store, order, shards};
use parking_lot::Mutex;
use pawl_contract::checkpoint::{BestCheckpoint, CheckpointRef};
use std::collections::HashSet;

/// The right of one gang to write the checkpoints of its job.
#[derive(Debug)]
pub struct Writer {
    store: Store,
    keep: usize,
    author: Author,
    epoch: Epoch,
    /// Names of checkpoints that were complete when this process wrote or read them.
    complete: Mutex<HashSet<String>>,
}

impl Writer {
    /// Opens the storage at `url`, which retains the newest `keep` (at least 1) complete checkpoints, and supersedes
    /// all earlier gangs of the job.
    ///
    /// # Errors
    /// When the address is not supported or unreachable; [`CheckpointError::Superseded`] when a later attempt has
    /// claimed it, [`CheckpointError::Foreign`] when the checkpoints there are another job's.
    pub fn open(url: &str, keep: u32, author: Author) -> Result<Self, CheckpointError> {
        let store = Store::open(url)?;
        store.require_own(&author)?;
        match Epoch::claim(&store.storage, author.attempt_number())? {
            Ok(epoch) => Ok(Self { store, keep: keep.max(1) as usize, author, epoch, complete: Mutex::default() }),
            Err(latest) => Err(CheckpointError::Superseded { attempt: author.attempt, by: latest.to_string() }),
        }
    }

    /// This writer, which reports the bytes that it reads, hashes and writes to `heartbeat`.
    #[must_use]
    pub fn with_heartbeat(mut self, heartbeat: Heartbeat) -> Self {
        self.store.storage.set_heartbeat(heartbeat);
        self
    }

    /// Resumes a checkpoint of `before` at `items`: those that are written from now on say that both trained them.
    /// `false` when it is one of another training: of another workload or configuration, or with another seed.
    pub(crate) fn resume(&mut self, before: &Author, items: u64) -> bool {
        let same = self.author.trains_as(before);
        if same {
            self.author.resume(before, items);
        }
        same
    }

    /// Who writes, and what has trained the model so far.
    pub(crate) fn author(&self) -> &Author {
        &self.author
    }

    /// The checkpoints, for reading.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Writes a checkpoint, then deletes those older than the newest `keep`, except the best one that its position
    /// names. Until this returns `Ok`, all older checkpoints are left unchanged.
    ///
    /// # Errors
    /// When storage fails; the incomplete checkpoint is removed, and would never be resumed from.
    /// [`CheckpointError::Superseded`] when a later gang of the job has started, [`CheckpointError::NotFinite`] when a
    /// tensor contains NaN or infinity.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<CheckpointRef, CheckpointError> {
        let (reference, older) = self.next(checkpoint)?;
        self.save_as(&reference, older, checkpoint)?;
        Ok(reference)
    }

    /// As [`Writer::save`], of a checkpoint that is the best so far with `value` of `metric`: its position then names
    /// itself.
    ///
    /// # Errors
    /// As [`Writer::save`].
    pub fn save_best(
        &self,
        checkpoint: &mut Checkpoint,
        metric: &str,
        value: f64,
    ) -> Result<BestCheckpoint, CheckpointError> {
        let (reference, older) = self.next(checkpoint)?;
        let best = BestCheckpoint { checkpoint: reference.clone(), metric: metric.to_owned(), value };
        checkpoint.position.best_checkpoint = Some(best.clone());
        self.save_as(&reference, older, checkpoint)?;
        Ok(best)
    }

    /// Deletes every checkpoint after `limit` items, if there is one: they are bad, and must not become the newest of a
    /// later launch. What is deleted is noted: the report may be lost, and the next launch expects a checkpoint. What
    /// was noted, but not deleted because its gang was killed, is deleted now.
    ///
    /// # Errors
    /// When storage fails, or the gang was superseded.
    pub fn discard_after(&self, limit: Option<u64>) -> Result<(), CheckpointError> {
        let mut noted = self.store.diverged()?;
        let mut bad = self.after(limit)?;
        bad.retain(|name| !noted.contains(name));
        if !bad.is_empty() {
            self.check_epoch()?;
            noted.append(&mut bad);
            let newest = noted.split_off(noted.len().saturating_sub(MOST_NOTED));
            self.store.storage.put(DIVERGED, newest.join("\n").into_bytes())?;
            noted = newest;
        }
        for (_, name) in self.store.names()?.into_iter().filter(|(_, name)| noted.contains(name)) {
            tracing::info!(checkpoint = name, "deleted: it is after the last good position");
            self.check_epoch()?;
            self.delete(&name)?;
        }
        Ok(())
    }

    /// Whether the checkpoint `known` is not missing but bad: it is after `limit` items, or was deleted because it was;
    /// or one that was written after it, for which it may have been deleted, is there or was.
    ///
    /// # Errors
    /// When storage fails.
    pub(crate) fn is_bad(&self, known: &CheckpointRef, limit: Option<u64>) -> Result<bool, CheckpointError> {
        let mut bad = [self.after(limit)?, self.store.diverged()?].concat();
        if bad.contains(&known.name) {
            return Ok(true);
        }
        bad.append(&mut self.store.damaged());
        let is_later = |name: &String| order(name) >= order(&known.name);
        Ok(is_after(known, limit) && bad.iter().any(is_later))
    }

    /// Names of the damaged checkpoints that may be good as far as their position is known: not those that were written
    /// after `known`, where that is after `limit` items.
    pub(crate) fn damaged(&self, known: Option<&CheckpointRef>, limit: Option<u64>) -> Vec<String> {
        let bad = known.filter(|known| is_after(known, limit));
        let mut damaged = self.store.damaged();
        damaged.retain(|name| bad.is_none_or(|bad| order(name) < order(&bad.name)));
        damaged
    }

    /// Names of the checkpoints after `limit` items.
    fn after(&self, limit: Option<u64>) -> Result<Vec<String>, CheckpointError> {
        let mut after = Vec::new();
        let Some(limit) = limit else { return Ok(after) };
        for (_, name) in self.store.names()? {
            if self.store.manifest(&name)?.is_ok_and(|manifest| manifest.position.items > limit) {
                after.push(name);
            }
        }
        Ok(after)
    }

    /// Refuses when a later gang has claimed the storage.
    fn check_epoch(&self) -> Result<(), CheckpointError> {
        match Epoch::latest(&self.store.storage)? {
            Some(latest) if latest > self.epoch => {
                Err(CheckpointError::Superseded { attempt: self.author.attempt.clone(), by: latest.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// The reference of a checkpoint that is written now, and all checkpoints before it, newest first.
    fn next(&self, checkpoint: &Checkpoint) -> Result<(CheckpointRef, Vec<(Order, String)>), CheckpointError> {
        self.check_epoch()?;
        let Position { step, items, .. } = checkpoint.position;
        let older = self.store.names()?;
        // A name that is noted as that of a bad checkpoint is not given again.
        let noted = self.store.diverged()?.into_iter().filter_map(|name| Some((order(&name)?, name)));
        let highest = older.iter().cloned().chain(noted).max_by_key(|((_, generation), _)| *generation);
        let generation = highest.as_ref().map_or(Some(1), |((_, generation), _)| generation.checked_add(1));
        let Some(generation) = generation else {
            let name = highest.map(|(_, name)| name).unwrap_or_default();
            let problem = "no number is larger than that in its name: no gang wrote it; delete it".to_owned();
            return Err(CheckpointError::Unreadable { name, problem });
        };
        Ok((CheckpointRef { name: format!("{generation:08}-step-{step}-by-{}", self.epoch), step, items }, older))
    }

    fn save_as(
        &self,
        reference: &CheckpointRef,
        older: Vec<(Order, String)>,
        checkpoint: &Checkpoint,
    ) -> Result<(), CheckpointError> {
        let name = &reference.name;
        if let Err(error) = self.write(name, checkpoint) {
            if let Err(also) = self.delete(name) {
                tracing::warn!(checkpoint = name, "cannot remove an incomplete checkpoint: {also}");
            }
            return Err(error);
        }
        self.complete.lock().insert(name.clone());
        let best = checkpoint.position.best_checkpoint.as_ref().map(|best| best.checkpoint.name.as_str());
        // The checkpoint is complete: a failed clean-up is not an error.
        if let Err(error) = self.prune(&older, best) {
            tracing::warn!("cannot remove older checkpoints: {error}");
        }
        Ok(())
    }

    fn write(&self, name: &str, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let format = |problem: String| CheckpointError::Format { name: name.to_owned(), problem };
        if let Some(twice) = shards::duplicate(&checkpoint.tensors) {
            return Err(format(format!("two tensors have the name {twice}, which is a bug")));
        }
        if let Some(tensor) = shards::not_finite(&checkpoint.tensors) {
            return Err(CheckpointError::NotFinite { tensor: tensor.to_owned(), step: checkpoint.position.step });
        }
        let parts = shards::cut(&checkpoint.tensors);
        let mut written = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let file = format!("model-{:05}-of-{:05}.safetensors", index + 1, parts.len());
            let bytes = shards::encode(part).map_err(format)?;
            written.push(Shard { file: file.clone(), bytes: bytes.len() as u64, sha256: hash(&bytes) });
            self.store.storage.beat(bytes.len());
            self.store.storage.put(&format!("{name}/{file}"), bytes)?;
        }
        let manifest = Manifest::new(&self.author, checkpoint.position.clone(), written);
        let bytes = manifest.to_bytes().map_err(|e| format(e.to_string()))?;
        self.check_epoch()?;
        Ok(self.store.storage.put(&format!("{name}/manifest.json"), bytes)?)
    }

    /// Deletes what the checkpoint that was just written makes superfluous: of `older`, all but the newest complete
    /// ones that are kept beside it and the `best` one; and damaged ones. What this trainer does not understand stays.
    ///
    /// The epoch was checked immediately before the manifest was written, and `older` was listed before that: no
    /// checkpoint of a later gang is in it.
    fn prune(&self, older: &[(Order, String)], best: Option<&str>) -> Result<(), CheckpointError> {
        let mut complete = 1;
        for (_, name) in older {
            // In the place of a good one, it would be kept.
            if self.store.damaged.lock().contains(name) {
                self.delete(name)?;
                continue;
            }
            // A checkpoint that is known to be complete is read only before it is deleted.
            let known = self.complete.lock().contains(name);
            if known && complete < self.keep {
                complete += 1;
                continue;
            }
            if best == Some(name.as_str()) {
                complete += 1;
                continue;
            }
            match self.store.manifest(name)? {
                Ok(_) if complete < self.keep => {
                    complete += 1;
                    self.complete.lock().insert(name.clone());
                }
                Ok(_) | Err(Problem::Damaged(_)) => self.delete(name)?,
                Err(Problem::Unknown(_)) => drop(self.complete.lock().remove(name)),
            }
        }
        Ok(())
    }

    /// Deletes a checkpoint, its manifest first: partially deleted, it counts as incomplete.
    fn delete(&self, name: &str) -> Result<(), CheckpointError> {
        self.complete.lock().remove(name);
        self.store.damaged.lock().remove(name);
        self.store.storage.delete(&format!("{name}/manifest.json"))?;
        Ok(self.store.storage.delete_folder(name)?)
    }
}

/// Whether a checkpoint is after `limit` items, if there is a limit.
fn is_after(checkpoint: &CheckpointRef, limit: Option<u64>) -> bool {
    limit.is_some_and(|limit| checkpoint.items > limit)
}
