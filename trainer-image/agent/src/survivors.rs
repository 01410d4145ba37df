//! Ends processes that outlived their agent, or left the process group of their rank.
//!
//! Each rank inherits a locked file. The lock is released when no descendant process of the rank is alive, regardless
//! of its process group and its parent.

use crate::processes::holders_of;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Signal, kill_process};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for which a lock may be held legitimately: by a process that is being started or reaped.
const PATIENCE: Duration = Duration::from_millis(100);

/// Opens the lock of a rank and takes it.
pub(crate) fn lock(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

fn is_free(path: &Path) -> io::Result<bool> {
    match lock(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
    }
}

/// The locks of all ranks in a launch's directory.
fn locks(launch_dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(launch_dir).into_iter().flatten().flatten();
    let is_lock = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("rank-") && name.ends_with(".lock"))
    };
    entries.map(|entry| entry.path()).filter(is_lock).collect()
}

/// Ends every process that an earlier agent left behind in an attempt's directory, and waits until it has exited.
/// Blocks for up to `wait`.
///
/// # Errors
/// A process is still alive after `wait`; the message names it.
pub fn end_survivors(work_dir: &Path, wait: Duration) -> io::Result<()> {
    let entries = std::fs::read_dir(work_dir).into_iter().flatten().flatten();
    let deadline = Instant::now() + wait;
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).try_for_each(|dir| end_in(&dir, deadline))
}

/// As [`end_survivors`], in one launch's directory.
pub(crate) fn end_in(launch_dir: &Path, deadline: Instant) -> io::Result<()> {
    for path in locks(launch_dir) {
        let kill_from = Instant::now() + PATIENCE;
        while !is_free(&path)? {
            let now = Instant::now();
            if now >= kill_from {
                let holders = holders_of(&path);
                if now >= deadline {
                    let pids: Vec<_> = holders.iter().map(|pid| pid.as_raw_nonzero().to_string()).collect();
                    return Err(io::Error::other(format!(
                        "{}: a rank of an earlier run is still alive (process {}): end it and run again",
                        path.display(),
                        pids.join(", "),
                    )));
                }
                for pid in holders {
                    tracing::warn!(pid = pid.as_raw_nonzero(), lock = %path.display(), "ending a process that outlived its rank");
                    // It may have exited by now: then the lock is free.
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}
