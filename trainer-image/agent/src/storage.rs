//! Whether checkpoints can be written: proven before anything is measured or trained, and asked again after a script
//! has failed.
//!
//! A script says so in the words of its framework, which differ; PyTorch's file writer names no error of the system at
//! all. So the agent tries to write there itself, and the system answers by the kind of the error.

use pawl_contract::exit::Outcome;
use pawl_contract::record::FOLDER;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is written, bytes: less than any checkpoint.
const TRIED: usize = 1 << 20;
/// Begins the name of what a proof writes.
const PROBE: &str = ".pawl-probe-";
/// How long an answer is waited for: a mount whose server is gone never gives one.
const PATIENCE: Duration = Duration::from_secs(10);
/// As [`PATIENCE`], before a launch: the storage may be busy with what others write.
const LONG_PATIENCE: Duration = Duration::from_secs(120);

/// The first of `places` that has no space or no quota left, and the system's error. The launch has ended: nobody else
/// writes.
pub(crate) async fn full(places: Vec<PathBuf>) -> Option<(PathBuf, io::Error)> {
    let look = move || {
        places.into_iter().find_map(|place| {
            let error = attempt(&place).err()?;
            (Outcome::of_error(&error) == Outcome::StorageFull).then_some((place, error))
        })
    };
    tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(look)).await.ok()?.ok()?
}

/// Writes a file and deletes it.
fn attempt(place: &Path) -> io::Result<()> {
    let path = place.join(format!(".pawl-space-{}", std::process::id()));
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(&vec![0; TRIED])?;
        file.sync_all()
    });
    let removed = std::fs::remove_file(&path);
    written.and(removed)
}

/// Proves that checkpoints can be written in `place`: a file is written to the disk, renamed and read there, and as
/// much space is left as `newest` needs, the newest checkpoint. Leaves nothing there.
///
/// # Errors
/// How a launch ends that needs the storage, and why, with the remedy.
pub(crate) async fn prove(place: PathBuf, newest: Option<PathBuf>) -> Result<(), (Outcome, String)> {
    answered(place, move |place| operations(place).and_then(|()| room(place, newest.as_deref()))).await
}

/// As [`prove`], unless something has been written to `place`: then it could be.
///
/// # Errors
/// As [`prove`].
pub(crate) async fn prove_unused(place: PathBuf) -> Result<(), (Outcome, String)> {
    answered(place, |place| if is_unused(place) { operations(place) } else { Ok(()) }).await
}

/// What `look` finds out of `place`, on a thread of its own: a mount whose server is gone never answers.
async fn answered(
    place: PathBuf,
    look: impl FnOnce(&Path) -> io::Result<()> + Send + 'static,
) -> Result<(), (Outcome, String)> {
    let shown = place.display().to_string();
    let look = move || look(&place);
    let unusable = |why: String| (Outcome::CheckpointUnreadable, format!("checkpoint storage {shown}: {why}"));
    let answer = tokio::time::timeout(LONG_PATIENCE, tokio::task::spawn_blocking(look)).await;
    let answer = answer.map_err(|_| {
        let seconds = LONG_PATIENCE.as_secs();
        unusable(format!("no answer within {seconds} s: check the network, the mount and its server"))
    })?;
    let result = answer.map_err(|error| unusable(format!("it cannot be checked: {error}")))?;
    result.map_err(|error| match Outcome::of_error(&error) {
        Outcome::StorageFull => {
            let remedy = "free some space there, or keep fewer checkpoints";
            (Outcome::StorageFull, format!("checkpoint storage {shown}: {error}: {remedy}"))
        }
        _ => unusable(format!("{error}: give the trainer's user write permission there, and mount it writable")),
    })
}

/// The directory of a storage; `None` for object storage.
pub(crate) fn directory(storage: &str) -> Option<PathBuf> {
    let path = storage.strip_prefix("file://").unwrap_or(storage);
    (!path.contains("://")).then(|| PathBuf::from(path))
}

/// Whether nothing has been written to `place` yet. What a proof has left that did not end counts as nothing, and so do
/// the records: they are small, so that they fit into a storage that is almost full.
fn is_unused(place: &Path) -> bool {
    let names = |place: &Path| std::fs::read_dir(place).into_iter().flatten().filter_map(Result::ok);
    let records = Path::new(FOLDER);
    let holds_records = |entry: &std::fs::DirEntry| {
        let only = |inner: std::fs::DirEntry| Some(inner.file_name().as_os_str()) == records.file_name();
        records.parent() == Some(Path::new(&entry.file_name())) && names(&entry.path()).all(only)
    };
    let is_probe = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(PROBE);
    names(place).all(|entry| is_probe(&entry) || holds_records(&entry))
}

fn operations(place: &Path) -> io::Result<()> {
    std::fs::create_dir_all(place)?;
    // In every container the process has the same number.
    let path = place.join(format!("{PROBE}{:x}", RandomState::new().hash_one(std::process::id())));
    let renamed = path.with_extension("renamed");
    let content = vec![7; TRIED];
    let used = File::create(&path).and_then(|mut file| {
        file.write_all(&content)?;
        file.sync_all()?;
        std::fs::rename(&path, &renamed)?;
        File::open(place)?.sync_all()?;
        match std::fs::read(&renamed)? == content {
            true => Ok(()),
            false => Err(io::Error::other("what was written is not what is there")),
        }
    });
    // The error that counts is that of the first operation.
    let removed = [&path, &renamed].map(std::fs::remove_file);
    used.and_then(|()| removed.into_iter().next_back().unwrap_or(Ok(())))
}

/// Whether as much space is left as a checkpoint needs.
fn room(place: &Path, checkpoint: Option<&Path>) -> io::Result<()> {
    let Some(checkpoint) = checkpoint else { return Ok(()) };
    let facts = rustix::fs::statvfs(place)?;
    let free = facts.f_bavail.saturating_mul(facts.f_frsize);
    let needed = size(checkpoint);
    if free >= needed {
        return Ok(());
    }
    let name = checkpoint.file_name().unwrap_or_default().to_string_lossy();
    let why = format!("{free} bytes are free, and a checkpoint such as {name} needs {needed}");
    Err(io::Error::new(io::ErrorKind::StorageFull, why))
}

/// Bytes of a file, or of all files in a directory.
fn size(path: &Path) -> u64 {
    match path.symlink_metadata() {
        Ok(facts) if facts.is_dir() => {
            let entries = std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
            entries.map(|entry| size(&entry.path())).sum()
        }
        Ok(facts) => facts.len(),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_storage_is_proven_and_nothing_is_left_there() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("team/job");
        prove(place.clone(), None).await.unwrap();
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let (outcome, why) = prove(file.clone(), None).await.unwrap_err();
        assert_eq!(outcome, Outcome::CheckpointUnreadable, "{why}");
        assert!(why.starts_with(&format!("checkpoint storage {}: ", file.display())), "{why}");
    }

    #[test]
    fn records_do_not_prove_that_checkpoints_can_be_written() {
        let dir = tempfile::tempdir().unwrap();
        assert!(is_unused(&dir.path().join("missing")) && is_unused(dir.path()));
        std::fs::create_dir_all(dir.path().join(".pawl/_records/attempts")).unwrap();
        assert!(is_unused(dir.path()));
        std::fs::write(dir.path().join(".pawl/diverged"), "").unwrap();
        assert!(!is_unused(dir.path()));
    }

    #[tokio::test]
    async fn as_much_space_is_needed_as_the_newest_checkpoint_takes() {
        let dir = tempfile::tempdir().unwrap();
        let newest = dir.path().join("ckpt-5");
        std::fs::create_dir(&newest).unwrap();
        let weights = File::create(newest.join("weights")).unwrap();
        weights.set_len(1 << 10).unwrap();
        prove(dir.path().to_owned(), Some(newest.clone())).await.unwrap();
        // A file with holes takes no space, so that it may be larger than the disk.
        let facts = rustix::fs::statvfs(dir.path()).unwrap();
        weights.set_len(facts.f_bavail * facts.f_frsize + (1 << 40)).unwrap();
        let (outcome, why) = prove(dir.path().to_owned(), Some(newest)).await.unwrap_err();
        assert_eq!(outcome, Outcome::StorageFull, "{why}");
        assert!(why.contains("a checkpoint such as ckpt-5 needs ") && why.contains("free some space"), "{why}");
    }
}
