//! The files that say what a cache holds: the manifest, the journal of an unfinished one, and the stamps of verified files.

use super::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

const MANIFEST: &str = "manifest.json";
const JOURNAL: &str = "unfinished.jsonl";
const STAMPS: &str = "verified.json";

/// SHA-256 in hexadecimal.
pub fn hash(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes).as_slice())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes `path` so that a reader sees the old bytes or the new ones, never a part, whoever else writes it.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let temporary = path.with_extension(format!("tmp-{}", std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        StoreError::io(path, "cannot write", error)
    })
}

/// Size and hash of one file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub bytes: u64,
    pub sha256: String,
}

impl Entry {
    /// Whether the file at `path` is this one; if not, what is wrong with it.
    pub fn check(&self, path: &Path) -> Result<(), String> {
        let mut file = File::open(path).map_err(|e| format!("cannot be opened ({e})"))?;
        let length = file.metadata().map_err(|e| format!("cannot be read ({e})"))?.len();
        if length != self.bytes {
            return Err(format!("holds {length} bytes instead of {}", self.bytes));
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

/// `manifest.json`: written last, so its presence says that everything it names was complete.
#[derive(Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub key: Value,
    pub summaries: Vec<Value>,
    pub shards: BTreeMap<String, Entry>,
}

impl Manifest {
    /// The manifest in `directory`; `None` when there is none or it is damaged, which is the same: nothing is complete.
    pub fn read(directory: &Path) -> Option<Self> {
        let path = directory.join(MANIFEST);
        let bytes = fs::read(&path).ok()?;
        serde_json::from_slice(&bytes)
            .inspect_err(|error| tracing::warn!(manifest = %path.display(), %error, "making a damaged manifest again"))
            .ok()
    }

    pub fn write(&self, directory: &Path) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(self).expect("a manifest holds only strings and numbers");
        write_atomic(&directory.join(MANIFEST), &text)
    }
}

/// `unfinished.jsonl`: the shards that were made so far. A killed generation goes on from it.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Mutex<Option<File>>,
}

impl Journal {
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        Ok(Self { path: directory.join(JOURNAL), file: Mutex::new(None) })
    }

    /// What it says; a torn last line is left out.
    pub fn entries(&self) -> BTreeMap<String, Entry> {
        let Ok(file) = File::open(&self.path) else { return BTreeMap::new() };
        BufReader::new(file)
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| serde_json::from_str::<(String, Entry)>(&line).ok())
            .collect()
    }

    pub fn append(&self, file: &str, entry: &Entry) -> Result<(), StoreError> {
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |error| StoreError::io(&self.path, "cannot write", error);
        let out = match slot.take() {
            Some(open) => slot.insert(open),
            None => slot.insert(OpenOptions::new().create(true).append(true).open(&self.path).map_err(failed)?),
        };
        // The line break comes first, so that a torn line of a killed process spoils nothing but itself.
        let line = serde_json::to_string(&(file, entry)).expect("a file name and its entry always serialize");
        out.write_all(format!("\n{line}").as_bytes()).map_err(failed)
    }

    /// Forgets it: the manifest has taken over.
    pub fn remove(self) -> Result<(), StoreError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::io(&self.path, "cannot remove", error))
            }
            _ => Ok(()),
        }
    }
}

/// `verified.json`: size, time of change and inode of files whose hash was checked, so that a cache of many gigabytes is hashed
/// once and not by every process that opens it. A file that was written to since is hashed again.
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

    /// Notes that `file` was verified just now.
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
