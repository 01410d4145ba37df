//! The state directory: everything that `pawl run` knows, on disk.
//!
//! ```text
//! .pawl/<job>/
//!   pawl.lock        held while a `pawl run` uses the directory; its text says who
//!   status.json      the manifest as it runs and the status: the one truth, replaced atomically
//!   events.jsonl     what happened, one JSON object a line
//!   attempts/<name>/ plan and state of each attempt, and of each launch its plan, report, progress and logs
//!   checkpoints/     unless the manifest says otherwise
//!   data/            what workloads generated
//!   report.html      written at each verdict and when a run ends
//! ```

mod atomic;
pub mod attempts;
pub mod document;
mod error;
pub mod events;
mod lock;

pub use atomic::write_atomic;
pub use error::StateError;
pub use lock::Lock;

use std::fs;
use std::path::{Path, PathBuf};

/// A state directory. Reading it needs no lock; running a job does: [`StateDir::lock`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    root: PathBuf,
}

impl StateDir {
    /// The state directory at `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the state of `job` lies unless a person says otherwise: `.pawl/<job>` under the current directory.
    pub fn default_for(job: &str) -> Self {
        Self::new(Path::new(".pawl").join(job))
    }

    /// Makes the directory and what lies in it, proves that it can be written, and makes its path absolute.
    pub fn prepare(&self) -> Result<Self, StateError> {
        fs::create_dir_all(&self.root).map_err(StateError::unusable(&self.root))?;
        let root = fs::canonicalize(&self.root).map_err(StateError::unusable(&self.root))?;
        let state = Self { root };
        for directory in [state.attempts(), state.checkpoints(), state.data()] {
            fs::create_dir_all(&directory).map_err(StateError::unusable(&directory))?;
        }
        let probe = state.root.join(".probe");
        write_atomic(&probe, &[b' '; 4096])?;
        fs::remove_file(&probe).map_err(StateError::unusable(&probe))?;
        Ok(state)
    }

    /// Takes the lock for this process, or says who has it.
    pub fn lock(&self) -> Result<Lock, StateError> {
        lock::take(&self.root.join("pawl.lock"))
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The status document.
    pub fn status(&self) -> PathBuf {
        self.root.join("status.json")
    }

    /// The event log.
    pub fn events(&self) -> PathBuf {
        self.root.join("events.jsonl")
    }

    /// The directory of all attempts.
    pub fn attempts(&self) -> PathBuf {
        self.root.join("attempts")
    }

    /// Checkpoints, unless the manifest names another storage.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Data that workloads generate.
    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// The report about the verdicts so far.
    pub fn report(&self) -> PathBuf {
        self.root.join("report.html")
    }
}
