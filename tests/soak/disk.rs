//! A small file system that becomes full, or blocks its writers.

use pawl_e2e::programs::{run, succeed};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Size in bytes: the checkpoints of a few small jobs. Those of jobs that ended are removed.
const SIZE: u64 = 256 << 20;

/// A file system on a loop device, mounted at a directory. Nodes that start later see it, too.
pub struct Disk {
    image: PathBuf,
    directory: PathBuf,
    /// When the newest fault ended, or when it will.
    trouble: Mutex<Option<Instant>>,
}

impl Disk {
    /// Creates and mounts the file system.
    pub fn mount(image: PathBuf, directory: PathBuf) -> Self {
        File::create(&image).and_then(|file| file.set_len(SIZE)).unwrap();
        succeed(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image));
        succeed(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&directory));
        let disk = Self { image, directory, trouble: Mutex::default() };
        std::fs::set_permissions(&disk.directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        disk
    }

    fn filler(&self) -> PathBuf {
        self.directory.join("filler")
    }

    /// Fills it. The space is free again when the result is dropped.
    pub fn fill(&self) -> impl Drop + use<'_> {
        let mut file = File::create(self.filler()).unwrap();
        let block = vec![1; 1 << 20];
        // First large blocks, then the rest.
        while file.write_all(&block).is_ok() {}
        while file.write_all(&block[..512]).is_ok() {}
        Restore(self, Self::free)
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    /// Blocks all writers until the result is dropped.
    pub fn freeze(&self) -> impl Drop + use<'_> {
        succeed(Command::new("fsfreeze").arg("--freeze").arg(&self.directory));
        Restore(self, Self::thaw)
    }

    fn thaw(&self) {
        succeed(Command::new("fsfreeze").arg("--unfreeze").arg(&self.directory));
    }

    /// Removes the checkpoints of a job that was deleted, which Pawl keeps. They are in a directory named after the
    /// job, below one named after its namespace.
    pub fn clear(&self, namespace: &str, job: &str) {
        let entries = |directory: &Path| std::fs::read_dir(directory).into_iter().flatten().flatten();
        for root in entries(&self.directory) {
            let checkpoints = root.path().join(namespace).join(job);
            if checkpoints.is_dir() {
                // A writer that is still blocked may add a file: it is small.
                let _ = std::fs::remove_dir_all(checkpoints);
            }
        }
    }

    /// Announces a fault of this duration.
    pub fn troubled_for(&self, duration: Duration) {
        *self.trouble.lock().unwrap() = Some(Instant::now() + duration);
    }

    /// Whether a fault ended less than a minute ago, or has not ended.
    pub fn is_troubled(&self) -> bool {
        let recent = |end: Instant| Instant::now() < end + Duration::from_secs(60);
        self.trouble.lock().unwrap().is_some_and(recent)
    }
}

/// What ends a fault.
struct Restore<'a>(&'a Disk, fn(&Disk));

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.1(self.0);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The nodes that used it are gone by now; if not, it goes with them.
        let _ = run(Command::new("umount").arg("--lazy").arg(&self.directory));
        let _ = std::fs::remove_file(&self.image);
    }
}
