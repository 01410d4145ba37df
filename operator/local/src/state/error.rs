//! What can go wrong with a state directory, each with its remedy.

use std::io;
use std::path::{Path, PathBuf};

/// Trouble with a state directory. Nothing that was on disk is ever overwritten because of it.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file or directory cannot be read, made or written.
    #[error("{}: {source}: {}", path.display(), remedy(source))]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process runs this job.
    #[error(
        "{}: in use by {holder}: wait for it, end it, or give this run another directory with --state DIR",
        path.display()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// Who holds it.
        holder: String,
    },
    /// A file does not hold what Pawl wrote.
    #[error(
        "{}: not readable as Pawl's own: {problem}: restore it from a copy, or delete {} to start the job anew \
         (it was left as it is)",
        path.display(), remove.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What to delete to begin anew.
        remove: PathBuf,
    },
    /// The document is of a later format.
    #[error("{}: written by a newer pawl (format {found}, this one knows {known}): use that version", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that this version knows.
        known: u32,
    },
    /// The directory belongs to another job.
    #[error(
        "{}: holds the state of job {found:?}, not of {wanted:?}: give this job another directory with --state DIR",
        path.display()
    )]
    OtherJob {
        /// The file that says so.
        path: PathBuf,
        /// The job it holds.
        found: String,
        /// The job that was to run.
        wanted: String,
    },
    /// There are attempts but no status document.
    #[error(
        "{}: missing, though {} holds attempts: restore it from a copy, or delete {} to start the job anew",
        path.display(), attempts.display(), remove.display()
    )]
    Missing {
        /// The status document.
        path: PathBuf,
        /// The attempts that it should know of.
        attempts: PathBuf,
        /// What to delete to begin anew.
        remove: PathBuf,
    },
    /// No job was run here.
    #[error(
        "{}: no such file: run a job first, or name its state directory with --state DIR", path.display()
    )]
    Absent {
        /// The status document.
        path: PathBuf,
    },
}

impl StateError {
    /// Wraps an I/O error with the path it is about.
    pub fn unusable(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |source| Self::Unusable { path: path.to_owned(), source }
    }
}

/// What to do about an I/O error in a state directory.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "make it writable for you, or choose another directory with --state DIR"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space and run again: nothing that was finished is lost"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "a file is in the way: move it, or choose another directory with --state DIR"
        }
        _ => "check the disk, or choose another directory with --state DIR",
    }
}
