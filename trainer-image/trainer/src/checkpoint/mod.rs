//! Checkpoints: layout-free, atomic, hashed.
//!
//! A checkpoint is a folder `<generation>-step-<step>` of safetensors shards and a `manifest.json` with the SHA-256 of
//! each, written last. Generations only rise, so that a new checkpoint never touches an older one, not even after a
//! rollback has led back to an earlier step. Tensors are whole and named as the model names them: no trace of ranks,
//! arenas or precision, so that a run can go on with other settings.

mod manifest;
mod shards;
mod storage;

pub use manifest::Position;
pub use shards::Tensors;
pub use storage::StorageError;

use manifest::{Manifest, Shard, hash};
use pawl_contract::progress::CheckpointRef;
use pawl_graph::array::Array;
use storage::Storage;

/// A checkpoint that could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Storage refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The tensors cannot be written down.
    #[error("checkpoint {name}: {problem}")]
    Format {
        /// The checkpoint.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

/// A checkpoint in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Where the run stands.
    pub position: Position,
    /// Every state that lives on; read back, they are in the order of their names.
    pub tensors: Tensors,
}

impl Checkpoint {
    /// Checks that a run of `workload` with `seed` and the frozen arrays `extras` made it.
    ///
    /// # Errors
    /// What of it is another run's.
    pub fn made_by(&self, workload: &str, seed: u64, extras: &[(String, Array)]) -> Result<(), String> {
        let Self { position, tensors } = self;
        let foreign = |what: String| Err(format!("the checkpoint is of another {what}"));
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

/// A checkpoint on storage, read and checked.
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
    /// Opens the storage at `url`, of which the newest `keep` (at least 1) complete checkpoints are kept.
    ///
    /// # Errors
    /// When the address is not understood or cannot be reached.
    pub fn open(url: &str, keep: u32) -> Result<Self, CheckpointError> {
        Ok(Self { storage: Storage::open(url)?, keep: keep.max(1) as usize })
    }

    /// Writes a checkpoint, then deletes what is older than the newest `keep`. Until this returns `Ok`, all older
    /// checkpoints are untouched.
    ///
    /// # Errors
    /// When storage refuses; what was written of it is removed, and would never be resumed from.
    pub fn save(&self, launch: &str, checkpoint: &Checkpoint) -> Result<CheckpointRef, CheckpointError> {
        let Position { step, items, .. } = checkpoint.position;
        let generation = self.names()?.first().map_or(0, |newest| newest.0) + 1;
        let name = format!("{generation:08}-step-{step}");
        if let Err(error) = self.write(&name, launch, checkpoint) {
            if let Err(also) = self.remove(&name) {
                tracing::warn!(checkpoint = name, "an unfinished checkpoint stays behind: {also}");
            }
            return Err(error);
        }
        // The checkpoint stands: not being able to tidy up is no reason to fail.
        if let Err(error) = self.prune() {
            tracing::warn!("older checkpoints stay behind: {error}");
        }
        Ok(CheckpointRef { name, step, items })
    }

    /// The newest checkpoint that is whole and has seen at most `not_after_items`. Torn and damaged ones are named in
    /// the log and passed over.
    ///
    /// # Errors
    /// When storage cannot be read.
    pub fn newest(&self, not_after_items: Option<u64>) -> Result<Option<Found>, CheckpointError> {
        for (_, name) in self.names()? {
            let manifest = match self.manifest(&name)? {
                Ok(manifest) => manifest,
                Err(problem) => {
                    tracing::warn!(checkpoint = name, "passed over: {problem}; using the one before");
                    continue;
                }
            };
            let Position { step, items, .. } = manifest.position;
            if let Some(bound) = not_after_items.filter(|bound| items > *bound) {
                tracing::warn!(checkpoint = name, "passed over: it has seen {items} items, good are at most {bound}");
                continue;
            }
            match self.load(&name, &manifest)? {
                Ok(tensors) => {
                    let reference = CheckpointRef { name, step, items };
                    let checkpoint = Checkpoint { position: manifest.position, tensors };
                    return Ok(Some(Found { reference, checkpoint }));
                }
                Err(problem) => {
                    tracing::warn!(checkpoint = name, "passed over: {problem}; using the one before");
                }
            }
        }
        Ok(None)
    }

    /// Deletes every checkpoint that has seen more than `items`: they are damaged, and must not become the newest of a
    /// later launch.
    ///
    /// # Errors
    /// When storage refuses.
    pub fn discard_after(&self, items: u64) -> Result<(), CheckpointError> {
        for (_, name) in self.names()? {
            if let Ok(manifest) = self.manifest(&name)?
                && manifest.position.items > items
            {
                tracing::info!(checkpoint = name, "deleted: it has seen more than {items} items");
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    fn write(&self, name: &str, launch: &str, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let format = |problem: String| CheckpointError::Format { name: name.to_owned(), problem };
        if let Some(twice) = shards::duplicate(&checkpoint.tensors) {
            return Err(format(format!("two tensors are called {twice}, which is a defect")));
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

    /// All checkpoints, whole or not, newest first.
    fn names(&self) -> Result<Vec<(u64, String)>, CheckpointError> {
        let all = self.storage.list(None)?;
        let mut names: Vec<(u64, String)> =
            all.into_iter().filter_map(|name| Some((name.split_once("-step-")?.0.parse().ok()?, name))).collect();
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }

    /// A checkpoint's manifest, or what is wrong with it.
    fn manifest(&self, name: &str) -> Result<Result<Manifest, String>, CheckpointError> {
        let bytes = self.storage.get(&format!("{name}/manifest.json"))?;
        Ok(bytes.map_or(Err("it is torn: there is no manifest".to_owned()), |bytes| Manifest::parse(&bytes)))
    }

    /// A checkpoint's tensors, or what is wrong with them.
    fn load(&self, name: &str, manifest: &Manifest) -> Result<Result<Tensors, String>, CheckpointError> {
        let mut tensors = Vec::new();
        for shard in &manifest.shards {
            let Some(bytes) = self.storage.get(&format!("{name}/{}", shard.file))? else {
                return Ok(Err(format!("it is torn: {} is missing", shard.file)));
            };
            if bytes.len() as u64 != shard.bytes || hash(&bytes) != shard.sha256 {
                return Ok(Err(format!("it is damaged: {} does not match its hash", shard.file)));
            }
            match shards::decode(&bytes) {
                Ok(part) => tensors.extend(part),
                Err(problem) => return Ok(Err(format!("{}: {problem}", shard.file))),
            }
        }
        tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Ok(tensors))
    }

    /// Deletes all but the newest `keep` complete checkpoints, and torn ones that are older than one of those.
    fn prune(&self) -> Result<(), CheckpointError> {
        let mut complete = 0;
        for (_, name) in self.names()? {
            let whole = complete < self.keep && self.manifest(&name)?.is_ok();
            complete += usize::from(whole);
            if !whole && complete > 0 {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Deletes a checkpoint, its manifest first: half deleted it is torn, never wrong.
    fn remove(&self, name: &str) -> Result<(), CheckpointError> {
        self.storage.delete(&format!("{name}/manifest.json"))?;
        Ok(self.storage.delete_folder(name)?)
    }
}
