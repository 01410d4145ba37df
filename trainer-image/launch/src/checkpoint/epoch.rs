//! Fencing: of all gangs that ever wrote to a storage, only the newest may.
//!
//! A node that is cut off from the cluster is taken for dead, and a new gang starts, while the old gang may still run.
//! Each gang claims an [`Epoch`] before it reads a checkpoint, by creating an object that must not exist yet. A gang
//! that finds a later epoch than its own writes and deletes nothing more. Between that check and the end of a write the
//! old gang may still be stopped and resumed; such a checkpoint bears its old epoch and is older than every checkpoint
//! of the new gang.

use super::storage::{Storage, StorageError};
use std::fmt;
use std::str::FromStr;

/// Folder of the claims.
const FOLDER: &str = "epochs";

/// The right of one gang to write. Ordered: a later epoch supersedes an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Epoch {
    /// Number of the attempt.
    attempt: u64,
    /// Number of the gang within the attempt, from 1: an attempt whose pods were lost may be created again.
    claim: u64,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.attempt, self.claim)
    }
}

impl FromStr for Epoch {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (attempt, claim) = text.split_once('.').ok_or(())?;
        Ok(Self { attempt: attempt.parse().map_err(drop)?, claim: claim.parse().map_err(drop)? })
    }
}

impl Epoch {
    /// The latest epoch that was claimed.
    pub fn latest(storage: &Storage) -> Result<Option<Self>, StorageError> {
        Ok(storage.list(Some(FOLDER))?.iter().filter_map(|name| name.parse().ok()).max())
    }

    /// Claims the next epoch for a gang of `attempt`; the latest one as the error when it belongs to a later attempt.
    pub fn claim(storage: &Storage, attempt: u64) -> Result<Result<Self, Self>, StorageError> {
        loop {
            let latest = Self::latest(storage)?.unwrap_or_default();
            if latest.attempt > attempt {
                return Ok(Err(latest));
            }
            let claim = if latest.attempt == attempt { latest.claim.checked_add(1) } else { Some(1) };
            let Some(claim) = claim else {
                let key = format!("{FOLDER}/{latest}");
                return Err(storage.wrong(
                    "claim the epoch after",
                    &key,
                    "no number is larger",
                    ": no gang wrote it; delete it",
                ));
            };
            let epoch = Self { attempt, claim };
            if storage.create(&format!("{FOLDER}/{epoch}"), Vec::new())? {
                epoch.forget_earlier(storage);
                return Ok(Ok(epoch));
            }
        }
    }

    /// Deletes the claims before this one, which no gang needs: only the latest one counts. Otherwise there would be
    /// one for each restart that the job ever had. A failure leaves them there.
    fn forget_earlier(&self, storage: &Storage) {
        let names = storage.list(Some(FOLDER)).unwrap_or_default();
        for name in names.iter().filter(|name| name.parse::<Self>().is_ok_and(|earlier| earlier < *self)) {
            if let Err(error) = storage.delete(&format!("{FOLDER}/{name}")) {
                tracing::warn!("cannot remove an earlier claim: {error}");
            }
        }
    }
}
