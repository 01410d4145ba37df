//! The tar archive of `kubectl pawl fetch`, which comes from a pod.

use crate::scratch;
use pawl_trainer::checkpoint::{Store, unpack};
use std::fs;
use std::path::Path;

/// Nothing is written outside of the directory, nor anything but files and directories inside.
pub fn run(input: &[u8]) {
    let outer = scratch::directory();
    let (inner, witness) = (outer.path().join("inner"), outer.path().join("witness"));
    fs::create_dir(&inner).expect("a directory can be created");
    scratch::write(&witness, b"unchanged");
    let unpacked = unpack(input, &inner);
    let mut outside: Vec<_> =
        fs::read_dir(outer.path()).into_iter().flatten().flatten().map(|e| e.file_name()).collect();
    outside.sort();
    assert_eq!(outside, ["inner", "witness"], "something was written outside");
    assert_eq!(fs::read(&witness).ok().as_deref(), Some(&b"unchanged"[..]));
    let names = plain(&inner);
    if unpacked.is_ok() {
        let store = Store::open(&inner.to_string_lossy()).expect("a directory is a storage");
        for name in names.iter().take(3) {
            let _ = store.verify(name);
        }
    }
}

/// The names in `directory`; all below it is files and directories.
fn plain(directory: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let kind = entry.file_type().expect("a file has a type");
        assert!(kind.is_dir() || kind.is_file(), "{}: {kind:?}", entry.path().display());
        if kind.is_dir() {
            plain(&entry.path());
        }
        names.extend(entry.file_name().into_string());
    }
    names
}
