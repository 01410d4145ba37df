//! `pawl list` and `pawl compare`.

use super::{document, print, source, terminal};
use crate::args::Output;
use crate::exit;
use pawl_api::status::Stage;
use pawl_contract::decimal::Decimal;
use pawl_display::compared;
use pawl_display::jobs::{self, Entry};
use pawl_display::provenance::MeasuredWith;
use pawl_local::evidence;
use pawl_local::state::document::Document;
use pawl_local::state::{DEFAULT_ROOT, StateError, records};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A job that was run here.
struct Found {
    /// Its state directory.
    place: String,
    document: Document,
    /// Whether nothing works on it any more, although it has not ended.
    stopped: bool,
    /// What its attempts were measured with, where jobs are compared.
    measured_with: Vec<MeasuredWith>,
}

impl Found {
    fn entry(&self) -> Entry<'_> {
        let Document { job, status, .. } = &self.document;
        Entry { job, status, place: &self.place, measured_with: &self.measured_with, stopped: self.stopped }
    }

    fn listed(&self) -> Listed<'_> {
        let status = &self.document.status;
        Listed {
            job: self.document.name(),
            stage: status.stage,
            stopped: self.stopped,
            speedup: status.speedup.as_ref(),
            progress: &status.progress,
            state: &self.place,
        }
    }
}

/// A job as a part of a document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed<'a> {
    job: &'a str,
    stage: Stage,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stopped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    speedup: Option<&'a Decimal>,
    progress: &'a str,
    state: &'a str,
}

/// Prints the jobs whose state is in one of these directories, by name. What cannot be read is reported, and does not
/// hide the others.
pub fn list(directories: &[PathBuf], output: Output) -> ExitCode {
    // The first run makes the usual one.
    let is_missing = |directory: &&PathBuf| !directory.is_dir() && directory.as_path() != Path::new(DEFAULT_ROOT);
    if let Some(missing) = directories.iter().find(is_missing) {
        let remedy = format!("name a directory of state directories or of storages, or none for {DEFAULT_ROOT}");
        return exit::with_error(exit::INPUT, &format!("{}: no such directory: {remedy}", missing.display()));
    }
    let (mut found, mut unreadable) = (Vec::new(), None);
    for directory in directories {
        let states = match source::states(directory) {
            Ok(states) => states,
            Err(error) => return exit::with_error(exit::STATE, &format!("{}: {error}", directory.display())),
        };
        for state in states {
            match records::document(&state) {
                Ok(document) => {
                    let place = state.root().display().to_string();
                    let stopped = source::has_stopped(&state, document.status.stage);
                    found.push(Found { place, document, stopped, measured_with: Vec::new() });
                }
                Err(StateError::Absent { .. }) => {}
                Err(error) => unreadable = Some(exit::with_error(exit::STATE, &error)),
            }
        }
    }
    found.sort_by(|a, b| a.document.name().cmp(b.document.name()));
    let printed = match output {
        Output::Table => print(&jobs::list(&found.iter().map(Found::entry).collect::<Vec<_>>(), terminal().0)),
        Output::Json | Output::Yaml => {
            let listed: Vec<Listed<'_>> = found.iter().map(Found::listed).collect();
            print(&document(&listed, output == Output::Yaml))
        }
    };
    unreadable.unwrap_or(printed)
}

/// Prints two jobs beside each other.
pub fn compare(named: &[PathBuf]) -> ExitCode {
    match named.iter().map(|job| load(job)).collect::<Result<Vec<Found>, ExitCode>>() {
        Ok(found) => match &found[..] {
            [first, second] => print(&compared::compare(first.entry(), second.entry(), terminal().0)),
            _ => exit::with_error(exit::INPUT, &"two jobs are compared"),
        },
        Err(code) => code,
    }
}

/// The job of a state directory, of a manifest, or of a name.
fn load(job: &Path) -> Result<Found, ExitCode> {
    let (state, document) = source::recorded(&source::named(job))?;
    let measured_with = evidence::measured_with(&state).map_err(|error| exit::with_error(exit::STATE, &error))?;
    let stopped = source::has_stopped(&state, document.status.stage);
    Ok(Found { place: state.root().display().to_string(), document, stopped, measured_with })
}
