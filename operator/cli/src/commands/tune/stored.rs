//! What an earlier `pawl tune` of the same script has found, so that it is continued: another observation would give
//! other numbers of steps, and the evidence would be about other launches.

use super::command::Tuned;
use pawl_local::state::{StateDir, StateError, write_atomic};
use pawl_local::tuned::{Part, file};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What makes two commands the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    version: String,
    script: String,
    given: Vec<String>,
    gpus: u32,
    here: PathBuf,
    /// The script's variables that are set, and the numbers of the baseline, which other files may have.
    variables: BTreeMap<String, String>,
    settings: BTreeMap<String, u32>,
}

impl Identity {
    /// That of a script with this source, and of the command line that starts it in a directory.
    pub fn of(source: &[u8], given: &[String], gpus: u32, here: &Path, tuned: &Tuned) -> Self {
        let script = Sha256::digest(source).iter().map(|byte| format!("{byte:02x}")).collect();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self {
            version,
            script,
            given: given.to_vec(),
            gpus,
            here: here.to_owned(),
            variables: tuned.variables.clone(),
            settings: tuned.settings.clone(),
        }
    }
}

/// What is kept beside the manifest, in [`file()`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Of which command.
    pub identity: Identity,
    /// The command of launches and of the user.
    pub parts: Vec<Part>,
}

impl Stored {
    /// What was kept of the same command.
    pub fn load(state: &StateDir, identity: &Identity) -> Option<Self> {
        let stored: Self = serde_json::from_slice(&std::fs::read(file(state)).ok()?).ok()?;
        (stored.identity == *identity).then_some(stored)
    }

    /// Keeps it.
    ///
    /// # Errors
    /// [`StateError`] when it cannot be written.
    pub fn save(&self, state: &StateDir) -> Result<(), StateError> {
        let text = serde_json::to_vec_pretty(self).expect("words and paths of UTF-8 can be written");
        write_atomic(&file(state), &text)
    }
}
