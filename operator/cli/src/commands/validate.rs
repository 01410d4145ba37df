//! `pawl validate`.

use super::{built_in, print, source};
use crate::exit;
use pawl_api::{Policy, TrainingJob};
use pawl_contract::report::printable;
use std::path::PathBuf;
use std::process::ExitCode;

/// Validates every file, and prints all errors of all files, also those that the built-in trainer would find, warnings,
/// which references need the policy of a cluster's operator, and what judging and a search take in total.
pub fn validate(files: &[PathBuf]) -> ExitCode {
    let mut valid = true;
    for file in files {
        let mut found = Vec::new();
        let trainer = |job: &TrainingJob| {
            let all = built_in::check(job);
            if job.spec.trainer.image.is_some() {
                found = all.of_another_image();
                return Vec::new();
            }
            all.errors_of_this_pawl(&mut found)
        };
        match source::load_with(file, trainer) {
            Ok(job) => {
                let name = job.metadata.name.as_deref().unwrap_or_default();
                let file = file.display();
                let mut text = format!("{file}: valid: TrainingJob {name}, {} phases\n", job.spec.phases.len());
                for note in notes(&job).into_iter().chain(found).chain(totals(&job)) {
                    text += &printable(&format!("{file}: {note}"));
                    text.push('\n');
                }
                let printed = print(&text);
                if printed != ExitCode::SUCCESS {
                    return printed;
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

/// What judging and the search take in total, a line each. Their parts are in the dry run.
pub(super) fn totals(job: &TrainingJob) -> Vec<String> {
    let judging = pawl_decision::judging(job).lines().into_iter().take(1);
    judging.chain(pawl_decision::searching(job).lines().into_iter().take(1)).collect()
}

/// What has no effect, what cannot pay for itself, and what a cluster refuses unless the policy of its operator allows
/// it.
fn notes(job: &TrainingJob) -> Vec<String> {
    let policy = Policy::default().problems(job);
    let policy = policy.into_iter().map(|problem| format!("note: on a cluster with the default policy: {problem}"));
    warnings(job).into_iter().chain(policy).collect()
}

/// What has no effect, and what cannot pay for itself.
pub(super) fn warnings(job: &TrainingJob) -> Vec<String> {
    let warnings = pawl_api::warnings(job).into_iter().map(|problem| problem.to_string());
    warnings.chain(pawl_decision::judging(job).warning()).map(|problem| format!("warning: {problem}")).collect()
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

    #[test]
    fn what_a_search_takes_is_said_in_one_line() {
        let mut job = job(json!({}));
        assert!(totals(&job).is_empty());
        let stage = json!({"name": "rates", "trials": 8, "items": 500, "finalists": 1,
            "objectives": [{"metric": "loss", "goal": "Minimize"}],
            "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1"}]});
        job.spec.search = serde_json::from_value(json!([stage])).expect("stages");
        assert_eq!(totals(&job), ["search: at most 8 trials: 14 launches, 7,000 items"]);
    }

    #[test]
    fn a_phase_without_effect_is_a_warning() {
        let mut job = job(json!({}));
        let phases = json!([{"name": "prefetch", "settings": {"loaderPrefetch": 8}}]);
        job.spec.phases = serde_json::from_value(phases).expect("phases");
        let expected = "warning: spec.phases[0].settings.loaderPrefetch: has no effect without workers, so that the phase is not \
                        measured: set loaderWorkers to at least 1 in this phase or an earlier one";
        assert_eq!(notes(&job), [expected]);
    }
}
