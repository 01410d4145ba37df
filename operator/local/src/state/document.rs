//! `status.json`: the manifest and the status of a job.

use super::{StateDir, StateError, write_private};
use pawl_api::{TrainingJob, TrainingJobStatus};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;

pub use pawl_decision::record::DOCUMENT_FORMAT;

/// The status document of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    /// Format of this document.
    pub format: u32,
    /// Hash of the spec, which detects a changed manifest; empty in the records of a job.
    #[serde(default)]
    pub spec_hash: String,
    /// The manifest; its `metadata.generation` counts the changes of the spec, from 1, and its `metadata.uid` is
    /// created with the state directory: a job that is started anew is another job.
    pub job: TrainingJob,
    /// The status: the only persistent state of the decision core.
    pub status: TrainingJobStatus,
}

/// The part of the document that identifies its format.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

impl Document {
    /// The document of a new job.
    pub fn new(job: TrainingJob) -> Self {
        let mut document =
            Self { format: DOCUMENT_FORMAT, spec_hash: spec_hash(&job), job, status: TrainingJobStatus::default() };
        document.job.status = None;
        document.job.metadata.generation = Some(1);
        document.job.metadata.uid = Some(uuid::Uuid::new_v4().to_string());
        document
    }

    /// Replaces the manifest by that of a later run. Returns whether the spec has changed.
    pub fn adopt(&mut self, job: TrainingJob) -> bool {
        let hash = spec_hash(&job);
        let changed = hash != self.spec_hash;
        let generation = self.job.metadata.generation.unwrap_or(1) + i64::from(changed);
        let uid = self.job.metadata.uid.take();
        self.job = job;
        self.job.metadata.uid = uid;
        self.job.status = None;
        self.job.metadata.generation = Some(generation);
        self.spec_hash = hash;
        changed
    }

    /// Name of the job.
    pub fn name(&self) -> &str {
        self.job.metadata.name.as_deref().unwrap_or_default()
    }

    /// Reads the document of `state`; `None` when no job was run there.
    ///
    /// # Errors
    /// [`StateError::Corrupt`], [`StateError::Newer`] or [`StateError::Unusable`]; the file is left unchanged.
    pub fn load(state: &StateDir) -> Result<Option<Self>, StateError> {
        let path = state.status();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StateError::Unusable { path, source }),
        };
        let corrupt = |error: serde_json::Error| StateError::Corrupt {
            path: path.clone(),
            problem: error.to_string(),
            remove: state.root().to_owned(),
        };
        let header: Header = serde_json::from_slice(&bytes).map_err(corrupt)?;
        if header.format > DOCUMENT_FORMAT {
            return Err(StateError::Newer { path, found: header.format, known: DOCUMENT_FORMAT });
        }
        serde_json::from_slice(&bytes).map(Some).map_err(corrupt)
    }

    /// Reads the document of `state`, where a job must have run.
    ///
    /// # Errors
    /// [`StateError::Absent`] when no job was run there, and as [`Self::load`].
    pub fn load_existing(state: &StateDir) -> Result<Self, StateError> {
        Self::load(state)?.ok_or_else(|| StateError::Absent { path: state.status() })
    }

    /// Writes the document atomically.
    ///
    /// # Errors
    /// [`StateError::Unusable`] when it cannot be written.
    pub fn save(&self, state: &StateDir) -> Result<(), StateError> {
        let path = state.status();
        let mut bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| StateError::Unusable { path: path.clone(), source: io::Error::other(error) })?;
        bytes.push(b'\n');
        write_private(&path, &bytes)
    }
}

/// Hash of a spec: equal for manifests that differ only in comments, layout or spelled-out defaults.
fn spec_hash(job: &TrainingJob) -> String {
    let text = serde_json::to_value(&job.spec).map(|spec| spec.to_string()).unwrap_or_default();
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(batch: u32) -> TrainingJob {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
            "spec": {"workload": {"name": "ups"}, "settings": {"batchPerGpu": batch}},
        }))
        .unwrap()
    }

    fn state() -> (tempfile::TempDir, StateDir) {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path().join("state")).prepare().unwrap();
        (directory, state)
    }

    #[test]
    fn a_saved_document_is_loaded() {
        let (_directory, state) = state();
        assert_eq!(Document::load(&state).unwrap(), None);
        let document = Document::new(job(8));
        document.save(&state).unwrap();
        assert_eq!(Document::load(&state).unwrap(), Some(document));
    }

    #[test]
    fn the_generation_counts_changes_of_the_spec_only() {
        let mut document = Document::new(job(8));
        assert!(!document.adopt(job(8)));
        assert_eq!(document.job.metadata.generation, Some(1));
        assert!(document.adopt(job(4)));
        assert_eq!(document.job.metadata.generation, Some(2));
    }

    #[test]
    fn a_corrupt_document_is_named_and_left_alone() {
        let (_directory, state) = state();
        for text in ["", "{\"format\": 1, \"sp", "[]", "{\"format\": 1}", "\u{0}\u{0}"] {
            fs::write(state.status(), text).unwrap();
            let message = Document::load(&state).unwrap_err().to_string();
            assert!(message.contains("status.json") && message.contains("delete"), "{message}");
            assert_eq!(fs::read_to_string(state.status()).unwrap(), text);
        }
        fs::write(state.status(), "{\"format\": 99}").unwrap();
        assert!(matches!(Document::load(&state), Err(StateError::Newer { found: 99, .. })));
    }
}
