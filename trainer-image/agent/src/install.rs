//! Installs the agent's executable, for images that do not include it.

use crate::files::named;
use pawl_durable::Replacement;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Atomically copies the running program to `directory`/pawl, executable for all users. Returns its path.
///
/// # Errors
/// Names the file that cannot be read or written.
pub fn install(directory: &Path) -> io::Result<PathBuf> {
    // Not by path: the file may have been replaced since this process started.
    let program = Path::new("/proc/self/exe");
    let path = directory.join("pawl");
    std::fs::create_dir_all(directory).map_err(|e| named(directory, e))?;
    let mut from = File::open(program).map_err(|e| named(program, e))?;
    let replaced = Replacement::of(&path).and_then(|mut to| {
        io::copy(&mut from, &mut to)?;
        to.file().set_permissions(Permissions::from_mode(0o755))?;
        to.commit()
    });
    replaced.map_err(|e| named(&path, e))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_installed_runs_and_replaces_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::fs::write(bin.join("pawl"), "old").unwrap();
        let path = install(&bin).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        assert!(Command::new(&path).arg("--list").output().unwrap().status.success());
        assert_eq!(install(&bin).unwrap(), path);
        assert_eq!(std::fs::read_dir(&bin).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_install_names_the_place_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(install(&file.join("bin")).unwrap_err().to_string().contains("file/bin"));
        let taken = dir.path().join("pawl");
        std::fs::create_dir(&taken).unwrap();
        std::fs::write(taken.join("x"), "").unwrap();
        assert!(install(dir.path()).unwrap_err().to_string().contains("pawl"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
