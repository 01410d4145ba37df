//! Atomic replacement of files: after a crash the file has either the old or the new content.

use super::StateError;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Replaces the content of `path` atomically: writes a temporary file in the same directory, syncs it, renames it, and syncs
/// the directory.
///
/// # Errors
/// [`StateError::Unusable`] when a step fails; `path` then has its previous content, unless the sync of the directory failed.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = directory.join(name);
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(source) = written {
        // An incomplete file would only use up scarce space.
        let _ = fs::remove_file(&temporary);
        return Err(StateError::Unusable { path: path.to_owned(), source });
    }
    fs::rename(&temporary, path).map_err(StateError::unusable(path))?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(StateError::unusable(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("status.json");
        write_atomic(&path, b"old").unwrap();
        fs::create_dir(directory.path().join("status.json.new")).unwrap();
        let error = write_atomic(&path, b"new").unwrap_err().to_string();
        assert!(error.contains("status.json"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}
