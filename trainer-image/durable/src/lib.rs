//! Replaces files atomically: readers, and a crash, find the old content or the new one, never a mixture.
//!
//! The new content is written to a temporary file in the same directory, which is then renamed over the old one.
//! [`write()`] also flushes the file and its directory to disk: what it wrote survives a power failure. [`replace`]
//! skips that, for files that are replaced several times a second. [`Replacement`] is for content that is written piece
//! by piece, and [`NewDirectory`] for several files that appear together, of which [`copy`] copies one.
//!
//! A failed replacement leaves the old file unchanged and removes the temporary one. Errors are those of the operating
//! system, without a path: the caller names the file.
//!
//! ```
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("status.json");
//! pawl_durable::write(&path, b"{}")?;
//! assert_eq!(std::fs::read(&path)?, b"{}");
//! # Ok::<(), std::io::Error>(())
//! ```

mod new_directory;

pub use new_directory::NewDirectory;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// Replaces `path` by `content`, durably.
///
/// # Errors
/// When any step fails. If only the last one does, flushing the directory, `path` has the new content already.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut new = Replacement::of(path)?;
    new.write_all(content)?;
    new.commit()
}

/// Replaces `path` by `content` without flushing: after a power failure either content may be there, or an empty file.
///
/// # Errors
/// When any step fails; `path` is then unchanged.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut new = Replacement::of(path)?;
    new.write_all(content)?;
    new.rename()
}

/// Creates `path` with `content`, without flushing.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] when there is anything at `path`, which is unchanged; when any step fails, and
/// there is nothing at `path` then.
pub fn create(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut new = Replacement::of(path)?;
    new.write_all(content)?;
    let Replacement { new, path } = new;
    new.into_temp_path().persist_noclobber(path).map_err(|failed| failed.error)
}

/// Copies the file `from` to `to` with its permissions, and flushes the copy to disk, but not the directory of `to`. A
/// file that is there already is overwritten, not replaced: this is for what is put into a [`NewDirectory`].
///
/// # Errors
/// When `from` cannot be read, or `to` cannot be written; it may then have a part of the content.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    File::open(to)?.sync_all()
}

/// The future content of a file. Dropped without [`Replacement::commit`], it is removed and the file is unchanged.
#[derive(Debug)]
pub struct Replacement {
    new: NamedTempFile,
    path: PathBuf,
}

impl Replacement {
    /// Creates a temporary file beside `path`, with the permissions of any new file.
    ///
    /// # Errors
    /// When the directory of `path` doesn't exist or isn't writable.
    pub fn of(path: &Path) -> io::Result<Self> {
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(path.file_name().unwrap_or_default());
        prefix.push(".");
        // Created here, because `tempfile` would make it readable by its owner only.
        let new =
            Builder::new().prefix(&prefix).suffix(".new").make_in(directory(path), |new| File::create_new(new))?;
        Ok(Self { new, path: path.to_owned() })
    }

    /// The temporary file, for its permissions.
    pub fn file(&self) -> &File {
        self.new.as_file()
    }

    /// Flushes the content to disk, renames it over the file, and flushes the directory.
    ///
    /// # Errors
    /// As [`write()`].
    pub fn commit(self) -> io::Result<()> {
        self.file().sync_all()?;
        let directory = File::open(directory(&self.path))?;
        self.rename()?;
        directory.sync_all()
    }

    fn rename(self) -> io::Result<()> {
        let Self { new, path } = self;
        // Closed first: a program can't be executed while its file is open for writing.
        new.into_temp_path().persist(path).map_err(|failed| failed.error)
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.new.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn both_ways_replace_the_content_and_leave_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("status.json");
        write(&path, b"durable").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"durable");
        replace(&path, b"quick").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"quick");
        assert_eq!(names(directory.path()), ["status.json"]);
    }

    #[test]
    fn a_file_that_is_created_replaces_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.html");
        create(&path, b"first").unwrap();
        assert_eq!(create(&path, b"second").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(names(directory.path()), ["report.html"]);
    }

    #[test]
    fn permissions_are_those_of_any_new_file() {
        let directory = tempfile::tempdir().unwrap();
        let (ours, plain) = (directory.path().join("ours"), directory.path().join("plain"));
        write(&ours, b"").unwrap();
        fs::write(&plain, b"").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }

    #[test]
    fn what_is_not_committed_leaves_the_old_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("status.json");
        write(&path, b"old").unwrap();
        let mut new = Replacement::of(&path).unwrap();
        new.write_all(b"ne").unwrap();
        assert_eq!(names(directory.path()).len(), 2);
        drop(new);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["status.json"]);
    }

    #[test]
    fn errors_are_those_of_the_operating_system() {
        let directory = tempfile::tempdir().unwrap();
        let absent = write(&directory.path().join("none").join("f"), b"x").unwrap_err();
        assert_eq!(absent.raw_os_error(), Some(2));
        // A directory in place of the file.
        let path = directory.path().join("taken");
        fs::create_dir(&path).unwrap();
        assert_eq!(write(&path, b"x").unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(names(directory.path()), ["taken"]);
    }
}
