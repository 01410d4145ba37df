//! By what it is seen that the files of a job have changed.

use jiff::Timestamp;
use pawl_local::state::{StateDir, records};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identifies what a file contains: files of a job are replaced, which gives them another inode, or grow. Whether it
/// can be read changes its ctime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stamp {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
    changed: (i64, i64),
    bytes: u64,
}

impl Stamp {
    /// Of the file at `path`; `None` when it cannot be seen.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            inode: found.ino(),
            seconds: found.mtime(),
            nanoseconds: found.mtime_nsec(),
            changed: (found.ctime(), found.ctime_nsec()),
            bytes: found.len(),
        })
    }
}

/// Identifies what the files contain of which the status of a job is made, and whether a process works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stamps {
    status: Stamp,
    /// Of the newest attempt in the records of a storage, which complete the status.
    record: Option<Stamp>,
    is_idle: bool,
}

impl Stamps {
    /// Of the job in `state`; `None` when its status cannot be seen.
    pub(super) fn of(state: &StateDir) -> Option<Self> {
        let status = Stamp::of(&state.status())?;
        let files = state.storage().and_then(|_| records::files(state).ok()).unwrap_or_default();
        let stamps = files.iter().filter_map(|path| Stamp::of(path));
        let record = stamps.max_by_key(|stamp| (stamp.seconds, stamp.nanoseconds, stamp.inode));
        Some(Self { status, record, is_idle: state.is_idle() })
    }

    /// When the job was written last.
    pub(super) fn changed(&self) -> Option<Timestamp> {
        let newest = self.record.iter().map(|stamp| stamp.seconds).chain([self.status.seconds]).max()?;
        Timestamp::from_second(newest).ok()
    }
}
