//! One `pawl run` per state directory.

use super::{PRIVATE_FILE, StateError};
use jiff::Timestamp;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// How often a lock is tried again, and after which pause.
const LOOKS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// The lock on a state directory, released on drop. The kernel releases it when the process ends for any reason.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Acquires the lock file at `path`.
///
/// # Errors
/// [`StateError::Locked`], which identifies the holder, or [`StateError::Unusable`].
pub(super) fn take(path: &Path) -> Result<Lock, StateError> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(PRIVATE_FILE)
        .open(path)
        .map_err(StateError::unusable(path))?;
    match patiently(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let readable =
                Read::by_ref(&mut file).take(256).read_to_string(&mut holder).is_ok() && !holder.trim().is_empty();
            let holder = if readable { holder.trim().to_owned() } else { "another pawl".to_owned() };
            return Err(StateError::Locked { path: path.to_owned(), holder });
        }
        Err(TryLockError::Error(source)) => return Err(StateError::Unusable { path: path.to_owned(), source }),
    }
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    file.set_len(0)
        .and_then(|()| writeln!(file, "pawl run, process {}, since {now}", std::process::id()))
        .map_err(StateError::unusable(path))?;
    Ok(Lock { _file: file })
}

/// Locks the file, for which a process that looks whether it is locked may hold it for a moment ([`is_free`]).
fn patiently(file: &File) -> Result<(), TryLockError> {
    for _ in 0..LOOKS {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => sleep(PAUSE),
            result => return result,
        }
    }
    file.try_lock()
}

/// Whether there is a lock file at `path` that no process has locked. What cannot be read is not known to be free.
pub(super) fn is_free(path: &Path) -> bool {
    // A lock that others may share: it keeps none of those who look from seeing that the file is free.
    File::open(path).is_ok_and(|file| file.try_lock_shared().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_fails_and_identifies_the_holder() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pawl.lock");
        let first = take(&path).unwrap();
        let message = take(&path).unwrap_err().to_string();
        assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
        drop(first);
        take(&path).unwrap();
    }

    #[test]
    fn a_lock_that_nobody_holds_is_seen_without_taking_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pawl.lock");
        assert!(!is_free(&path) && !path.exists(), "nothing has run there");
        let held = take(&path).unwrap();
        assert!(!is_free(&path));
        drop(held);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(is_free(&path) && is_free(&path));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}
