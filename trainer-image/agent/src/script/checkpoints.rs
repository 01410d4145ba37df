//! The checkpoints of a script that does not implement the contract: which one a launch resumes, and which may be
//! damaged.
//!
//! The agent cannot read them. It notes how far the training was when each appeared, and the losses of that moment, in
//! `.pawl/record.json` beside them. After a divergence or a rollback, those that are later than the last good position
//! are moved to `.pawl/quarantine`, as is what a superseded gang wrote: never resumed, never counted, not deleted.

use super::followed::Followed;
use super::is_aside;
use super::meter::Standing;
use crate::files::{self, named};
use pawl_contract::checkpoint::{CheckpointRef, MAX_QUARANTINED, TrainedPart, reported};
use pawl_contract::losses::SpikeWatch;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;

/// Interval of looking for new checkpoints.
const EVERY: Duration = Duration::from_millis(500);
/// Maximum time for the last look: a mount whose server is gone never answers.
const LAST: Duration = Duration::from_secs(10);
/// Directory of the record and of what is set aside; hidden, so that a script that looks for checkpoints by itself
/// finds none there.
const FOLDER: &str = ".pawl";
/// Maximum size of the record in bytes.
const MAX_RECORD: u64 = 16 << 20;
/// Newest checkpoints for which losses are kept.
const WITH_LOSSES: usize = 8;

/// `record.json`: the checkpoints by name, each with where the training was when it appeared.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Record {
    #[serde(default)]
    checkpoints: BTreeMap<String, Standing>,
    /// Names of those that were set aside because the training that wrote them had diverged, and not written anew
    /// since.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    diverged: BTreeSet<String>,
    /// Names of those that are being set aside for that: the agent may be killed before it has moved them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    leaving: BTreeSet<String>,
}

/// An entry of the directory that counts as a checkpoint.
struct Entry {
    path: PathBuf,
    name: String,
    number: Option<u64>,
    changed: Option<SystemTime>,
}

/// The directory in which a script has its checkpoints.
#[derive(Clone, Debug)]
pub(super) struct Checkpoints {
    pub(super) place: PathBuf,
    pub(super) items_per_step: u64,
}

impl Checkpoints {
    /// The checkpoints: the entries that are not hidden; where some have a number at the end of their name (before an
    /// extension), such as `checkpoint-500`, only these. Oldest first.
    fn entries(&self) -> Vec<Entry> {
        let all = std::fs::read_dir(&self.place).into_iter().flatten().filter_map(Result::ok);
        let mut all: Vec<Entry> = all
            .filter_map(|entry| {
                let (path, name) = (entry.path(), entry.file_name().into_string().ok()?);
                let changed = entry.metadata().and_then(|facts| facts.modified()).ok();
                let number = trailing_number(&path);
                (!is_aside(&path)).then_some(Entry { path, name, number, changed })
            })
            .collect();
        if all.iter().any(|entry| entry.number.is_some()) {
            all.retain(|entry| entry.number.is_some());
        }
        all.sort_by(|a, b| (a.number, a.changed, &a.name).cmp(&(b.number, b.changed, &b.name)));
        all
    }

    fn write(&self, record: &Record) {
        let folder = self.place.join(FOLDER);
        let written = serde_json::to_vec(record).map_err(io::Error::other).and_then(|content| {
            std::fs::create_dir_all(&folder)?;
            files::write(&folder.join("record.json"), &content)
        });
        if let Err(error) = written {
            tracing::warn!(directory = %folder.display(), %error, "cannot record the checkpoints");
        }
    }

    fn record(&self) -> Record {
        let content = files::read_bounded(&self.place.join(FOLDER).join("record.json"), MAX_RECORD).ok();
        content.and_then(|content| serde_json::from_slice(&content).ok()).unwrap_or_default()
    }

    /// Items at which a checkpoint was written: as recorded, else by its number, which is then one of steps.
    fn items(&self, entry: &Entry, record: &Record) -> Option<u64> {
        let recorded = record.checkpoints.get(&entry.name).map(|standing| standing.items);
        recorded.or_else(|| Some(entry.number?.saturating_mul(self.items_per_step)))
    }

    /// The newest checkpoint, of at most `limit` items. Not one that was being written when its writer was killed.
    pub(super) fn newest(&self, limit: Option<u64>) -> Option<PathBuf> {
        self.newest_of(limit, |_| true)
    }

    /// As [`Self::newest`], of the checkpoints whose names `counts`.
    pub(super) fn newest_of(&self, limit: Option<u64>, counts: impl Fn(&str) -> bool) -> Option<PathBuf> {
        let record = self.record();
        let mut all = self.entries();
        all.retain(|entry| counts(&entry.name) && !record.leaving.contains(&entry.name));
        all.retain(|entry| limit.is_none_or(|limit| self.items(entry, &record).is_some_and(|items| items <= limit)));
        let newest = all.pop()?;
        match all.last() {
            Some(before)
                if before.number.is_some() && newest.path.is_dir() && !has_files_of(&newest.path, &before.path) =>
            {
                let checkpoint = newest.path.display();
                tracing::warn!(%checkpoint, "lacks files of the one before it: it was not written to its end");
                Some(before.path.clone())
            }
            _ => Some(newest.path),
        }
    }

    /// Names of what is in the quarantine: the newest, as many as progress contains.
    pub(super) fn quarantined(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.place.join(FOLDER).join("quarantine")).into_iter().flatten();
        let mut all: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
        all.sort_by_key(|path| (trailing_number(path), path.clone()));
        let newest = all.split_off(all.len().saturating_sub(MAX_QUARANTINED));
        newest.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect()
    }

    /// Whether the checkpoint `known` is not missing but may be damaged: it is later than `limit` items, or was set
    /// aside because it was; or one with a larger number, for which the script may have deleted it, is there or was.
    pub(super) fn is_bad(&self, known: &CheckpointRef, limit: Option<u64>) -> bool {
        let record = self.record();
        let mut bad: Vec<String> = self.suspects(limit, &record).into_iter().map(|entry| entry.name).collect();
        bad.extend(record.diverged);
        let from = trailing_number(Path::new(&known.name)).filter(|_| limit.is_some_and(|limit| known.items > limit));
        let is_later = |name: &str| from.is_some() && trailing_number(Path::new(name)) > from;
        bad.iter().any(|name| *name == known.name || is_later(name))
    }

    /// The checkpoints of more than `limit` items, or of an unknown number, and those that were noted to be set aside.
    fn suspects(&self, limit: Option<u64>, record: &Record) -> Vec<Entry> {
        let is_after = |items: Option<u64>| limit.is_some_and(|limit| items.is_none_or(|items| items > limit));
        let mut suspects = self.entries();
        suspects.retain(|entry| record.leaving.contains(&entry.name) || is_after(self.items(entry, record)));
        suspects
    }

    /// Moves every checkpoint of more than `limit` items, or of an unknown number, into the quarantine, and those that
    /// were noted when the agent was killed. Returns their names.
    fn set_aside(&self, limit: Option<u64>) -> io::Result<Vec<String>> {
        let mut record = self.record();
        let suspects = self.suspects(limit, &record);
        let names: Vec<String> = suspects.iter().map(|entry| entry.name.clone()).collect();
        if names.is_empty() && record.leaving.is_empty() {
            return Ok(names);
        }
        // Before they are moved: what was moved and not noted would be missing without a reason.
        record.leaving.extend(names.iter().cloned());
        self.write(&record);
        for entry in &suspects {
            quarantine(&self.place, &entry.path)?;
        }
        record.diverged.append(&mut record.leaving);
        self.write(&record);
        Ok(names)
    }

    /// As [`Self::set_aside`]; returns a warning for the user, if anything was moved.
    ///
    /// # Errors
    /// Why it could not be moved.
    pub(super) fn set_damaged_aside(&self, limit: Option<u64>) -> Result<Option<String>, String> {
        let place = self.place.display();
        let failed = |error| format!("checkpoints in {place} may be damaged, and cannot be moved aside: {error}");
        let moved = self.set_aside(limit).map_err(failed)?;
        let names = moved.join(", ");
        let told = format!("{names} may be damaged: moved to {place}/.pawl/quarantine, training resumes from before");
        Ok((!moved.is_empty()).then_some(told))
    }

    /// Where the training was when a checkpoint was written.
    pub(super) fn standing(&self, checkpoint: &Path) -> Standing {
        let mut record = self.record();
        let name = checkpoint.file_name().unwrap_or_default().to_string_lossy();
        if let Some(standing) = record.checkpoints.remove(&*name) {
            return standing;
        }
        let step = trailing_number(checkpoint).unwrap_or_default();
        Standing { step, items: step.saturating_mul(self.items_per_step), ..Standing::default() }
    }
}

/// The chain of the launch `own`, which resumes a model at `at`. Empty where it is not known what trained that.
pub(super) fn continued(at: &Standing, own: TrainedPart) -> Vec<TrainedPart> {
    let mut trained = at.trained.clone();
    if trained.last().is_some_and(|last| last.launch != own.launch) {
        trained.push(TrainedPart { from_items: at.items, ..own });
    }
    reported(&trained).to_vec()
}

/// Moves a checkpoint in `place` into the quarantine there. Returns its new path.
pub(super) fn quarantine(place: &Path, checkpoint: &Path) -> io::Result<PathBuf> {
    let folder = place.join(FOLDER).join("quarantine");
    std::fs::create_dir_all(&folder).map_err(|error| named(&folder, error))?;
    let name = checkpoint.file_name().unwrap_or_default().to_string_lossy();
    // One of this name may be there from an earlier time.
    let names = std::iter::once(name.to_string()).chain((2..=u32::MAX).map(|count| format!("{name}.{count}")));
    let free = names.map(|name| folder.join(name)).find(|target| target.symlink_metadata().is_err());
    let target = free.ok_or_else(|| named(&folder, io::ErrorKind::AlreadyExists.into()))?;
    std::fs::rename(checkpoint, &target).map_err(|error| named(checkpoint, error))?;
    Ok(target)
}

/// Notes new checkpoints of a running script, on a thread of its own: storage may be slow. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Sightings {
    end: mpsc::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl Sightings {
    /// Begins before the script starts. `resumed`: where it resumes.
    pub(super) fn start(checkpoints: Checkpoints, followed: Followed, resumed: &Standing) -> io::Result<Self> {
        let (end, ending) = mpsc::channel();
        let (tell, ended) = oneshot::channel();
        let mut looks = Looks::new(checkpoints, resumed);
        std::thread::Builder::new().name("checkpoints".to_owned()).spawn(move || {
            loop {
                let over = ending.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
                looks.look(&followed, over);
                if over {
                    // Nobody waits for a launch that was dropped.
                    let _ = tell.send(());
                    return;
                }
            }
        })?;
        Ok(Self { end, ended })
    }

    /// Looks for the last time, after the script has ended.
    pub(crate) async fn finish(self) {
        let Self { end, ended } = self;
        drop(end);
        if tokio::time::timeout(LAST, ended).await.is_err() {
            tracing::warn!("the checkpoint storage does not answer: the newest checkpoints are not recorded");
        }
    }
}

/// What has been seen of the checkpoints of a running script.
struct Looks {
    checkpoints: Checkpoints,
    record: Record,
    /// When each of them was changed.
    changed: BTreeMap<String, Option<SystemTime>>,
    /// Step of the training at the last look.
    step: u64,
}

impl Looks {
    fn new(checkpoints: Checkpoints, resumed: &Standing) -> Self {
        let changed = checkpoints.entries().into_iter().map(|entry| (entry.name, entry.changed)).collect();
        Self { record: checkpoints.record(), changed, step: resumed.step, checkpoints }
    }

    fn look(&mut self, followed: &Followed, over: bool) {
        let Some(standing) = followed.standing() else { return };
        let entries = self.checkpoints.entries();
        let is_new = |entry: &&Entry| self.changed.get(&entry.name) != Some(&entry.changed);
        let new: Vec<_> = entries.iter().filter(is_new).map(|entry| (entry.name.clone(), entry.number)).collect();
        for (name, number) in &new {
            let seen = self.position(*number, &standing);
            // Its files may still be written: where it began counts.
            if number.is_none() || self.record.checkpoints.get(name).is_none_or(|known| known.step != seen.step) {
                self.record.checkpoints.insert(name.clone(), seen);
            }
        }
        self.changed = entries.iter().map(|entry| (entry.name.clone(), entry.changed)).collect();
        self.step = standing.step;
        if !new.is_empty() {
            self.record.diverged.retain(|name| new.iter().all(|(written, _)| written != name));
            self.write();
        }
        let is_unchanged = |entry: &Entry| !new.iter().any(|(name, _)| *name == entry.name);
        let is_settled = |entry: &&Entry| over || is_unchanged(entry);
        if let Some(entry) = entries.iter().rev().find(is_settled)
            && let Some(Standing { step, items, .. }) = self.record.checkpoints.get(&entry.name)
        {
            // One that was written just before the script ended may not be whole.
            let is_whole = is_unchanged(entry);
            followed.saw(CheckpointRef { name: entry.name.clone(), step: *step, items: *items }, is_whole);
        }
    }

    /// Where the training was when a checkpoint appeared since the last look. Its number is one of steps unless the
    /// training was further before; without one, it may have been written just after the newest reading, of which
    /// nothing good is known yet.
    fn position(&self, number: Option<u64>, standing: &Standing) -> Standing {
        let at = |step, items| Standing { step, items, ..standing.clone() };
        match number.filter(|number| *number >= self.step) {
            Some(step) => at(step, step.saturating_mul(self.checkpoints.items_per_step)),
            None => at(standing.step + 1, standing.items + 1),
        }
    }

    fn write(&mut self) {
        self.record.checkpoints.retain(|name, _| self.changed.contains_key(name));
        let mut by_age: Vec<_> = self.record.checkpoints.values_mut().collect();
        by_age.sort_by_key(|standing| std::cmp::Reverse(standing.step));
        by_age.into_iter().skip(WITH_LOSSES).for_each(|standing| standing.losses = SpikeWatch::default());
        self.checkpoints.write(&self.record);
    }
}

/// Whether a directory has a file of each name that another one has. Names with digits do not count: there are as many
/// as ranks.
fn has_files_of(directory: &Path, other: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(other) else { return true };
    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
    names
        .filter(|name| !name.to_string_lossy().bytes().any(|byte| byte.is_ascii_digit()))
        .all(|name| directory.join(name).exists())
}

pub(super) fn trailing_number(path: &Path) -> Option<u64> {
    let stem = path.file_stem()?.to_string_lossy().into_owned();
    let digits = stem.len() - stem.bytes().rev().take_while(u8::is_ascii_digit).count();
    stem[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoints(place: &Path, items_per_step: u64) -> Checkpoints {
        Checkpoints { place: place.to_owned(), items_per_step }
    }

    fn name(path: Option<PathBuf>) -> Option<String> {
        path.map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
    }

    #[test]
    fn the_newest_checkpoint_has_the_highest_number() {
        let dir = tempfile::tempdir().unwrap();
        let newest = |most| name(checkpoints(dir.path(), 1).newest(most));
        assert_eq!((newest(None), checkpoints(&dir.path().join("none"), 1).newest(None)), (None, None));
        for entry in
            ["checkpoint-9", "checkpoint-10", ".checkpoint-99", "notes", "pawl-training-40", "search-0-1a2b-t30"]
        {
            std::fs::create_dir(dir.path().join(entry)).unwrap();
        }
        assert_eq!(newest(None).as_deref(), Some("checkpoint-10"));
        assert_eq!(newest(Some(9)).as_deref(), Some("checkpoint-9"));
        assert_eq!(newest(Some(1)), None);
        std::fs::write(dir.path().join("step=20.ckpt"), "").unwrap();
        assert_eq!(newest(None).as_deref(), Some("step=20.ckpt"));
    }

    #[test]
    fn a_checkpoint_that_was_not_written_to_its_end_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let write = |checkpoint: &str, files: &[&str]| {
            std::fs::create_dir(dir.path().join(checkpoint)).unwrap();
            files.iter().for_each(|file| std::fs::write(dir.path().join(checkpoint).join(file), "").unwrap());
        };
        let newest = || name(checkpoints(dir.path(), 1).newest(None)).unwrap();
        write("checkpoint-400", &["model.safetensors", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"]);
        write("checkpoint-500", &["model.safetensors"]);
        assert_eq!(newest(), "checkpoint-400");
        // Of fewer ranks.
        write("checkpoint-600", &["model.safetensors", "rng_state_0.pth", "trainer_state.json"]);
        assert_eq!(newest(), "checkpoint-600");
    }

    #[test]
    fn what_is_later_than_the_last_good_position_is_moved_and_not_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let all = checkpoints(dir.path(), 8);
        for _ in 0..2 {
            for entry in ["ckpt-45", "ckpt-50", "ckpt-55", "notes"] {
                std::fs::write(dir.path().join(entry), entry).unwrap();
            }
            assert_eq!(all.set_aside(Some(400)).unwrap(), ["ckpt-55"]);
            assert_eq!(name(all.newest(None)).as_deref(), Some("ckpt-50"));
        }
        for moved in ["ckpt-55", "ckpt-55.2"] {
            assert_eq!(std::fs::read(dir.path().join(FOLDER).join("quarantine").join(moved)).unwrap(), b"ckpt-55");
        }
        assert!(dir.path().join("notes").exists(), "no checkpoint");
    }

    #[test]
    fn what_was_noted_when_the_agent_was_killed_is_still_moved() {
        let dir = tempfile::tempdir().unwrap();
        let all = checkpoints(dir.path(), 8);
        for entry in ["ckpt-50", "ckpt-55", "ckpt-60"] {
            std::fs::write(dir.path().join(entry), entry).unwrap();
        }
        // One of two was moved.
        let leaving = ["ckpt-55", "ckpt-60"].map(str::to_owned).into();
        all.write(&Record { leaving, ..Record::default() });
        quarantine(dir.path(), &dir.path().join("ckpt-60")).unwrap();
        assert_eq!(all.set_aside(None).unwrap(), ["ckpt-55"]);
        assert_eq!(name(all.newest(None)).as_deref(), Some("ckpt-50"));
        let known = |name: &str| CheckpointRef { name: name.to_owned(), step: 0, items: 500 };
        let is_bad = ["ckpt-55", "ckpt-60", "ckpt-65"].map(|name| all.is_bad(&known(name), None));
        assert_eq!(is_bad, [true, true, false]);
        // A checkpoint of that name is written anew by a training that goes on.
        std::fs::write(dir.path().join("ckpt-55"), "").unwrap();
        assert_eq!(all.set_aside(None).unwrap(), [""; 0]);
    }

    /// Where the training is said to be, for [`Looks`].
    fn standing(step: u64) -> Standing {
        Standing { step, items: 8 * step, ..Standing::default() }
    }

    #[test]
    fn a_number_that_is_not_one_of_steps_says_nothing_about_the_position() {
        let dir = tempfile::tempdir().unwrap();
        let mut looks = Looks::new(checkpoints(dir.path(), 8), &Standing::default());
        let position = |looks: &Looks, number, step| {
            let seen = looks.position(number, &standing(step));
            (seen.step, seen.items)
        };
        assert_eq!(position(&looks, Some(25), 20), (25, 200), "the line of the step is still to come");
        looks.step = 200;
        assert_eq!(position(&looks, Some(205), 210), (205, 1640));
        assert_eq!(position(&looks, Some(3), 210), (211, 1681), "an epoch");
        assert_eq!(position(&looks, None, 210), (211, 1681), "no loss after it is known to be good");
    }
}
