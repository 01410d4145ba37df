//! Errors of a state directory, each with its remedy.

use std::io;
use std::path::{Path, PathBuf};

/// Error of a state directory. Existing files are never overwritten after an error.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file or directory cannot be read, created or written.
    #[error("{}: {source}: {}", path.display(), remedy(source))]
    Unusable {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process runs this job.
    #[error(
        "{}: in use by {holder}: wait until it ends, stop it, or choose another directory with --state DIR",
        path.display()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that holds it.
        holder: String,
    },
    /// A file is not in the format that Pawl writes.
    #[error(
        "{}: corrupt: {problem}: restore it from a backup, or delete {} to restart the job from scratch \
         (the file was left unchanged)",
        path.display(), remove.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The parse error.
        problem: String,
        /// The directory to delete for a restart from scratch.
        remove: PathBuf,
    },
    /// The document is of a later format.
    #[error("{}: written by a newer version of pawl (format {found}, supported is {known}): use that version", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest supported format.
        known: u32,
    },
    /// The directory belongs to another job.
    #[error(
        "{}: contains the state of job \"{found}\", not of \"{wanted}\": choose another directory with --state DIR",
        path.display()
    )]
    OtherJob {
        /// The status document.
        path: PathBuf,
        /// The job in the document.
        found: String,
        /// The job of the manifest.
        wanted: String,
    },
    /// There are attempts, but no status document.
    #[error(
        "{}: missing, but {} contains attempts: restore it from a backup, or delete {} to restart the job from scratch",
        path.display(), attempts.display(), remove.display()
    )]
    Missing {
        /// The status document.
        path: PathBuf,
        /// The directory of the attempts.
        attempts: PathBuf,
        /// The directory to delete for a restart from scratch.
        remove: PathBuf,
    },
    /// No job was run here.
    #[error("{}: no such file: no job was run in this directory", path.display())]
    Absent {
        /// The status document.
        path: PathBuf,
    },
}

impl StateError {
    /// Adds the path to an I/O error.
    pub fn unusable(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |source| Self::Unusable { path: path.to_owned(), source }
    }
}

/// The remedy for an I/O error in a state directory.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "make it writable, or choose another directory with --state DIR"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space and repeat the command: all finished work is saved"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "a file has the name of a directory: move it, or choose another directory with --state DIR"
        }
        _ => "check the disk, or choose another directory with --state DIR",
    }
}
