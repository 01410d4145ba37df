//! The manifests of the examples.

use std::path::{Path, PathBuf};

/// All manifests in `examples` and its folders, in order.
pub fn manifests() -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples"), &mut files);
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    files
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).expect("is there").map(|entry| entry.expect("can be read").path()) {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
}
