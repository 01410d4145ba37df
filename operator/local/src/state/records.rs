//! Reads the records of a job ([`pawl_contract::record`]): a folder of its storage that is mounted here, or was copied.

use super::document::Document;
use super::{StateDir, StateError};
use pawl_contract::attempt::AttemptName;
use pawl_contract::happened::Happened;
use pawl_contract::record::{EXTENSION, MAX_RECORD, RECORD_FORMAT, Record, RecordError};
use pawl_decision::record::completed;
use pawl_display::event::EventRecord;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The records of the attempts in `state`, oldest first; none in the state directory of a `pawl run`, which has more
/// than they contain. Files that are no records are skipped.
///
/// # Errors
/// [`StateError::Unusable`] when a file cannot be read, [`StateError::Newer`] when one is of a later format.
pub fn load(state: &StateDir) -> Result<Vec<Record>, StateError> {
    let mut records = Vec::new();
    for path in files(state)? {
        match Record::read(&text(&path)?) {
            Ok(record) => records.push(record),
            Err(RecordError::NoAttempt) => {}
            Err(RecordError::Newer { found }) => {
                return Err(StateError::Newer { path, found, known: RECORD_FORMAT });
            }
        }
    }
    records.sort_by_key(|record| AttemptName::number_of(&record.begun.attempt));
    Ok(records)
}

/// The record of the attempt called `attempt` in `state`; `None` where there is none that can be read.
pub fn of_attempt(state: &StateDir, attempt: &str) -> Option<Record> {
    let path = state.attempts().join(format!("{attempt}.{EXTENSION}"));
    Record::read(&text(&path).ok()?).ok()
}

/// The beginning of a file, as much as a record may have.
fn text(path: &Path) -> Result<Vec<u8>, StateError> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_RECORD as u64).read_to_end(&mut text));
    read.map_err(StateError::unusable(path))?;
    Ok(text)
}

/// The job in `state`, whose status contains what attempts have recorded since it was written, and their records.
///
/// # Errors
/// As [`Document::load_existing`] and [`load`].
pub fn read(state: &StateDir) -> Result<(Document, Vec<Record>), StateError> {
    let mut document = Document::load_existing(state)?;
    let records = load(state)?;
    if !records.is_empty() {
        document.status = completed(&document.job, &document.status, &records).status;
    }
    Ok((document, records))
}

/// What happened to the job whose records in `state` these are, oldest first, each once: what attempts carried, and
/// what the decision core says of the ends of the newest ones.
pub fn happened(state: &StateDir, records: &[Record]) -> Vec<EventRecord> {
    let carried = records.iter().flat_map(|record| record.happened.iter().cloned());
    let recorded = Document::load_existing(state).ok().filter(|_| !records.is_empty());
    let since = recorded.map(|Document { job, status, .. }| completed(&job, &status, records).happened);
    let mut all: Vec<Happened> = Vec::new();
    for event in carried.chain(since.unwrap_or_default()) {
        if !all.iter().any(|known| known.is_same(&event)) {
            all.push(event);
        }
    }
    all.sort_by_key(|event| event.time);
    all.iter().map(EventRecord::from).collect()
}

/// The job of [`read`] alone.
///
/// # Errors
/// As [`read`].
pub fn document(state: &StateDir) -> Result<Document, StateError> {
    read(state).map(|(document, _)| document)
}

/// The files in which `state` has records of attempts, in no order.
///
/// # Errors
/// [`StateError::Unusable`] when they cannot be listed.
pub fn files(state: &StateDir) -> Result<Vec<PathBuf>, StateError> {
    let folder = state.attempts();
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(StateError::Unusable { path: folder, source }),
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>();
    let paths = paths.map_err(StateError::unusable(&folder))?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::attempt::AttemptEnd;
    use pawl_contract::record::{Begun, Ended, Entry, Text};
    use serde_json::json;

    #[test]
    fn records_are_found_in_a_storage_and_read_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path().join(".pawl/_records"));
        let found = StateDir::found_in(directory.path());
        assert_eq!((found.root(), found.storage()), (directory.path(), None));
        fs::create_dir_all(state.attempts()).unwrap();
        let job = json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
            "spec": {"workload": {"name": "ups"}}});
        let written = json!({"format": 1, "job": job, "status": {"stage": "Complete"}});
        fs::write(state.status(), written.to_string()).unwrap();
        for number in [10, 2] {
            let mut text = Text::default();
            text.add(&Entry::Attempt(Box::new(Begun::new("toy", &format!("toy-{number}")))));
            fs::write(state.attempts().join(format!("toy-{number}.jsonl")), text.as_bytes()).unwrap();
        }
        fs::write(state.attempts().join("torn.jsonl"), "{\"att").unwrap();
        fs::write(state.attempts().join("notes.txt"), "").unwrap();
        let found = StateDir::found_in(directory.path());
        assert_eq!((found.root(), found.storage()), (state.root(), Some(directory.path())));
        let names: Vec<_> = load(&found).unwrap().into_iter().map(|record| record.begun.attempt).collect();
        assert_eq!(names, ["toy-2", "toy-10"]);
        let read = document(&found).unwrap();
        assert_eq!((read.name(), read.status.stage.to_string().as_str()), ("toy", "Complete"));
    }

    #[test]
    fn a_job_that_is_called_records_is_no_record() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path().join(".pawl/records")).prepare().unwrap();
        assert!(!state.has_run());
        let _lock = state.lock().unwrap();
        let found = StateDir::found_in(directory.path());
        assert_eq!((found.root(), found.storage()), (directory.path(), None));
        let found = StateDir::found_in(state.root());
        assert!(found.storage().is_none() && found.has_run());
    }

    #[test]
    fn what_happened_is_read_once_and_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path());
        let event = |time, reason: &str| Happened {
            time,
            warning: true,
            reason: reason.to_owned(),
            message: "toy".to_owned(),
            phase: None,
        };
        let record = |number: u32, happened: Vec<Happened>| {
            let mut text = Text::default();
            text.add(&Entry::Attempt(Box::new(Begun::new("toy", &format!("toy-{number}")))));
            text.add_events(&happened);
            text.add(&Entry::End(Ended::new(9, AttemptEnd::Complete, "")));
            Record::read(text.as_bytes()).unwrap()
        };
        // A decision was repeated at another time; what a later attempt carried happened before.
        let records = [
            record(1, vec![event(5, "Started"), event(7, "Paused")]),
            record(2, vec![event(6, "Started"), event(3, "Adopted"), event(3_607, "Paused")]),
        ];
        let read = happened(&state, &records);
        let seen: Vec<_> = read.iter().map(|event| (event.time.as_second(), event.reason.as_str())).collect();
        assert_eq!(seen, [(3, "Adopted"), (5, "Started"), (7, "Paused"), (3_607, "Paused")]);
        assert!(read.iter().all(|event| event.warning));
        assert!(happened(&state, &[]).is_empty());
    }

    #[test]
    fn a_record_of_a_later_version_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path());
        fs::create_dir(state.attempts()).unwrap();
        let mut text = Text::default();
        text.add(&Entry::Attempt(Box::new(Begun { format: RECORD_FORMAT + 1, ..Begun::new("toy", "toy-1") })));
        fs::write(state.attempts().join("toy-1.jsonl"), text.as_bytes()).unwrap();
        let error = load(&state).unwrap_err().to_string();
        assert!(error.contains("toy-1.jsonl"), "{error}");
    }
}
