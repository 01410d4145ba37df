//! Manifest of a checkpoint: written last, so that a checkpoint with a manifest is complete.

use serde::{Deserialize, Serialize};

/// The format that this trainer reads and writes.
pub(super) const FORMAT: &str = "pawl-checkpoint/1";

/// Position of a run: all state that is not a tensor. Data order, random draws and schedules are pure functions of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Position {
    /// Name of the workload.
    pub workload: String,
    /// Seed of weights, data order and random draws.
    pub seed: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Items seen by the whole gang.
    pub items: u64,
    /// Best value so far of the metric of early stopping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_validation: Option<f64>,
    /// Evaluations since the best one.
    #[serde(default)]
    pub evaluations_since_best: u32,
    /// The best checkpoint so far; the checkpoint that it names may be this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<pawl_contract::progress::BestCheckpoint>,
    /// Validation before the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_validation: Option<pawl_contract::measured::Validation>,
}

/// One file of tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Shard {
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
}

/// `manifest.json` of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub format: String,
    /// The launch that wrote it.
    pub launch: String,
    pub position: Position,
    pub shards: Vec<Shard>,
    /// SHA-256 of the rest of the manifest, so that a corrupt position is detected too.
    #[serde(default)]
    pub sha256: String,
}

impl Manifest {
    pub fn new(launch: &str, position: Position, shards: Vec<Shard>) -> Self {
        let format = FORMAT.to_owned();
        Self { format, launch: launch.to_owned(), position, shards, sha256: String::new() }
    }

    /// Serializes the manifest.
    pub fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let sealed = Self { sha256: self.own_hash()?, ..self.clone() };
        serde_json::to_vec_pretty(&sealed)
    }

    /// Reads and validates a manifest; the error describes the problem.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(bytes).map_err(|e| format!("its manifest is corrupt: {e}"))?;
        if manifest.format != FORMAT {
            return Err(format!("its format is {}, this trainer reads {FORMAT}", manifest.format));
        }
        match manifest.own_hash() {
            Ok(hash) if hash == manifest.sha256 => Ok(manifest),
            _ => Err("its manifest is corrupt: the hash does not match".to_owned()),
        }
    }

    fn own_hash(&self) -> Result<String, serde_json::Error> {
        let unsealed = Self { sha256: String::new(), ..self.clone() };
        Ok(hash(&serde_json::to_vec(&unsealed)?))
    }
}

/// SHA-256 in hexadecimal.
pub(super) fn hash(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
