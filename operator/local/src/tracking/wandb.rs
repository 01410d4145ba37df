//! Runs as the directories that wandb writes without a server, and that `wandb sync` uploads:
//! `offline-run-DATE-ID/run-ID.wandb`, a log of records, and beside it `files` for people.

mod log;
mod records;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use pawl_display::track::{JobRuns, Run};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The project, unless a variable names another one.
const PROJECT: &str = "pawl";
/// Begins the names of directories that were written without a server.
const OFFLINE: &str = "offline-run-";
/// The time in them.
const TIME: &str = "%Y%m%d_%H%M%S";
/// Bytes of the identifier of a run.
const ID: usize = 8;
/// Characters of the job's identifier in the name of the group.
const SHORT: usize = 8;

/// Where runs are written, and to where `wandb sync` uploads them.
#[derive(Clone, Debug)]
pub(super) struct Offline {
    /// The directory of all runs.
    folder: PathBuf,
    project: String,
    /// The user or the team; none is the default one of whoever uploads them.
    entity: Option<String>,
}

/// What is written into all runs of a job.
struct Place<'a> {
    project: &'a str,
    entity: Option<&'a str>,
    /// Name of the group, which is the job.
    group: String,
}

impl Offline {
    /// Runs in the directory `wandb` of `parent`, with the variables of W&B.
    pub(super) fn new(parent: &str, variable: impl Fn(&str) -> Option<String>) -> Self {
        let project = variable("WANDB_PROJECT").unwrap_or_else(|| PROJECT.to_owned());
        Self { folder: Path::new(parent).join("wandb"), project, entity: variable("WANDB_ENTITY") }
    }

    pub(super) const fn folder(&self) -> &PathBuf {
        &self.folder
    }

    /// Writes all runs, each in place of what was written of it before.
    ///
    /// # Errors
    /// [`io::Error`] when a directory or a file cannot be read or written.
    pub(super) fn write(&self, runs: &JobRuns) -> io::Result<()> {
        let short: String = runs.uid.chars().take(SHORT).collect();
        let group = format!("{}-{short}", runs.job.name);
        let place = Place { project: &self.project, entity: self.entity.as_deref(), group };
        fs::create_dir_all(&self.folder)?;
        let mut all = std::iter::once(&runs.job).chain(&runs.children);
        all.try_for_each(|run| self.write_run(&place, &runs.uid, run))
    }

    fn write_run(&self, place: &Place<'_>, uid: &str, run: &Run) -> io::Result<()> {
        let digest = Sha256::digest(format!("{uid}/{}", run.key));
        let id: String = digest.iter().take(ID).map(|byte| format!("{byte:02x}")).collect();
        let (directory, began) = self.directory(&id)?;
        let rows = records::rows(run, began);
        let content = records::encode(place, &id, run, &rows, began);
        let path = directory.join(format!("run-{id}.wandb"));
        // What was uploaded already stays marked as such.
        if fs::read(&path).is_ok_and(|written| written == content) {
            return Ok(());
        }
        let files = directory.join("files");
        fs::create_dir_all(&files)?;
        pawl_durable::write(&files.join("config.yaml"), config(&records::config(run)).as_bytes())?;
        let summary = Value::from(records::summary(run, &rows)).to_string();
        pawl_durable::write(&files.join("wandb-summary.json"), summary.as_bytes())?;
        match fs::remove_file(directory.join(format!("run-{id}.wandb.synced"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => pawl_durable::write(&path, &content),
        }
    }

    /// The directory of a run and the time in its name, which are those of when the run was written first.
    fn directory(&self, id: &str) -> io::Result<(PathBuf, Timestamp)> {
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let time = name.to_str().and_then(|name| name.strip_prefix(OFFLINE)?.strip_suffix(id)?.strip_suffix('-'));
            if let Some(began) = time.and_then(of_name) {
                return Ok((self.folder.join(name), began));
            }
        }
        // Whole seconds, as in the name.
        let began = Timestamp::from_second(Timestamp::now().as_second()).map_err(io::Error::other)?;
        Ok((self.folder.join(format!("{OFFLINE}{}-{id}", began.strftime(TIME))), began))
    }
}

/// The time, UTC, in the name of a directory.
fn of_name(time: &str) -> Option<Timestamp> {
    let time = DateTime::strptime(TIME, time).ok()?.to_zoned(TimeZone::UTC).ok()?;
    Some(time.timestamp())
}

/// The settings of a run as wandb writes them. JSON is YAML.
fn config(settings: &Map<String, Value>) -> String {
    settings.iter().map(|(name, value)| format!("{}:\n    value: {value}\n", Value::from(name.as_str()))).collect()
}

#[cfg(test)]
mod tests;
