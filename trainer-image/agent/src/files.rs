//! Files of an attempt: size-bounded reads, and errors that name the file.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Maximum size of a `report.json` in bytes.
pub(crate) const MAX_REPORT: u64 = 1 << 20;
/// Maximum size of a `progress.json` in bytes.
pub(crate) const MAX_PROGRESS: u64 = 64 << 10;
/// Maximum size of an `attempt.json` in bytes.
pub(crate) const MAX_ATTEMPT: u64 = 64 << 20;

/// An error that names its file.
pub(crate) fn named(path: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

/// Writes a file that only this user can read.
pub(crate) fn write_secret(path: &Path, secret: &[u8]) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    File::options().create_new(true).write(true).mode(0o600).open(path)?.write_all(secret)
}

/// Replaces a file atomically and durably.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    pawl_durable::write(path, content).map_err(|e| named(path, e))
}

/// The content of a regular file of at most `limit` bytes. Never blocks (as on a pipe).
pub(crate) fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(io::Error::other(format!("{} bytes, more than the limit of {limit}", facts.len())));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_bounded_and_never_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write(&path, b"12345").unwrap();
        assert_eq!(read_bounded(&path, 5).unwrap(), b"12345");
        assert!(read_bounded(&path, 4).unwrap_err().to_string().contains("5 bytes"));
        // A sparse terabyte: read would not end, or not fit.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read_bounded(&path, MAX_REPORT).is_err());
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(read_bounded(&pipe, 10).unwrap_err().to_string().contains("regular"));
        assert!(read_bounded(dir.path(), 10).is_err());
    }

    #[test]
    fn a_failed_write_names_the_file_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none").join("f.json");
        assert!(write(&path, b"x").unwrap_err().to_string().contains("none/f.json"));
    }
}
