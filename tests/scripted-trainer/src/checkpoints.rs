//! Checkpoints: small JSON files, written whole or not at all.

use pawl_contract::checkpoint::CheckpointRef;
use pawl_contract::plan::CheckpointPolicy;
use std::io;
use std::path::{Path, PathBuf};

/// Where the checkpoints lie.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    dir: PathBuf,
    keep: usize,
}

impl Checkpoints {
    /// Opens the storage: a path or a `file://` URL.
    pub(crate) fn open(storage: &str, policy: &CheckpointPolicy) -> io::Result<Self> {
        let dir = PathBuf::from(storage.strip_prefix("file://").unwrap_or(storage));
        std::fs::create_dir_all(&dir)?;
        Ok(Self { dir, keep: policy.keep.max(1) as usize })
    }

    /// The complete checkpoints, oldest first. Torn ones do not count.
    fn all(&self) -> Vec<CheckpointRef> {
        let mut all: Vec<CheckpointRef> = std::fs::read_dir(&self.dir)
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let json = path.extension().is_some_and(|extension| extension == "json");
                let checkpoint: CheckpointRef =
                    serde_json::from_slice(&std::fs::read(&path).ok().filter(|_| json)?).ok()?;
                (path.file_name()?.to_str()? == checkpoint.name).then_some(checkpoint)
            })
            .collect();
        all.sort_by_key(|checkpoint| checkpoint.items);
        all
    }

    /// The newest complete checkpoint that is not damaged.
    pub(crate) fn newest(&self, policy: &CheckpointPolicy) -> Option<CheckpointRef> {
        let limit = policy.resume_not_after_items.unwrap_or(u64::MAX);
        self.all().into_iter().rfind(|checkpoint| checkpoint.items <= limit)
    }

    /// Deletes what is damaged, so that nobody resumes from it later.
    pub(crate) fn forget_damaged(&self, policy: &CheckpointPolicy) -> io::Result<()> {
        let Some(limit) = policy.resume_not_after_items else { return Ok(()) };
        self.all().iter().filter(|c| c.items > limit).try_for_each(|c| std::fs::remove_file(self.dir.join(&c.name)))
    }

    /// Writes a checkpoint and deletes those beyond the number that is kept.
    pub(crate) fn write(&self, step: u64, items: u64) -> io::Result<CheckpointRef> {
        let checkpoint = CheckpointRef { name: format!("items-{items:015}.json"), step, items };
        write(&self.dir.join(&checkpoint.name), &checkpoint)?;
        let all = self.all();
        for old in &all[..all.len().saturating_sub(self.keep)] {
            std::fs::remove_file(self.dir.join(&old.name))?;
        }
        Ok(checkpoint)
    }
}

/// Writes JSON that is there whole or not at all.
pub(crate) fn write(path: &Path, content: &impl serde::Serialize) -> io::Result<()> {
    pawl_durable::replace(path, &serde_json::to_vec(content)?)
}
