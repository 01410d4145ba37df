//! `pawl status`, and the result of `pawl run`.

use super::{document, print, source, terminal};
use crate::args::{Output, StateArgs};
use pawl_api::TrainingJobStatus;
use pawl_api::spec::NO_STORAGE;
use pawl_display::summary;
use pawl_local::evidence;
use pawl_local::state::StateDir;
use pawl_local::state::document::Document;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The result as a document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobResult<'a> {
    job: &'a str,
    status: &'a TrainingJobStatus,
    /// Whether nothing works on the job any more, although it has not ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stopped: bool,
    paths: Paths,
}

/// Absolute paths of the job's files.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Paths {
    state: PathBuf,
    status: PathBuf,
    /// Absent, as the report, when the job is read from its storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<PathBuf>,
    /// The newest complete checkpoint, when checkpoints are in the state directory, or in the storage that is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<PathBuf>,
}

impl<'a> JobResult<'a> {
    /// The result of the job in `state`.
    pub fn new(state: &StateDir, finished: &'a Document) -> Self {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let training = finished.status.training.as_ref();
        let checkpoint = training.and_then(|training| Some(training.path(&training.last_checkpoint.as_ref()?.name)));
        let storage = finished.job.spec.train.checkpoint.storage.as_deref();
        let here = storage.is_none_or(|storage| storage == NO_STORAGE);
        let (own, checkpoints) = match state.storage() {
            Some(storage) => (None, Some(storage.to_owned())),
            None => (Some(state), here.then(|| state.checkpoints())),
        };
        let checkpoint = checkpoints.zip(checkpoint).map(|(place, name)| absolute(&place.join(name)));
        Self {
            job: finished.name(),
            status: &finished.status,
            stopped: source::has_stopped(state, finished.status.stage),
            paths: Paths {
                state: absolute(state.root()),
                status: absolute(&state.status()),
                events: own.map(|state| absolute(&state.events())),
                report: own.map(|state| absolute(&state.report())),
                // A copy may have the records alone.
                checkpoint: checkpoint.filter(|path| own.is_some() || path.exists()),
            },
        }
    }
}

/// The result as a table, as wide as the terminal; in a pipe nothing is truncated.
pub fn table(state: &StateDir, finished: &Document) -> String {
    let (width, colours) = terminal();
    summary::render(&finished.job, &finished.status, &evidence::places(state, finished), width, colours)
}

/// How the job goes on, if nothing works on it any more.
fn stopped(state: &StateDir, found: &Document) -> &'static str {
    if source::has_stopped(state, found.status.stage) {
        "stopped    repeat its command, such as `pawl run FILE`, to resume it\n"
    } else {
        ""
    }
}

/// Prints the status of a job.
pub fn status(args: &StateArgs, output: Output) -> ExitCode {
    let (state, found) = match source::recorded(args) {
        Ok(found) => found,
        Err(code) => return code,
    };
    print(&match output {
        Output::Table => table(&state, &found) + stopped(&state, &found),
        Output::Json => document(&JobResult::new(&state, &found), false),
        Output::Yaml => document(&JobResult::new(&state, &found), true),
    })
}
