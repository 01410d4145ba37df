//! One process at a time makes a cache; the others wait for it.

use super::{OnProgress, StoreError};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

/// How often a waiting process looks again.
const POLL: Duration = Duration::from_millis(100);

/// Holds the lock file at `path` until dropped; the system releases it when the process dies.
pub fn acquire(path: &Path, progress: OnProgress<'_>) -> Result<File, StoreError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|error| StoreError::io(path, "cannot open the lock", error))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                progress("waiting for another process that makes the data", 0, 0);
                std::thread::sleep(POLL);
            }
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
                // A file system without locks: renames keep every file whole, at worst the work is done twice.
                tracing::warn!(lock = %path.display(), "the file system has no locks");
                return Ok(file);
            }
            Err(TryLockError::Error(error)) => return Err(StoreError::io(path, "cannot lock", error)),
        }
    }
}
