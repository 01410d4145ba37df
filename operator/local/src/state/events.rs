//! `events.jsonl`: the event log for users. Decisions do not depend on it.

use super::{PRIVATE_FILE, StateDir, StateError};
use jiff::Timestamp;
use pawl_decision::action::{Event, EventKind};
use pawl_display::event::EventRecord;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// The record of `event`, emitted at `time`.
pub fn record(event: Event, time: Timestamp) -> EventRecord {
    let Event { kind, reason, message, phase } = event;
    EventRecord { time, warning: kind == EventKind::Warning, reason, message, phase }
}

/// The log, open for appending.
#[derive(Debug)]
pub struct EventLog {
    file: File,
    path: PathBuf,
}

impl EventLog {
    /// Opens the log of `state`. An incomplete last line, left by a crash, is terminated.
    ///
    /// # Errors
    /// [`StateError::Unusable`] when the file cannot be opened.
    pub fn open(state: &StateDir) -> Result<Self, StateError> {
        let path = state.events();
        let unusable = StateError::unusable(&path);
        let open = || {
            let mut file = OpenOptions::new().create(true).read(true).append(true).mode(PRIVATE_FILE).open(&path)?;
            let mut last = [b'\n'];
            if file.seek(SeekFrom::End(0))? > 0 {
                file.seek(SeekFrom::End(-1))?;
                file.read_exact(&mut last)?;
            }
            if last != [b'\n'] {
                file.write_all(b"\n")?;
            }
            Ok(file)
        };
        let file = open().map_err(unusable)?;
        Ok(Self { file, path })
    }

    /// Appends one event.
    ///
    /// # Errors
    /// [`StateError::Unusable`] when the file cannot be written.
    pub fn append(&mut self, event: &EventRecord) -> Result<(), StateError> {
        let mut line = serde_json::to_vec(event).unwrap_or_default();
        line.push(b'\n');
        self.file.write_all(&line).map_err(StateError::unusable(&self.path))
    }
}

/// The events of `state`, oldest first; incomplete lines are skipped.
pub fn read(state: &StateDir) -> Vec<EventRecord> {
    let bytes = fs::read(state.events()).unwrap_or_default();
    bytes.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_costs_only_itself() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path());
        let event = |reason: &str| EventRecord {
            time: Timestamp::UNIX_EPOCH,
            warning: false,
            reason: reason.to_owned(),
            message: "ä\n\"".to_owned(),
            phase: None,
        };
        EventLog::open(&state).unwrap().append(&event("A")).unwrap();
        EventLog::open(&state).unwrap().append(&event("B")).unwrap();
        let bytes = fs::read(state.events()).unwrap();
        fs::write(state.events(), &bytes[..bytes.len() - 7]).unwrap();
        EventLog::open(&state).unwrap().append(&event("C")).unwrap();
        assert_eq!(read(&state), [event("A"), event("C")]);
    }
}
