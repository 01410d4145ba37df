//! Jobs of each version of the API, which all later versions must read without loss. `pawl-decision` tests that they
//! decide on them as the version that wrote them did.

#![allow(clippy::unwrap_used)]

use pawl_api::{TrainingJob, Unknown};
use serde_json::Value;

/// Every field of `old` is in `new`, with its value; empty texts and lists may be left out.
fn contains(new: &Value, old: &Value, path: &str) {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => {
            let empty = |value: &Value| value == "" || value.as_array().is_some_and(Vec::is_empty);
            for (name, value) in old.iter().filter(|(_, value)| !empty(value)) {
                let kept = new.get(name).unwrap_or_else(|| panic!("{path}.{name} was dropped"));
                contains(kept, value, &format!("{path}.{name}"));
            }
        }
        (Value::Array(new), Value::Array(old)) => {
            assert_eq!(new.len(), old.len(), "{path}");
            new.iter().zip(old).for_each(|(new, old)| contains(new, old, path));
        }
        (new, old) => assert_eq!(new, old, "{path}"),
    }
}

#[test]
fn jobs_of_earlier_versions_are_read_without_loss() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut read = 0;
    for version in std::fs::read_dir(fixtures).unwrap() {
        for file in std::fs::read_dir(version.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let old: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let name = path.display().to_string();
            // The API server would remove a field that is not in the schema.
            assert_eq!(Unknown::take(&mut old.clone()), Unknown::default(), "{name}");
            let job: TrainingJob =
                serde_json::from_value(old.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
            contains(&serde_json::to_value(job).unwrap(), &old, &name);
            read += 1;
        }
    }
    assert!(read >= 6, "only {read} files");
}
