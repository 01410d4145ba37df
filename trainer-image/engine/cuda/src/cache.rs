//! The cache of compiled kernels and chosen algorithms on disk: private to its user, and verified when it is read.
//!
//! A kernel that another user could replace would run with the rights of the trainer, on its data. So the files are in
//! a directory `uid-<user>` that only this user can enter. Each file begins with the SHA-256 of its name and content;
//! its name is a hash of everything on which the content depends. What is incomplete, corrupt or of another origin is
//! made again.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

/// Length of a file's digest in bytes.
const DIGEST: usize = 32;
/// Permissions of the directory: only its owner.
const PRIVATE: u32 = 0o700;

/// A directory of cached files that belongs to the user of this process.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: PathBuf,
}

impl Cache {
    /// The cache of this user in `root`, which is created when missing. `None` when it cannot be private: it cannot be
    /// created, or belongs to another user; then everything is compiled again.
    pub fn open(root: &Path) -> Option<Self> {
        let user = rustix::process::geteuid().as_raw();
        let directory = root.join(format!("uid-{user}"));
        fs::create_dir_all(root).ok()?;
        match DirBuilder::new().mode(PRIVATE).create(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return None,
            _ => {}
        }
        // A link could lead to a directory of someone else.
        let found = fs::symlink_metadata(&directory).ok()?;
        if !found.is_dir() || found.uid() != user {
            return None;
        }
        // Volumes with a group of their own change the permissions of what they contain when they are mounted.
        if found.mode() & 0o777 != PRIVATE {
            fs::set_permissions(&directory, Permissions::from_mode(PRIVATE)).ok()?;
        }
        Some(Self { directory })
    }

    /// The content of the file `name`, if it is complete.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let bytes = fs::read(self.directory.join(name)).ok()?;
        let (known, content) = bytes.split_at_checked(DIGEST)?;
        (known == digest(name, content)).then(|| content.to_vec())
    }

    /// Writes the file `name` atomically. Errors are ignored: without the file, its content is made again.
    pub fn keep(&self, name: &str, content: &[u8]) {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = self.directory.join(format!(".{name}.{}-{number}", std::process::id()));
        let written = fs::write(&temporary, [&digest(name, content), content].concat());
        if written.and_then(|()| fs::rename(&temporary, self.directory.join(name))).is_err() {
            let _ = fs::remove_file(&temporary);
        }
    }
}

fn digest(name: &str, content: &[u8]) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update((name.len() as u64).to_le_bytes());
    hash.update(name);
    hash.update(content);
    hash.finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("pawl-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        root
    }

    #[test]
    fn what_is_torn_or_changed_or_of_another_name_is_not_read() {
        let root = root("torn");
        let cache = Cache::open(&root).unwrap();
        assert_eq!(cache.read("a.cubin"), None);
        let code = b"\x7fELF and more".to_vec();
        cache.keep("a.cubin", &code);
        assert_eq!(cache.read("a.cubin"), Some(code.clone()));
        let file = cache.directory.join("a.cubin");
        let whole = fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            fs::write(&file, &whole[..cut]).unwrap();
            assert_eq!(cache.read("a.cubin"), None, "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&file, changed).unwrap();
            assert_eq!(cache.read("a.cubin"), None, "changed at {at}");
        }
        fs::write(cache.directory.join("b.cubin"), &whole).unwrap();
        assert_eq!(cache.read("b.cubin"), None);
        // It is made again.
        cache.keep("a.cubin", &code);
        assert_eq!(cache.read("a.cubin"), Some(code));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn it_is_private_and_no_directory_of_someone_else() {
        let root = root("private");
        let cache = Cache::open(&root).unwrap();
        let mode = || fs::metadata(&cache.directory).unwrap().mode() & 0o777;
        assert_eq!(mode(), PRIVATE);
        fs::set_permissions(&cache.directory, Permissions::from_mode(0o777)).unwrap();
        assert!(Cache::open(&root).is_some());
        assert_eq!(mode(), PRIVATE);
        let elsewhere = root.join("elsewhere");
        fs::rename(&cache.directory, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &cache.directory).unwrap();
        assert!(Cache::open(&root).is_none(), "a link");
        fs::remove_dir_all(&root).unwrap();
    }
}
