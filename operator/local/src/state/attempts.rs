//! `attempts/<name>/record.json`: the plan and the state of an attempt. The agent stores the results of its launches in
//! the same directory.

use super::{StateDir, StateError, create_private, write_private};
use jiff::Timestamp;
use pawl_api::TrainingJobStatus;
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use pawl_contract::report::Report;
use pawl_decision::observed::Ending;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// State of an attempt on disk. See [`pawl_decision::observed`] for the other types that describe the state of an
/// attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RecordState {
    /// It should run until it ends: if no agent runs it, one is started and resumes it, unless it has measured or
    /// trained.
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
/// [`StateError::Unusable`] when a directory or a record cannot be read, [`StateError::Corrupt`] when a record is
/// invalid.
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
        if entry.file_name().to_string_lossy().starts_with(DELETED) {
            continue;
        }
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

/// Released attempts that are kept whatever they ran.
pub const KEPT: usize = 50;
/// Beginning of the name of a directory that is being deleted.
const DELETED: &str = ".deleted-";

/// Deletes the oldest released attempts but for [`KEPT`]. Attempts that `status` names, by their own name or by that of
/// a launch, stay, and so do those of a search, whose launches its report lists.
///
/// # Errors
/// As [`load`]. What cannot be deleted now is deleted later.
pub fn prune(state: &StateDir, status: &TrainingJobStatus) -> Result<(), StateError> {
    let records = load(state)?;
    let released: Vec<_> = records.iter().filter(|record| record.state == RecordState::Released).collect();
    let old = &released[..released.len().saturating_sub(KEPT)];
    if !old.is_empty() {
        let mut named = HashSet::new();
        let status = serde_json::to_value(status).unwrap_or_default();
        texts(&status, &mut named);
        let stays = |plan: &AttemptPlan| {
            let mut launches = plan.launches.iter();
            named.contains(plan.attempt.as_str())
                || launches.any(|it| it.kind == LaunchKind::Search || named.contains(it.launch.as_str()))
        };
        for record in old.iter().filter(|record| !stays(&record.plan)) {
            // Its record goes with it: half an attempt would be none, and stay for ever.
            let name = &record.plan.attempt;
            let _ = fs::rename(directory(state, name), state.attempts().join(format!("{DELETED}{name}")));
        }
    }
    let entries = fs::read_dir(state.attempts()).into_iter().flatten().filter_map(Result::ok);
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(DELETED)) {
        let _ = fs::remove_dir_all(entry.path());
    }
    Ok(())
}

/// All texts in a document.
fn texts<'a>(value: &'a Value, found: &mut HashSet<&'a str>) {
    match value {
        Value::String(text) => {
            found.insert(text);
        }
        Value::Array(all) => all.iter().for_each(|value| texts(value, found)),
        Value::Object(all) => all.values().for_each(|value| texts(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The complete reports of an attempt's finished launches, in the order of its plan.
pub fn reports(state: &StateDir, record: &AttemptRecord) -> Vec<Report> {
    pawl_agent::finished_reports(&directory(state, &record.plan.attempt)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_api::status::{LaunchStatus, PhaseStatus};
    use serde_json::json;

    fn record(number: usize, kind: LaunchKind, state: RecordState) -> AttemptRecord {
        let launch = json!({
            "contract": 1, "job": "toy", "attempt": format!("toy-{number}"), "launch": format!("launch-{number}"), "kind": kind,
            "workload": {}, "settings": {}, "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0,
        });
        let plan = json!({
            "contract": 1, "job": "toy", "attempt": format!("toy-{number}"), "replicas": 1, "ranksPerReplica": 1,
            "gpusPerReplica": 0, "launches": [launch], "stopOnFailure": true,
        });
        let created = Timestamp::from_second(number as i64).unwrap();
        AttemptRecord {
            plan: serde_json::from_value(plan).unwrap(),
            plan_hash: String::new(),
            created,
            trainer: None,
            state,
        }
    }

    #[test]
    fn old_attempts_are_deleted_unless_something_still_names_them() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        let save = |number, kind, attempt| record(number, kind, attempt).save(&state).unwrap();
        for number in 1..=KEPT + 10 {
            let kind = if number == 2 { LaunchKind::Search } else { LaunchKind::Measure };
            save(number, kind, if number == 3 { RecordState::Stopped } else { RecordState::Released });
        }
        let evidence: LaunchStatus = serde_json::from_value(json!({
            "name": "launch-4", "kind": "Measure", "arm": "Control", "pair": 1, "seed": 1, "outcome": "Done",
        }))
        .unwrap();
        let phase = PhaseStatus { launches: vec![evidence], ..PhaseStatus::default() };
        let mut status = TrainingJobStatus { phases: vec![phase], ..TrainingJobStatus::default() };
        status
            .training
            .get_or_insert_default()
            .segments
            .push(serde_json::from_value(json!({"attempt": "toy-5"})).unwrap());
        // An earlier run was killed while it deleted one.
        fs::create_dir(state.attempts().join(".deleted-toy-0")).unwrap();
        fs::write(state.attempts().join(".deleted-toy-0").join(RECORD), "{").unwrap();
        prune(&state, &status).unwrap();
        let left: Vec<_> = load(&state).unwrap().into_iter().map(|record| record.plan.attempt).collect();
        let expected: Vec<_> = (2..=5).chain(11..=KEPT + 10).map(|number| format!("toy-{number}")).collect();
        assert_eq!(left, expected);
        assert_eq!(fs::read_dir(state.attempts()).unwrap().count(), left.len());
    }
}
