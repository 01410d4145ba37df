//! Which data a launch has, as a hash for whoever repeats it or compares it with another one.

use crate::store::hex;
use pawl_contract::provenance::{Data, Hashed};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes at the beginning and at the end of a file that are hashed, if it is larger than both.
const PART: u64 = 1 << 20;
/// Files whose contents are hashed, at most, and bytes of all of them.
const MAX_FILES: usize = 256;
const MAX_BYTES: u64 = 64 << 20;
/// How long files are listed, and then how long contents are read.
const PATIENCE: Duration = Duration::from_secs(2);
/// Files and directories that are listed, at most, and directories that are in one another.
const MAX_LISTED: usize = 100_000;
const MAX_DEPTH: usize = 16;

/// What the data of a job are.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Generated: the data are a function of this.
    Generated(Value),
    /// The files in a directory, or one file.
    Files(PathBuf),
}

impl Source {
    /// `directory`, if the configuration names one, or else what the data are generated from.
    pub(crate) fn of(directory: Option<&String>, generated: Value) -> Self {
        directory.map_or(Self::Generated(generated), |directory| Self::Files(directory.into()))
    }

    /// The data of the workload called `workload`, by their hash; `None` when the files cannot be listed.
    pub fn hashed(&self, workload: &str) -> Option<Data> {
        match self {
            Self::Generated(configuration) => {
                let text = json!([workload, configuration]).to_string();
                let hash = hex(Sha256::digest(text).as_slice());
                Some(Data { from: None, hashed: Hashed::Generator, hash })
            }
            Self::Files(path) => {
                let (hash, hashed) = files(path, PATIENCE).ok()?;
                Some(Data { from: Some(path.display().to_string()), hashed, hash })
            }
        }
    }
}

/// The hash of the files at `path`, with their contents if they can be read within `patience`.
fn files(path: &Path, patience: Duration) -> io::Result<(String, Hashed)> {
    let found = Listing::of(path, PATIENCE)?;
    let mut digest = Sha256::new();
    for (file, size) in &found {
        digest.update(format!("{}\0{size}\0", file.strip_prefix(path).unwrap_or(file).display()));
    }
    Ok(match contents(digest.clone(), &found, patience) {
        Ok(Some(whole)) => whole,
        Ok(None) | Err(_) => (hex(digest.finalize().as_slice()), Hashed::Names),
    })
}

/// `digest` with the contents of `files`; `None` when they take longer than `patience`.
fn contents(mut digest: Sha256, files: &[(PathBuf, u64)], patience: Duration) -> io::Result<Option<(String, Hashed)>> {
    let (begun, mut left, mut buffer) = (Instant::now(), MAX_BYTES, Vec::new());
    let mut is_whole = files.len() <= MAX_FILES;
    for (path, size) in files.iter().take(MAX_FILES) {
        let read = (*size).min(2 * PART);
        if read > left {
            return Ok(Some((hex(digest.finalize().as_slice()), Hashed::Sample)));
        }
        left -= read;
        is_whole &= *size == read;
        if begun.elapsed() > patience {
            return Ok(None);
        }
        let mut file = File::open(path)?;
        buffer.clear();
        file.by_ref().take(read.min(PART)).read_to_end(&mut buffer)?;
        if read > PART {
            file.seek(SeekFrom::End(-((read - PART) as i64)))?;
            file.take(read - PART).read_to_end(&mut buffer)?;
        }
        digest.update(&buffer);
    }
    Ok(Some((hex(digest.finalize().as_slice()), if is_whole { Hashed::Content } else { Hashed::Sample })))
}

/// The files in a directory.
struct Listing {
    /// Each with its size, bytes.
    files: Vec<(PathBuf, u64)>,
    /// Number of the directories.
    directories: usize,
    /// Device and number of each directory that is being listed, the outermost first.
    open: Vec<(u64, u64)>,
    /// When it is too late.
    until: Instant,
}

impl Listing {
    /// The files at `path` and their sizes, in order.
    ///
    /// # Errors
    /// `path` cannot be read, or there is more than can be listed within `patience` and the limits.
    fn of(path: &Path, patience: Duration) -> io::Result<Vec<(PathBuf, u64)>> {
        let until = Instant::now() + patience;
        let mut listing = Self { files: Vec::new(), directories: 0, open: Vec::new(), until };
        match listing.add(path)? {
            true => {
                listing.files.sort_unstable();
                Ok(listing.files)
            }
            false => Err(io::Error::other("too many files or directories, or too slow")),
        }
    }

    /// Adds the files at `path`, in no order. Returns whether that is all of them.
    fn add(&mut self, path: &Path) -> io::Result<bool> {
        // Links are followed: a mounted ConfigMap and a cache of datasets consist of them.
        let about = std::fs::metadata(path)?;
        let id = (about.dev(), about.ino());
        if about.is_file() {
            self.files.push((path.to_owned(), about.len()));
        } else if about.is_dir() && !self.open.contains(&id) {
            if self.open.len() == MAX_DEPTH {
                return Ok(false);
            }
            self.directories += 1;
            let entries = std::fs::read_dir(path)?;
            self.open.push(id);
            for entry in entries.flatten() {
                // In a mounted ConfigMap the directory to which the links lead, of another name in each pod.
                if entry.file_name().as_encoded_bytes().starts_with(b"..") {
                    continue;
                }
                // What cannot be read, such as `lost+found`, or a link to nothing, is not data.
                if !self.add(&entry.path()).unwrap_or(true) {
                    return Ok(false);
                }
            }
            self.open.pop();
        }
        let is_too_much = self.files.len() > MAX_LISTED || self.directories > MAX_LISTED;
        Ok(!is_too_much && Instant::now() <= self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn of(path: &Path) -> Data {
        Source::Files(path.to_owned()).hashed("slm").unwrap()
    }

    #[test]
    fn files_with_other_names_sizes_or_contents_are_other_data() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        std::fs::create_dir(directory.path().join("deep")).unwrap();
        write("a.txt", "one");
        write("deep/b.txt", "two");
        let first = of(directory.path());
        assert_eq!((first.hashed, first.from.as_deref()), (Hashed::Content, directory.path().to_str()));
        assert_eq!(of(directory.path()), first);
        write("deep/b.txt", "tw0");
        let content = of(directory.path());
        std::fs::rename(directory.path().join("a.txt"), directory.path().join("c.txt")).unwrap();
        let name = of(directory.path());
        assert!(content.hash != first.hash && name.hash != content.hash);
        // The same files elsewhere are the same data.
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::create_dir(elsewhere.path().join("deep")).unwrap();
        std::fs::write(elsewhere.path().join("c.txt"), "one").unwrap();
        std::fs::write(elsewhere.path().join("deep/b.txt"), "tw0").unwrap();
        assert_eq!(of(elsewhere.path()).hash, name.hash);
        assert_eq!(of(&elsewhere.path().join("c.txt")).hashed, Hashed::Content, "one file");
        assert_eq!(Source::Files(directory.path().join("nowhere")).hashed("slm"), None);
    }

    #[test]
    fn volumes_with_the_same_files_are_the_same_data() {
        // As the kubelet mounts a ConfigMap.
        let mounted = |directory: &str| {
            let volume = tempfile::tempdir().unwrap();
            std::fs::create_dir(volume.path().join(directory)).unwrap();
            std::fs::write(volume.path().join(directory).join("a.txt"), "one").unwrap();
            symlink(directory, volume.path().join("..data")).unwrap();
            symlink("..data/a.txt", volume.path().join("a.txt")).unwrap();
            volume
        };
        let (first, second) = (mounted("..2026_01_01_a"), mounted("..2026_01_02_b"));
        let hash = of(first.path()).hash;
        assert_eq!(of(second.path()).hash, hash);
        assert_eq!(Listing::of(first.path(), PATIENCE).unwrap().len(), 1);
        // What is in no way a file.
        symlink("nowhere", first.path().join("dangling")).unwrap();
        symlink(".", first.path().join("loop")).unwrap();
        symlink("loop", first.path().join("loops")).unwrap();
        assert_eq!(of(first.path()).hash, hash);
    }

    #[test]
    fn a_listing_ends_in_time_and_within_its_limits() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.txt"), "one").unwrap();
        assert!(Listing::of(directory.path(), Duration::ZERO).is_err());
        let deep = (0..MAX_DEPTH).fold(directory.path().to_owned(), |path, _| path.join("d"));
        std::fs::create_dir_all(&deep).unwrap();
        assert!(Listing::of(directory.path(), PATIENCE).is_err());
        assert!(Listing::of(&directory.path().join("d"), PATIENCE).unwrap().is_empty());
    }

    #[test]
    fn of_large_files_both_ends_are_hashed_and_of_slow_ones_the_names() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("train.bin");
        let mut bytes = vec![0_u8; 3 << 20];
        let mut hash = |at: usize, value: u8| {
            bytes[at] = value;
            std::fs::write(&path, &bytes).unwrap();
            let data = of(directory.path());
            assert_eq!(data.hashed, Hashed::Sample);
            data.hash
        };
        let first = hash(0, 0);
        assert_eq!(hash(3 << 19, 1), first, "the middle is not read");
        let (end, beginning) = (hash((3 << 20) - 1, 1), hash(0, 1));
        assert!(end != first && beginning != end);
        let (names, hashed) = files(directory.path(), Duration::ZERO).unwrap();
        assert!(hashed == Hashed::Names && names != beginning);
    }

    #[test]
    fn generated_data_are_what_they_are_generated_from() {
        let of = |workload, seed: u32| Source::of(None, json!({"seed": seed})).hashed(workload).unwrap();
        assert_eq!(of("ups", 1), of("ups", 1));
        assert!(of("ups", 1).hash != of("ups", 2).hash && of("ups", 1).hash != of("slm", 1).hash);
        assert_eq!(Source::of(Some(&"/data".to_owned()), json!({})), Source::Files("/data".into()));
    }
}
