//! `kubectl pawl status`.

use super::error::ClusterError;
use super::session::Session;
use crate::args::Output;
use crate::commands::{document, print, terminal};
use crate::exit;
use pawl_api::spec::NO_STORAGE;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_display::summary::{self, Places};
use serde::Serialize;
use std::process::ExitCode;

/// The status as a document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    namespace: &'a str,
    job: &'a str,
    status: &'a TrainingJobStatus,
}

/// Prints the status of a job.
pub async fn status(session: &Session, name: &str, output: Output) -> Result<ExitCode, ClusterError> {
    let job = session.job(name).await?;
    let printed = print(&text(session, &job, output));
    if let Some(note) = note(&job) {
        exit::say(&note);
    }
    Ok(printed)
}

/// The status of `job` in the requested format.
pub fn text(session: &Session, job: &TrainingJob, output: Output) -> String {
    let unseen = TrainingJobStatus::default();
    let status = job.status.as_ref().unwrap_or(&unseen);
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let whole = Document { namespace: &session.namespace, job: name, status };
    match output {
        Output::Table => {
            let (width, colours) = terminal();
            summary::render(job, status, &places(job), width, colours)
        }
        Output::Json => document(&whole, false),
        Output::Yaml => document(&whole, true),
    }
}

/// Location of the job's checkpoints: without storage, they are deleted with its pods.
fn places(job: &TrainingJob) -> Places {
    let training = job.status.as_ref().and_then(|status| status.training.as_ref());
    let storage = training.and_then(|training| training.storage.clone()).filter(|storage| storage != NO_STORAGE);
    Places { checkpoints: storage, report: None }
}

/// Note on a missing or outdated status.
pub fn note(job: &TrainingJob) -> Option<String> {
    let generation = job.metadata.generation;
    match &job.status {
        None => Some("note: no operator has reconciled this job yet: is Pawl running?".to_owned()),
        Some(status) if status.observed_generation < generation => Some(format!(
            "note: the status is of generation {} of the spec; generation {} has not been reconciled yet",
            status.observed_generation.unwrap_or(0),
            generation.unwrap_or(0),
        )),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(generation: i64, observed: Option<i64>) -> TrainingJob {
        let mut job: TrainingJob = serde_json::from_value(serde_json::json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy", "generation": generation},
            "spec": {"workload": {"name": "ups"}},
        }))
        .unwrap();
        job.status = observed
            .map(|observed| TrainingJobStatus { observed_generation: Some(observed), ..TrainingJobStatus::default() });
        job
    }

    #[test]
    fn an_outdated_or_missing_status_is_noted() {
        assert_eq!(note(&job(2, Some(2))), None);
        assert!(
            note(&job(3, Some(2))).is_some_and(|note| note.contains("generation 2") && note.contains("generation 3"))
        );
        assert!(note(&job(1, None)).is_some_and(|note| note.contains("no operator")));
    }
}
