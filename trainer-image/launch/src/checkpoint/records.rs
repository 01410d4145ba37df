//! The records of a job in its storage ([`pawl_contract::record`]).

use super::storage::{Fetched, Storage, StorageError};
use pawl_contract::record::{ATTEMPTS, EXTENSION, FOLDER, MAX_RECORD, Record, STATUS, Stored, surplus};

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
        self.storage.put(&format!("{FOLDER}/{STATUS}"), text)
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
            file.trains = record.is_some_and(|record| record.begun.trains());
        }
        surplus(stored).iter().try_for_each(|attempt| self.storage.delete(&key(attempt)))
    }
}

fn key(attempt: &str) -> String {
    format!("{FOLDER}/{ATTEMPTS}/{attempt}.{EXTENSION}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::record::MAX_RECORDS;

    #[test]
    fn what_is_written_is_read_and_the_oldest_leave_when_there_is_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().to_string_lossy()).unwrap();
        assert_eq!(records.read("toy-1").unwrap(), None);
        records.make_room("toy-1").unwrap();
        records.write_status(b"{}".to_vec()).unwrap();
        assert_eq!(std::fs::read(dir.path().join(".pawl/records/status.json")).unwrap(), b"{}");
        for name in ["toy-2", "toy-10"] {
            records.write(name, b"x\n".to_vec()).unwrap();
        }
        assert_eq!(records.read("toy-2").unwrap().unwrap(), b"x\n");
        // A file with holes takes no space.
        let file = dir.path().join(".pawl/records/attempts/toy-10.jsonl");
        std::fs::File::options().write(true).open(&file).unwrap().set_len(MAX_RECORDS).unwrap();
        records.make_room("toy-11").unwrap();
        let left = records.storage.sizes(".pawl/records/attempts").unwrap();
        assert!(left.is_empty(), "the older one is deleted first, and was not enough: {left:?}");
    }
}
