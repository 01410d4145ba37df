//! `pawl validate`.

use super::source;
use crate::exit;
use pawl_api::{Policy, TrainingJob};
use std::path::PathBuf;
use std::process::ExitCode;

/// Validates every file, and prints all errors of all files, and which references need the policy of a cluster's operator.
pub fn validate(files: &[PathBuf]) -> ExitCode {
    let mut valid = true;
    for file in files {
        match source::load(file) {
            Ok(job) => {
                let name = job.metadata.name.as_deref().unwrap_or_default();
                println!("{}: valid: TrainingJob {name}, {} phases", file.display(), job.spec.phases.len());
                for note in notes(&job) {
                    println!("{}: {note}", file.display());
                }
            }
            Err(error) => {
                valid = false;
                let _ = source::reject(&error);
            }
        }
    }
    ExitCode::from(if valid { exit::COMPLETE } else { exit::INPUT })
}

/// What a cluster refuses unless the policy of its operator allows it.
fn notes(job: &TrainingJob) -> Vec<String> {
    let problems = Policy::default().problems(job);
    problems.into_iter().map(|problem| format!("note: on a cluster with the default policy: {problem}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn job(template: Value) -> TrainingJob {
        let spec = json!({"workload": {"name": "ups"}, "trainer": {"podTemplate": template}});
        serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": spec})).expect("a job")
    }

    #[test]
    fn references_that_need_a_policy_are_noted() {
        let notes = notes(&job(json!({"runtimeClassName": "nvidia"})));
        let [note] = &notes[..] else { panic!("{notes:?}") };
        assert!(note.contains("spec.trainer.podTemplate.runtimeClassName: \"nvidia\""), "{note}");
        assert!(note.contains("policy.allowedRuntimeClasses"), "{note}");
        assert!(super::notes(&job(json!({}))).is_empty());
    }
}
