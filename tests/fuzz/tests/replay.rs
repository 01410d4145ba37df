//! Replays the committed corpora: inputs that reach different code, and those that once crashed.

use pawl_fuzz::{CONFIGURATIONS, TARGETS};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

fn inputs(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a directory can be read").path()).collect();
    paths.sort();
    paths
}

#[test]
fn no_input_of_a_corpus_breaks_its_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut broken = Vec::new();
    for target in TARGETS {
        let paths = inputs(&corpus.join(target.name));
        assert!(paths.len() >= 2, "{}: the corpus is nearly empty", target.name);
        for path in paths {
            let input = fs::read(&path).expect("an input can be read");
            if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
                broken.push(path);
            }
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}

/// The target `workload_config` reads the configuration of each workload.
#[test]
fn every_workload_is_a_target() {
    let known: Vec<&str> = pawl_workloads::registry().iter().map(|workload| workload.name()).collect();
    assert_eq!(CONFIGURATIONS.map(|(name, _)| name).to_vec(), known, "of tests/fuzz/src/targets/hugging_face.rs");
}

#[test]
fn every_corpus_has_a_target() {
    for path in inputs(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        assert!(pawl_fuzz::target(name).is_some(), "{} belongs to no target", path.display());
    }
}
