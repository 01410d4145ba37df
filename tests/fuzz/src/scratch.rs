//! Files of one input.

use std::path::Path;
use tempfile::TempDir;

/// An empty directory, in memory where possible: a target writes files for every input. It is deleted with its content.
pub fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("pawl-fuzz-").tempdir_in(parent).expect("a temporary directory can be created")
}

/// Writes a file of an input.
pub fn write(path: &Path, content: &[u8]) {
    std::fs::write(path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
