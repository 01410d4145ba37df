//! `attempts/<name>/record.json`: the plan and the state of an attempt. The agent stores the results of its launches in the
//! same directory.

use super::{StateDir, StateError, create_private, write_private};
use jiff::Timestamp;
use pawl_contract::plan::AttemptPlan;
use pawl_contract::report::Report;
use pawl_decision::observed::Ending;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// State of an attempt on disk. See [`pawl_decision::observed`] for the other types that describe the state of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RecordState {
    /// It should run until it ends: if no agent runs it, one is started and resumes it, unless it has trained.
    Active,
    /// Its agent ended it; the results contain the outcomes of its launches.
    Completed,
    /// It was stopped on request.
    Stopped,
    /// It could not be run; with a human-readable cause.
    Lost(String),
    /// Its results are in the status; its files remain as evidence.
    Released,
}

impl RecordState {
    /// How the attempt ended; `None` while it is active, and after its release.
    pub fn ending(&self) -> Option<Ending> {
        match self {
            Self::Active | Self::Released => None,
            Self::Completed => Some(Ending::Completed),
            Self::Stopped => Some(Ending::Stopped),
            Self::Lost(message) => Some(Ending::Lost(message.clone())),
        }
    }
}

/// The record of an attempt on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptRecord {
    /// Its plan.
    pub plan: AttemptPlan,
    /// Hash of the plan, computed by the decision core.
    pub plan_hash: String,
    /// Time of its creation.
    pub created: Timestamp,
    /// Build of the trainer that it runs; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<String>,
    /// Its state.
    #[serde(rename = "stand")]
    pub state: RecordState,
}

impl AttemptRecord {
    /// Writes the record into the attempt's directory, which is created if necessary.
    ///
    /// # Errors
    /// [`StateError::Unusable`] when the directory or the file cannot be written.
    pub fn save(&self, state: &StateDir) -> Result<(), StateError> {
        let directory = directory(state, &self.plan.attempt);
        create_private(&directory).map_err(StateError::unusable(&directory))?;
        let path = directory.join(RECORD);
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| StateError::Unusable { path: path.clone(), source: io::Error::other(error) })?;
        write_private(&path, &bytes)
    }
}

/// Name of the record in the directory of its attempt.
pub const RECORD: &str = "record.json";

/// The directory of an attempt.
pub fn directory(state: &StateDir, attempt: &str) -> PathBuf {
    state.attempts().join(attempt)
}

/// Reads the records of all attempts, oldest first. Directories without a record are ignored.
///
/// # Errors
/// [`StateError::Unusable`] when a directory or a record cannot be read, [`StateError::Corrupt`] when a record is invalid.
pub fn load(state: &StateDir) -> Result<Vec<AttemptRecord>, StateError> {
    let attempts = state.attempts();
    let entries = match fs::read_dir(&attempts) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(StateError::Unusable { path: attempts, source }),
    };
    let mut records = Vec::new();
    for entry in entries {
        let entry = entry.map_err(StateError::unusable(&attempts))?;
        if let Some(record) = load_one(state, &entry.path())? {
            records.push(record);
        }
    }
    records.sort_by(|a, b| (a.created, &a.plan.attempt).cmp(&(b.created, &b.plan.attempt)));
    Ok(records)
}

fn load_one(state: &StateDir, directory: &Path) -> Result<Option<AttemptRecord>, StateError> {
    let path = directory.join(RECORD);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(source) => return Err(StateError::Unusable { path, source }),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| StateError::Corrupt {
        path,
        problem: error.to_string(),
        remove: state.root().to_owned(),
    })
}

/// The complete reports of an attempt's finished launches, in the order of its plan.
pub fn reports(state: &StateDir, record: &AttemptRecord) -> Vec<Report> {
    pawl_agent::finished_reports(&directory(state, &record.plan.attempt)).unwrap_or_default()
}
