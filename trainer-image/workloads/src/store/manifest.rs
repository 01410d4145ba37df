//! Metadata files of a cache: the manifest, the journal of an incomplete cache, and the stamps of verified files.

use super::StoreError;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

const MANIFEST: &str = "manifest.json";
const JOURNAL: &str = "unfinished.jsonl";
const STAMPS: &str = "verified.json";

/// SHA-256 in hexadecimal.
pub fn hash(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes).as_slice())
}

/// Bytes in hexadecimal.
pub fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Replaces `path` atomically: readers see the old bytes or the new ones, also with concurrent writers.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    pawl_durable::write(path, bytes).map_err(|error| StoreError::io(path, "cannot write", error))
}

/// Size and hash of one file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub bytes: u64,
    pub sha256: String,
}

impl Entry {
    /// Checks that the file at `path` has this size and hash; the error describes the difference.
    pub fn check(&self, path: &Path) -> Result<(), String> {
        let mut file = File::open(path).map_err(|e| format!("cannot be opened ({e})"))?;
        let length = file.metadata().map_err(|e| format!("cannot be read ({e})"))?.len();
        if length != self.bytes {
            return Err(format!("has {length} bytes instead of {}", self.bytes));
        }
        let (mut digest, mut buffer) = (Sha256::new(), vec![0; 1 << 18]);
        loop {
            match file.read(&mut buffer).map_err(|e| format!("cannot be read ({e})"))? {
                0 => break,
                read => digest.update(&buffer[..read]),
            }
        }
        if hex(digest.finalize().as_slice()) == self.sha256 { Ok(()) } else { Err("has another hash".to_owned()) }
    }
}

/// `manifest.json`: written last, so its presence means that everything it names is complete.
#[derive(Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub key: Value,
    pub summaries: Vec<Value>,
    pub shards: BTreeMap<String, Entry>,
}

impl Manifest {
    /// The manifest in `directory`; `None` when it is missing or corrupt, either of which means that nothing is
    /// complete.
    pub fn read(directory: &Path) -> Option<Self> {
        let path = directory.join(MANIFEST);
        let bytes = fs::read(&path).ok()?;
        serde_json::from_slice(&bytes)
            .inspect_err(|error| tracing::warn!(manifest = %path.display(), %error, "regenerating a corrupt manifest"))
            .ok()
    }

    pub fn write(&self, directory: &Path) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(self).expect("a manifest holds only strings and numbers");
        write_atomic(&directory.join(MANIFEST), &text)
    }
}

/// `unfinished.jsonl`: the shards generated so far. An interrupted generation resumes from it.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Mutex<Option<File>>,
}

impl Journal {
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        Ok(Self { path: directory.join(JOURNAL), file: Mutex::new(None) })
    }

    /// The entries; a truncated last line is ignored.
    pub fn entries(&self) -> BTreeMap<String, Entry> {
        let Ok(file) = File::open(&self.path) else { return BTreeMap::new() };
        BufReader::new(file)
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| serde_json::from_str::<(String, Entry)>(&line).ok())
            .collect()
    }

    pub fn append(&self, file: &str, entry: &Entry) -> Result<(), StoreError> {
        let mut slot = self.file.lock();
        let failed = |error| StoreError::io(&self.path, "cannot write", error);
        let out = match slot.take() {
            Some(open) => slot.insert(open),
            None => slot.insert(OpenOptions::new().create(true).append(true).open(&self.path).map_err(failed)?),
        };
        // The line break comes first, so that a truncated line of a killed process does not corrupt the next one.
        let line = serde_json::to_string(&(file, entry)).expect("a file name and its entry always serialize");
        out.write_all(format!("\n{line}").as_bytes()).map_err(failed)
    }

    /// Removes it: the manifest supersedes it.
    pub fn remove(self) -> Result<(), StoreError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::io(&self.path, "cannot remove", error))
            }
            _ => Ok(()),
        }
    }
}

/// `verified.json`: size, modification time and inode of files whose hash was verified, so that a cache of many
/// gigabytes is hashed once and not by every process that opens it. A file that was modified since is hashed again.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Stamps {
    files: BTreeMap<String, Stamp>,
    #[serde(skip)]
    changed: bool,
}

type Stamp = (u64, i128, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    #[cfg(unix)]
    let (time, inode) = {
        use std::os::unix::fs::MetadataExt;
        (i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()), metadata.ino())
    };
    #[cfg(not(unix))]
    let (time, inode) = {
        let since = metadata.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        (since.as_nanos() as i128, 0)
    };
    Some((metadata.len(), time, inode))
}

impl Stamps {
    pub fn read(directory: &Path) -> Self {
        fs::read(directory.join(STAMPS)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Whether `file` is unchanged since it was verified.
    pub fn holds(&self, directory: &Path, file: &str) -> bool {
        self.files.get(file).is_some_and(|known| stamp(&directory.join(file)).as_ref() == Some(known))
    }

    /// Records that `file` was verified just now.
    pub fn add(&mut self, directory: &Path, file: &str) {
        if let Some(now) = stamp(&directory.join(file)) {
            self.changed |= self.files.insert(file.to_owned(), now) != Some(now);
        }
    }

    pub fn write(&self, directory: &Path) -> Result<(), StoreError> {
        if !self.changed {
            return Ok(());
        }
        let text = serde_json::to_vec(self).expect("stamps are numbers");
        write_atomic(&directory.join(STAMPS), &text)
    }
}
