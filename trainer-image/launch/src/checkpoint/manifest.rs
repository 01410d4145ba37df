//! Manifest of a checkpoint: written last, so that a checkpoint with a manifest is complete.

use super::{Author, hash};
use crate::losses::SpikeWatch;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the format, before its version.
const FAMILY: &str = "pawl-checkpoint/";
/// The version that this trainer reads and writes. A later version must read all earlier ones; an earlier version
/// refuses a later one by its number and leaves it unchanged.
const VERSION: u32 = 1;

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
    pub best_checkpoint: Option<pawl_contract::checkpoint::BestCheckpoint>,
    /// Validation before the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_validation: Option<pawl_contract::measured::Validation>,
    /// The newest values of the evaluations that the plan lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<pawl_contract::plan::Evaluated>,
    /// The losses by which the next ones are judged; its fields are inlined. Of a checkpoint of an earlier version, at
    /// most its first level.
    #[serde(flatten)]
    pub losses: SpikeWatch,
}

impl Position {
    /// The position before the first step.
    pub fn start(workload: &str, seed: u64) -> Self {
        Self {
            workload: workload.to_owned(),
            seed,
            step: 0,
            items: 0,
            best_validation: None,
            evaluations_since_best: 0,
            best_checkpoint: None,
            first_validation: None,
            evaluations: Vec::new(),
            losses: SpikeWatch::default(),
        }
    }
}

/// Why a checkpoint cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// It is incomplete or corrupt: an earlier one is used instead, and it may be deleted.
    Damaged(String),
    /// It may be sound, but this trainer does not understand it: it is neither skipped nor deleted.
    Unknown(String),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Damaged(text) | Self::Unknown(text)) = self;
        f.write_str(text)
    }
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
    /// The job, attempt and launch that wrote it.
    pub author: Author,
    pub position: Position,
    pub shards: Vec<Shard>,
    /// SHA-256 of the rest of the manifest, so that a corrupt position is detected too.
    #[serde(default)]
    pub sha256: String,
}

impl Manifest {
    pub fn new(author: &Author, position: Position, shards: Vec<Shard>) -> Self {
        let format = format!("{FAMILY}{VERSION}");
        Self { format, author: author.clone(), position, shards, sha256: String::new() }
    }

    /// Serializes the manifest.
    pub fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let sealed = Self { sha256: seal(serde_json::to_value(self)?), ..self.clone() };
        serde_json::to_vec_pretty(&sealed)
    }

    /// Reads and validates a manifest.
    pub fn parse(bytes: &[u8]) -> Result<Self, Problem> {
        let corrupt = |error: serde_json::Error| Problem::Damaged(format!("its manifest is corrupt: {error}"));
        let content: Value = serde_json::from_slice(bytes).map_err(corrupt)?;
        if content["sha256"] != seal(content.clone()) {
            return Err(Problem::Damaged("its manifest is corrupt: the hash does not match".to_owned()));
        }
        let format = content["format"].as_str().unwrap_or_default();
        let version = format.strip_prefix(FAMILY).and_then(|version| version.parse::<u32>().ok());
        if version.is_none_or(|version| version > VERSION) {
            return Err(Problem::Unknown(format!(
                "its format is {format}, this trainer reads {FAMILY}1 to {VERSION}: use the trainer that wrote it, or a newer one"
            )));
        }
        serde_json::from_value(content).map_err(corrupt)
    }
}

/// The hash of a manifest: of its compact JSON with sorted keys, in which `sha256` is empty. Every version seals its
/// manifests in this way, so that an earlier trainer can tell a later format from a damaged one.
fn seal(mut content: Value) -> String {
    content["sha256"] = Value::from("");
    hash(content.to_string().as_bytes())
}
