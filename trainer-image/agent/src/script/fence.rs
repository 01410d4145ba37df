//! Fencing of scripts that write their own checkpoints: of all gangs of a job that ever trained, only the newest may.
//!
//! A node that is cut off from the cluster is taken for dead, and a new gang starts, while the old one may still run. A
//! script knows nothing of it, so the agent of rank 0 does what the built-in trainer does itself (`epoch.rs` of the
//! crate `launch`): it claims an epoch in the storage before it looks for a checkpoint, by creating a file that must
//! not exist yet, and ends the ranks when it finds a later epoch. The files are in a hidden directory: scripts look for
//! checkpoints beside it. What the script wrote after that epoch was claimed is moved to the quarantine, so that no
//! later attempt resumes from it; what it had written before is left where it is, because the later gang may resume it.
//! Both are decided by the storage's own clock.

use super::checkpoints::{quarantine, trailing_number};
use super::followed::Followed;
use super::{EPOCHS, is_aside};
use pawl_contract::attempt::AttemptName;
use pawl_contract::exit::Outcome;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

/// Directory of the claims of scripts.
const FOLDER: &str = ".epochs";
/// Interval of looking for a later epoch.
const PERIOD: Duration = Duration::from_secs(1);

/// The right of one gang to write. Ordered: a later epoch supersedes an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Epoch {
    attempt: u64,
    /// Number of the gang within the attempt, from 1.
    claim: u64,
}

impl FromStr for Epoch {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (attempt, claim) = text.split_once('.').ok_or(())?;
        Ok(Self { attempt: attempt.parse().map_err(drop)?, claim: claim.parse().map_err(drop)? })
    }
}

impl std::fmt::Display for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.attempt, self.claim)
    }
}

/// The epoch of this gang, which is watched until it is dropped.
#[derive(Debug)]
pub(crate) struct Fence {
    storage: PathBuf,
    epoch: Epoch,
    /// Where the script has its checkpoints.
    place: PathBuf,
    followed: Followed,
    superseded: Arc<OnceLock<Superseded>>,
    /// Ends the thread that watches.
    _end: Sender<()>,
}

/// What was known when a later epoch was found.
#[derive(Debug)]
struct Superseded {
    /// When the later epoch was claimed, by the clock of the storage.
    claimed: Option<SystemTime>,
    /// What the storage contained when this gang was known to be the newest for the last time.
    before: BTreeSet<OsString>,
    /// The step of the script then.
    step: u64,
}

impl Fence {
    /// Ends `followed`, the script of rank 0, when a later gang than that of `epoch` claims the storage. The script has
    /// its checkpoints in `place`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn watch(storage: &Path, place: &Path, epoch: Epoch, of: (&str, &Followed)) -> io::Result<Self> {
        let (attempt, followed) = of;
        let superseded = Arc::new(OnceLock::new());
        let (end, ended) = channel();
        let watch = Watch {
            storage: storage.to_owned(),
            place: place.to_owned(),
            attempt: attempt.to_owned(),
            epoch,
            followed: followed.clone(),
            superseded: Arc::clone(&superseded),
        };
        // A thread of its own: a mount whose server is gone never answers.
        std::thread::Builder::new().name("fence".to_owned()).spawn(move || watch.run(&ended))?;
        let (storage, place) = (storage.to_owned(), place.to_owned());
        Ok(Self { storage, epoch, place, followed: followed.clone(), superseded, _end: end })
    }

    /// After the ranks have ended: sets aside what they wrote after a later gang had claimed the storage. That gang
    /// writes too: an entry is theirs if it appeared since then, is of a step that they made since then, and is no
    /// older than the claim. `false` when there was none.
    pub(crate) fn set_aside(&self) -> bool {
        let Some(Superseded { claimed, before, step }) = self.superseded.get() else { return false };
        let last = self.followed.progress().map_or(*step, |progress| progress.step) + 1;
        for path in std::fs::read_dir(&self.place).into_iter().flatten().filter_map(Result::ok).map(|it| it.path()) {
            let theirs = trailing_number(&path).is_some_and(|number| *step < number && number <= last);
            let known = path.file_name().is_none_or(|name| before.contains(name));
            let older = claimed.is_some_and(|claimed| modified(&path).is_some_and(|changed| changed <= claimed));
            if known || !theirs || is_aside(&path) || older {
                continue;
            }
            match quarantine(&self.place, &path) {
                Ok(_) => tracing::warn!(checkpoint = %path.display(), "of a superseded gang: set aside"),
                Err(error) => tracing::warn!(checkpoint = %path.display(), %error, "cannot set aside"),
            }
        }
        true
    }

    /// Whether this gang is known to be the newest.
    pub(crate) fn is_newest(&self) -> bool {
        latest(&self.storage).is_ok_and(|found| found.is_none_or(|found| found <= self.epoch))
    }
}

struct Watch {
    storage: PathBuf,
    place: PathBuf,
    attempt: String,
    epoch: Epoch,
    followed: Followed,
    superseded: Arc<OnceLock<Superseded>>,
}

impl Watch {
    /// Looks for a later epoch until `ended`. A storage that cannot be read now may be read later.
    fn run(self, ended: &std::sync::mpsc::Receiver<()>) {
        let mut before = entries(&self.place);
        let mut step = 0;
        while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            let Ok(found) = latest(&self.storage) else { continue };
            if let Some(by) = found.filter(|found| *found > self.epoch) {
                // Nothing else sets it.
                let claimed = modified(&self.storage.join(FOLDER).join(by.to_string()))
                    .or_else(|| modified(&self.storage.join(EPOCHS).join(by.to_string())));
                let _ = self.superseded.set(Superseded { claimed, before, step });
                self.followed.fail(Outcome::Stopped, message(&self.attempt, by));
                return;
            }
            step = self.followed.progress().map_or(step, |progress| progress.step);
            before = entries(&self.place);
        }
    }
}

fn message(attempt: &str, by: Epoch) -> String {
    format!(
        "this gang of attempt {attempt} was superseded: a later one ({by}) writes to the checkpoint storage; its ranks were ended"
    )
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|facts| facts.modified()).ok()
}

/// Names of the entries of a directory.
pub(super) fn entries(place: &Path) -> BTreeSet<OsString> {
    std::fs::read_dir(place).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.file_name()).collect()
}

/// The epochs that were claimed in a folder.
fn claimed(folder: &Path) -> io::Result<Vec<Epoch>> {
    match std::fs::read_dir(folder) {
        Ok(entries) => {
            let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
            names.filter_map(|name| name.map(|name| name.to_str()?.parse().ok()).transpose()).collect()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The latest epoch that was claimed.
fn latest(storage: &Path) -> io::Result<Option<Epoch>> {
    let [scripts, trainers] = [FOLDER, EPOCHS].map(|folder| claimed(&storage.join(folder)));
    Ok(scripts?.into_iter().chain(trainers?).max())
}

/// Supersedes all earlier gangs in `storage`.
///
/// # Errors
/// The end of the launch: when a later attempt has claimed the storage, or it cannot be written.
pub(super) fn supersede(storage: &Path, attempt: &str) -> Result<Epoch, (Outcome, String)> {
    match claim(storage, AttemptName::number_of(attempt).into()) {
        Ok(Ok(epoch)) => Ok(epoch),
        Ok(Err(by)) => Err((Outcome::Stopped, message(attempt, by))),
        Err(error) => {
            let why = format!("the checkpoint storage {} cannot be claimed: {error}", storage.display());
            Err((Outcome::of_error(&error), why))
        }
    }
}

/// Claims the next epoch for a gang of `attempt`; the latest one as the error when it belongs to a later attempt.
fn claim(storage: &Path, attempt: u64) -> io::Result<Result<Epoch, Epoch>> {
    let folder = storage.join(FOLDER);
    std::fs::create_dir_all(&folder)?;
    loop {
        let latest = latest(storage)?.unwrap_or_default();
        if latest.attempt > attempt {
            return Ok(Err(latest));
        }
        let claim = if latest.attempt == attempt { latest.claim.saturating_add(1) } else { 1 };
        let epoch = Epoch { attempt, claim };
        match std::fs::File::create_new(folder.join(epoch.to_string())) {
            Ok(file) => {
                file.sync_all()?;
                std::fs::File::open(&folder)?.sync_all()?;
                // Only the latest one counts: otherwise there would be one for each restart of the job.
                for earlier in claimed(&folder)?.into_iter().filter(|earlier| *earlier < epoch) {
                    let _ = std::fs::remove_file(folder.join(earlier.to_string()));
                }
                return Ok(Ok(epoch));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && claim < u64::MAX => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_claim_counts_and_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let names = || entries(&dir.path().join(FOLDER)).into_iter().collect::<Vec<_>>();
        let epoch = |attempt, claim| Epoch { attempt, claim };
        assert_eq!(claim(dir.path(), 1).unwrap(), Ok(epoch(1, 1)));
        assert_eq!(claim(dir.path(), 1).unwrap(), Ok(epoch(1, 2)));
        assert_eq!(claim(dir.path(), 3).unwrap(), Ok(epoch(3, 1)));
        assert_eq!(claim(dir.path(), 2).unwrap(), Err(epoch(3, 1)));
        assert_eq!(names(), ["3.1"]);
        // The job has run a trainer that claims by itself.
        std::fs::create_dir(dir.path().join(EPOCHS)).unwrap();
        std::fs::write(dir.path().join(EPOCHS).join("7.1"), "").unwrap();
        assert_eq!(claim(dir.path(), 6).unwrap(), Err(epoch(7, 1)));
        assert_eq!(claim(dir.path(), 8).unwrap(), Ok(epoch(8, 1)));
    }
}
