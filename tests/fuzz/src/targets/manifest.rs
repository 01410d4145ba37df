//! Manifests: text, types, decisions.

use crate::parts::parts;
use crate::story::Story;
use crate::targets::results::unfold_story;
use pawl_api::{TrainingJobStatus, validate};

/// A manifest (the first part) is refused with errors that can be displayed, or all decisions on it are total, whatever
/// its launches report (the second part, in the form of a termination message).
pub fn run(input: &[u8]) {
    let [manifest, results] = parts(input);
    let Ok(text) = std::str::from_utf8(manifest) else { return };
    match pawl_manifest::parse(text, "job.yaml") {
        Err(errors) => {
            assert!(!errors.errors.is_empty());
            assert!(!errors.to_string().is_empty());
        }
        Ok(job) => {
            assert!(validate(&job).is_empty());
            let value = serde_json::to_value(&job).expect("a job is JSON");
            let again: pawl_api::TrainingJob =
                serde_json::from_value(value).expect("a job that was written can be read");
            assert!(again == job, "a job changes when it is stored");
            unfold_story(Story::new(&job, TrainingJobStatus::default()), results);
        }
    }
}
