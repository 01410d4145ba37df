//! A directory that appears at once and complete.

use crate::directory;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{Builder, TempDir};

/// The future content of a directory, which is not there yet. Dropped without [`NewDirectory::commit`], nothing of it
/// is left. A process that is killed, also by Ctrl-C, drops nothing: the temporary directory, whose name begins with a
/// dot and ends in `.new`, then remains.
///
/// ```
/// let place = tempfile::tempdir()?;
/// let new = pawl_durable::NewDirectory::at(&place.path().join("model"))?;
/// pawl_durable::write(&new.path().join("config.json"), b"{}")?;
/// new.commit()?;
/// assert!(place.path().join("model/config.json").exists());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct NewDirectory {
    new: TempDir,
    path: PathBuf,
}

impl NewDirectory {
    /// Creates a temporary directory beside `path`, or beside the directory that it is a link to, with the permissions
    /// of any new directory, and the directories above it where they are missing.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] when `path` is anything but an empty directory, [`io::ErrorKind::InvalidInput`]
    /// when it does not end in a name; when nothing can be created there.
    pub fn at(path: &Path) -> io::Result<Self> {
        let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
        require_empty(path)?;
        // A link to an empty directory stays, and the directory is replaced.
        let path = if path.is_symlink() { fs::canonicalize(path)? } else { path.to_owned() };
        let parent = directory(&path);
        fs::create_dir_all(parent)?;
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        // `tempfile` would make it accessible for its owner only.
        let any = Permissions::from_mode(0o777);
        let new = Builder::new().prefix(&prefix).suffix(".new").permissions(any).tempdir_in(parent)?;
        Ok(Self { new, path })
    }

    /// The temporary directory, to be filled.
    pub fn path(&self) -> &Path {
        self.new.path()
    }

    /// Moves the directory to its place and flushes that to disk. The files in it are flushed by who wrote them.
    ///
    /// # Errors
    /// As [`NewDirectory::at`], if something has appeared at the path meanwhile: it is left unchanged.
    pub fn commit(self) -> io::Result<()> {
        let Self { new, path } = self;
        File::open(new.path())?.sync_all()?;
        require_empty(&path)?;
        // An empty directory is replaced.
        fs::rename(new.path(), &path)?;
        // It is not where a temporary directory would be deleted.
        let _ = new.keep();
        File::open(directory(&path))?.sync_all()
    }
}

/// Checks that there is nothing at `path`, or an empty directory.
fn require_empty(path: &Path) -> io::Result<()> {
    match fs::read_dir(path) {
        Ok(mut entries) => entries.next().map_or(Ok(()), |_| Err(io::ErrorKind::AlreadyExists.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => Ok(()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::NotFound) => {
            Err(io::ErrorKind::AlreadyExists.into())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(of).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn it_appears_with_its_content_and_the_permissions_of_any_directory() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/model");
        let new = NewDirectory::at(&path).unwrap();
        fs::write(new.path().join("file"), "x").unwrap();
        assert!(!path.exists());
        new.commit().unwrap();
        assert_eq!((names(&path), names(&place.path().join("a"))), (vec!["file".to_owned()], vec!["model".to_owned()]));
        let plain = place.path().join("plain");
        fs::create_dir(&plain).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&plain));
    }

    #[test]
    fn without_commit_nothing_is_left() {
        let place = tempfile::tempdir().unwrap();
        let new = NewDirectory::at(&place.path().join("model")).unwrap();
        fs::write(new.path().join("file"), "x").unwrap();
        drop(new);
        assert!(names(place.path()).is_empty());
    }

    #[test]
    fn what_is_there_already_is_not_replaced_unless_it_is_an_empty_directory() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| NewDirectory::at(&place.path().join(name));
        fs::create_dir(place.path().join("empty")).unwrap();
        at("empty").unwrap().commit().unwrap();
        std::os::unix::fs::symlink("empty", place.path().join("link")).unwrap();
        let linked = at("link").unwrap();
        fs::write(linked.path().join("model"), "x").unwrap();
        linked.commit().unwrap();
        assert_eq!(
            (names(&place.path().join("empty")), place.path().join("link").is_symlink()),
            (vec!["model".to_owned()], true)
        );
        fs::write(place.path().join("file"), "x").unwrap();
        fs::create_dir(place.path().join("full")).unwrap();
        fs::write(place.path().join("full/file"), "x").unwrap();
        for taken in ["file", "full"] {
            assert_eq!(at(taken).unwrap_err().kind(), io::ErrorKind::AlreadyExists, "{taken}");
        }
        let late = at("late").unwrap();
        fs::create_dir(place.path().join("late")).unwrap();
        fs::write(place.path().join("late/file"), "x").unwrap();
        assert_eq!(late.commit().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names(place.path()), ["empty", "file", "full", "late", "link"]);
        assert_eq!(NewDirectory::at(Path::new("..")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
