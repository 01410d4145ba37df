//! Lock file: one process at a time generates a cache; the others wait.

use super::{OnProgress, StoreError};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

/// Poll interval of a waiting process.
const POLL: Duration = Duration::from_millis(100);

/// Holds the lock file at `path` until dropped; the system releases it when the process dies. The progress of waiting
/// is the number of bytes in `directory`, in which the process that holds the lock generates.
pub fn acquire(path: &Path, directory: &Path, progress: OnProgress<'_>) -> Result<File, StoreError> {
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
                progress("waiting for another process that generates the data", bytes_in(directory), 0);
                std::thread::sleep(POLL);
            }
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
                // A file system without locks: renames keep every file complete; at worst, the work is done twice.
                tracing::warn!(lock = %path.display(), "the file system does not support locks");
                return Ok(file);
            }
            Err(TryLockError::Error(error)) => return Err(StoreError::io(path, "cannot lock", error)),
        }
    }
}

/// Bytes of the files in `directory`; files that vanish meanwhile do not count.
fn bytes_in(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}
