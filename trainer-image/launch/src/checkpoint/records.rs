//! The records of a job in its storage ([`pawl_contract::record`]).

use super::storage::{Fetched, Object, Storage, StorageError};
use pawl_contract::happened::Happened;
use pawl_contract::record::{
    ATTEMPTS, EXTENSION, FOLDER, MAX_RECORD, MAX_STATUS, Record, STATUS, Stored, Text, attempts_of, surplus,
};

/// Blocking access to the records of one job. Must not be used on a thread that runs asynchronous tasks.
#[derive(Debug)]
pub struct Records {
    storage: Storage,
}

impl Records {
    /// Opens the storage of the job, URL or path.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn open(url: &str) -> Result<Self, StorageError> {
        Ok(Self { storage: Storage::open(url)? })
    }

    /// Replaces the manifest and the status.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn write_status(&self, text: Vec<u8>) -> Result<(), StorageError> {
        self.storage.put(&status(), text)
    }

    /// As [`Self::write_status`], unless what is there is of a later attempt. Attempts may run side by side, and an
    /// agent that starts late has a status that does not know of all of them.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn write_newer_status(&self, text: Vec<u8>) -> Result<(), StorageError> {
        match self.storage.fetch(&status(), MAX_STATUS)? {
            Some(Fetched::Bytes(there)) if attempts_of(&there) > attempts_of(&text) => Ok(()),
            Some(Fetched::Bytes(_) | Fetched::Larger(_)) | None => self.write_status(text),
        }
    }

    /// The record of an attempt; `None` when there is none, or one that is too large to be one.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn read(&self, attempt: &str) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(match self.storage.fetch(&key(attempt), MAX_RECORD as u64)? {
            Some(Fetched::Bytes(text)) => Some(text),
            Some(Fetched::Larger(_)) | None => None,
        })
    }

    /// Replaces the record of an attempt.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn write(&self, attempt: &str, text: Vec<u8>) -> Result<(), StorageError> {
        self.storage.put(&key(attempt), text)
    }

    /// Adds events, oldest first, to the record of an attempt that runs no more, if there is one.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn add_events(&self, attempt: &str, events: &[Happened]) -> Result<(), StorageError> {
        let text = self.read(attempt)?.and_then(|there| Text::with_events(there, events));
        text.map_or(Ok(()), |text| self.write(attempt, text.as_bytes().to_vec()))
    }

    /// Deletes records where there is no room for that of `attempt`.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn make_room(&self, attempt: &str) -> Result<(), StorageError> {
        let sizes = self.storage.sizes(&format!("{FOLDER}/{ATTEMPTS}"))?;
        let named = sizes.iter().filter_map(|(file, size)| {
            let name = file.strip_suffix(EXTENSION)?.strip_suffix('.')?;
            (name != attempt).then_some((name, *size))
        });
        let stored = named.map(|(name, size)| Stored { attempt: name.to_owned(), size, trains: false });
        let mut stored: Vec<Stored> = stored.collect();
        if surplus(stored.clone()).is_empty() {
            return Ok(());
        }
        for file in &mut stored {
            let record = self.read(&file.attempt)?.and_then(|text| Record::read(&text).ok());
            // What cannot be read, as of a later version, may be the training.
            file.trains = record.is_none_or(|record| record.trains());
        }
        surplus(stored).iter().try_for_each(|attempt| self.storage.delete(&key(attempt)))
    }
}

/// A file of the records of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFile {
    /// Folder of the job in the storage; empty when the storage is that of the job.
    pub job: String,
    /// Path in the folder of the job.
    pub path: String,
    /// Changes when the file does.
    pub version: String,
}

/// Blocking access to the records of all jobs in a storage that they share. Must not be used on a thread that runs
/// asynchronous tasks.
#[derive(Debug)]
pub struct AllRecords {
    storage: Storage,
}

impl AllRecords {
    /// Opens the storage, URL or path.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn open(url: &str) -> Result<Self, StorageError> {
        Ok(Self { storage: Storage::open(url)? })
    }

    /// The files of all records, in no order.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn list(&self) -> Result<Vec<RecordFile>, StorageError> {
        let recorded = |object: Object| {
            let (job, path) = recorded(&object.key)?;
            Some(RecordFile { job: job.to_owned(), path: path.to_owned(), version: object.version })
        };
        Ok(self.storage.all()?.into_iter().filter_map(recorded).collect())
    }

    /// What is in a file; `None` when it was deleted, is too large to be a record, or is behind a link that leads out
    /// of the storage.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn read(&self, file: &RecordFile) -> Result<Option<Vec<u8>>, StorageError> {
        let key = if file.job.is_empty() { file.path.clone() } else { format!("{}/{}", file.job, file.path) };
        if !self.storage.holds(&key)? {
            return Ok(None);
        }
        Ok(match self.storage.fetch(&key, MAX_RECORD as u64)? {
            Some(Fetched::Bytes(text)) => Some(text),
            Some(Fetched::Larger(_)) | None => None,
        })
    }
}

/// The folder of the job, and the path there, if an object with this key is a part of its records.
fn recorded(key: &str) -> Option<(&str, &str)> {
    let at = if key.starts_with(FOLDER) { 0 } else { key.find(&format!("/{FOLDER}/"))? + 1 };
    let path = &key[at..];
    let file = path.strip_prefix(FOLDER)?.strip_prefix('/')?;
    let attempt = file.strip_prefix(ATTEMPTS).and_then(|name| name.strip_prefix('/')?.strip_suffix(EXTENSION));
    let is_record = file == STATUS || attempt.is_some_and(|name| !name.contains('/'));
    is_record.then_some((key[..at].trim_end_matches('/'), path))
}

fn status() -> String {
    format!("{FOLDER}/{STATUS}")
}

fn key(attempt: &str) -> String {
    format!("{FOLDER}/{ATTEMPTS}/{attempt}.{EXTENSION}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::record::{Begun, Entry, MAX_RECORDS};

    #[test]
    fn what_is_written_is_read_and_the_oldest_leave_when_there_is_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().to_string_lossy()).unwrap();
        assert_eq!(records.read("toy-1").unwrap(), None);
        records.make_room("toy-1").unwrap();
        records.write_status(b"{}".to_vec()).unwrap();
        assert_eq!(std::fs::read(dir.path().join(".pawl/_records/status.json")).unwrap(), b"{}");
        for name in ["toy-2", "toy-10"] {
            records.write(name, b"x\n".to_vec()).unwrap();
        }
        assert_eq!(records.read("toy-2").unwrap().unwrap(), b"x\n");
        // A file with holes takes no space.
        let file = dir.path().join(".pawl/_records/attempts/toy-10.jsonl");
        std::fs::File::options().write(true).open(&file).unwrap().set_len(MAX_RECORDS).unwrap();
        records.make_room("toy-11").unwrap();
        let left = records.storage.sizes(".pawl/_records/attempts").unwrap();
        assert!(left.is_empty(), "the older one is deleted first, and was not enough: {left:?}");
    }

    #[test]
    fn events_go_to_the_record_of_an_attempt_if_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().to_string_lossy()).unwrap();
        let (reason, message) = ("Complete".to_owned(), String::new());
        let events = [Happened { time: 1, warning: false, reason, message, phase: None }];
        records.add_events("toy-1", &events).unwrap();
        assert_eq!(records.read("toy-1").unwrap(), None);
        let mut text = Text::default();
        text.add(&Entry::Attempt(Box::new(Begun::new("toy", "toy-1"))));
        records.write("toy-1", text.as_bytes().to_vec()).unwrap();
        records.add_events("toy-1", &events).unwrap();
        assert_eq!(Record::read(&records.read("toy-1").unwrap().unwrap()).unwrap().happened, events);
    }

    #[test]
    fn an_agent_that_starts_late_does_not_replace_the_status_of_a_later_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().to_string_lossy()).unwrap();
        let file = dir.path().join(FOLDER).join(STATUS);
        let of = |attempts: u64| format!("{{\"status\":{{\"attempts\":{attempts}}}}}").into_bytes();
        for (attempts, left) in [(4, 4), (5, 5), (4, 5), (6, 6)] {
            records.write_newer_status(of(attempts)).unwrap();
            assert_eq!(std::fs::read(&file).unwrap(), of(left));
        }
        std::fs::write(&file, "torn").unwrap();
        records.write_newer_status(of(1)).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), of(1));
    }

    #[test]
    fn a_record_that_cannot_be_read_stays_longer_than_those_that_measured() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().to_string_lossy()).unwrap();
        records.write("toy-1", b"of a later version\n".to_vec()).unwrap();
        for number in 2..=17 {
            let (name, mut text) = (format!("toy-{number}"), Text::default());
            text.add(&Entry::Attempt(Box::new(Begun::new("toy", &name))));
            records.write(&name, text.as_bytes().to_vec()).unwrap();
            // A file with holes takes no space.
            let file = dir.path().join(key(&name));
            std::fs::File::options().write(true).open(&file).unwrap().set_len(MAX_RECORD as u64).unwrap();
        }
        records.make_room("toy-18").unwrap();
        let left = records.storage.sizes(&format!("{FOLDER}/{ATTEMPTS}")).unwrap();
        let names: Vec<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"toy-1.jsonl") && !names.contains(&"toy-6.jsonl"), "{names:?}");
        assert_eq!(names.len(), 12, "there is room for several: {names:?}");
    }

    #[test]
    fn records_of_all_jobs_are_found_at_any_depth_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(path), text).unwrap();
        };
        write("team/toy/u/.pawl/_records/status.json", "{}");
        write("team/toy/u/.pawl/_records/attempts/toy-1.jsonl", "x");
        write("team/toy/u/.pawl/_records/attempts/toy-1.jsonl.new", "x");
        write("team/toy/u/7-step-70/model.bin", "x");
        write(".pawl/_records/status.json", "own");
        let all = AllRecords::open(&dir.path().to_string_lossy()).unwrap();
        let mut files = all.list().unwrap();
        files.sort_by(|a, b| (&a.job, &a.path).cmp(&(&b.job, &b.path)));
        let found: Vec<(&str, &str)> = files.iter().map(|file| (file.job.as_str(), file.path.as_str())).collect();
        let (status, attempt) = (".pawl/_records/status.json", ".pawl/_records/attempts/toy-1.jsonl");
        assert_eq!(found, [("", status), ("team/toy/u", attempt), ("team/toy/u", status)]);
        assert_eq!(all.read(&files[0]).unwrap().unwrap(), b"own");
        assert_eq!(all.read(&files[1]).unwrap().unwrap(), b"x");
        write("team/toy/u/.pawl/_records/attempts/toy-1.jsonl", "longer");
        assert!(all.list().unwrap().iter().all(|file| *file != files[1]), "its version is another one");
    }

    #[test]
    fn links_out_of_the_storage_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let records = dir.path().join("storage/toy/.pawl/_records");
        std::fs::create_dir_all(&records).unwrap();
        std::fs::write(dir.path().join("secret"), "{}").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), records.join("status.json")).unwrap();
        let all = AllRecords::open(&dir.path().join("storage").to_string_lossy()).unwrap();
        for file in all.list().unwrap() {
            assert_eq!(all.read(&file).unwrap(), None);
        }
        let (job, path) = ("toy".to_owned(), status());
        assert_eq!(all.read(&RecordFile { job, path, version: String::new() }).unwrap(), None);
    }
}
