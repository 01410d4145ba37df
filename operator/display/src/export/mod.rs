//! The trials of a search for other programs: CSV, JSON, or a study that Optuna reads.

mod json;
mod optuna;
mod rows;

use crate::search::{begun, unit};
use pawl_api::search::{History, history};
use pawl_api::spec::Search;
use pawl_api::status::SearchStatus;
use pawl_api::{TrainingJob, TrainingJobStatus};

/// A format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One row per trial of all stages; see [`render`].
    Csv,
    /// One document with the parameters, trials, finalists and winner of each stage.
    Json,
    /// The log of Optuna's `JournalStorage`: one study per stage, named `JOB/STAGE`.
    Optuna,
}

/// Why nothing can be exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The job has no search.
    #[error("job {job:?} has no search: add spec.search to its manifest")]
    NoSearch {
        /// Name of the job.
        job: String,
    },
    /// No stage has begun.
    #[error("the search of job {job:?} has not started yet: it follows the phases")]
    NotStarted {
        /// Name of the job.
        job: String,
    },
    /// The trials in the status are not those of the spec.
    #[error(
        "the trials of search {stage:?} do not have the parameters of the spec, which has changed: export them when the search has begun anew"
    )]
    Changed {
        /// Name of the stage.
        stage: String,
    },
}

/// A stage with its trials.
struct Stage<'a> {
    search: &'a Search,
    status: &'a SearchStatus,
    history: History,
}

impl Stage<'_> {
    /// Unit of `full` and of the reports.
    const fn unit(&self) -> &'static str {
        unit(self.search)
    }

    /// Names of the objectives.
    fn metrics(&self) -> impl Iterator<Item = &str> {
        self.search.objectives.iter().map(|objective| objective.metric.as_str())
    }
}

/// The trials of all stages of `job` that have begun.
///
/// The CSV has a row per trial, with the columns `stage`, `trial`, `state`, `cause` (of an infeasible trial), `trained`
/// and `unit` (epochs or items up to the newest value), `itemsPerSecond`, `lastValue` (the newest value of the first
/// objective), `value.METRIC` (the final values of a complete trial) and `parameter.NAME`. What is not known is empty.
///
/// # Errors
/// [`ExportError`]: there is no search, or no trial, or the trials are those of another spec.
pub fn render(job: &TrainingJob, status: &TrainingJobStatus, format: Format) -> Result<String, ExportError> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    if job.spec.search.is_empty() {
        return Err(ExportError::NoSearch { job: name.to_owned() });
    }
    let read = |(search, status): (_, _)| match history(search, status) {
        Some(history) => Ok(Stage { search, status, history }),
        None => Err(ExportError::Changed { stage: search.name.clone() }),
    };
    let stages: Vec<Stage<'_>> = begun(&job.spec, status).map(read).collect::<Result<_, _>>()?;
    if stages.is_empty() {
        return Err(ExportError::NotStarted { job: name.to_owned() });
    }
    Ok(match format {
        Format::Csv => rows::render(&stages),
        Format::Json => json::render(name, &stages),
        Format::Optuna => optuna::render(name, &stages),
    })
}

#[cfg(test)]
mod tests;
