//! Logs a job to the experiment trackers that the environment names: MLflow, by its REST API, TensorBoard and W&B, by
//! their files.

mod checksum;
mod events;
mod mlflow;
mod protobuf;
mod tensorboard;
mod wandb;

use mlflow::Server;
use pawl_display::track::JobRuns;
use std::path::PathBuf;
use std::time::Duration;
use wandb::Offline;

/// Longest time of logging a job once, for which a job waits at its end.
const LONGEST: Duration = Duration::from_secs(60);

/// The address of the tracking server, as for MLflow's own client.
const ADDRESS: &str = "MLFLOW_TRACKING_URI";
/// The folder of TensorBoard, as for the Trainer of Hugging Face.
const FOLDER: &str = "TENSORBOARD_LOGGING_DIR";
/// The directory in which W&B's client makes its own.
const PARENT: &str = "WANDB_DIR";

/// Why a job was not logged, or only in part.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// The address is not that of a server.
    #[error("MLFLOW_TRACKING_URI: {address}: {problem}")]
    Address {
        /// The address.
        address: String,
        /// The problem, and the remedy.
        problem: &'static str,
    },
    /// The server does not answer.
    #[error("{address}: {cause}: check MLFLOW_TRACKING_URI and the server")]
    Unreachable {
        /// Its address.
        address: String,
        /// The cause.
        cause: String,
    },
    /// The server refuses a request.
    #[error(
        "{address}/{call}: status {status}: {message}: check MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_ID and, for \
         access, MLFLOW_TRACKING_TOKEN or MLFLOW_TRACKING_USERNAME"
    )]
    Refused {
        /// Its address.
        address: String,
        /// The call of the API.
        call: &'static str,
        /// Status of HTTP.
        status: u16,
        /// What the server says.
        message: String,
    },
    /// The server answers what MLflow would not.
    #[error("{address}/{call}: the answer is not one of MLflow's: {cause}: check MLFLOW_TRACKING_URI")]
    Answer {
        /// Its address.
        address: String,
        /// The call of the API.
        call: &'static str,
        /// The cause.
        cause: serde_json::Error,
    },
    /// The folder cannot be written.
    #[error("{variable}: {}: {source}: choose a folder in which you can write", folder.display())]
    Folder {
        /// The variable that names it.
        variable: &'static str,
        /// The folder.
        folder: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// No variable names a tracker.
    #[error(
        "no tracker: set MLFLOW_TRACKING_URI to the address of a server, or TENSORBOARD_LOGGING_DIR or WANDB_DIR to a \
         folder"
    )]
    Unnamed,
    /// Only W&B's variable names one, and another turns W&B off.
    #[error(
        "no tracker: WANDB_MODE=disabled turns off that of WANDB_DIR: unset WANDB_MODE, or set MLFLOW_TRACKING_URI or \
         TENSORBOARD_LOGGING_DIR"
    )]
    Disabled,
    /// The server takes too long.
    #[error("{address}: not done after {} s: check MLFLOW_TRACKING_URI and the server", LONGEST.as_secs())]
    Slow {
        /// Its address.
        address: String,
    },
}

/// The experiment trackers of a job.
#[derive(Clone, Debug)]
pub struct Trackers {
    server: Option<Server>,
    folder: Option<PathBuf>,
    offline: Option<Offline>,
}

impl Trackers {
    /// The trackers that `variable`, the environment, names.
    ///
    /// # Errors
    /// [`TrackError::Unnamed`] and [`TrackError::Disabled`]: none; [`TrackError::Address`]: something other than a
    /// server that this build can reach.
    pub fn named(variable: impl Fn(&str) -> Option<String>) -> Result<Self, TrackError> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let server = given(ADDRESS).map(|address| Server::new(&address, given)).transpose()?;
        let folder = given(FOLDER).map(PathBuf::from);
        // Whoever disables W&B's client wants no runs for it.
        let is_off = given("WANDB_MODE").is_some_and(|mode| mode == "disabled");
        let parent = given(PARENT);
        let none = if is_off && parent.is_some() { TrackError::Disabled } else { TrackError::Unnamed };
        let offline = parent.filter(|_| !is_off).map(|parent| Offline::new(&parent, given));
        Self { server, folder, offline }.unless_empty().ok_or(none)
    }

    /// Those without the one that failed; `None`: it was the only one.
    pub fn without(&self, failed: &TrackError) -> Option<Self> {
        let is_of = |name| matches!(failed, TrackError::Folder { variable, .. } if *variable == name);
        let mut others = self.clone();
        if is_of(FOLDER) {
            others.folder = None;
        } else if is_of(PARENT) {
            others.offline = None;
        } else {
            others.server = None;
        }
        others.unless_empty()
    }

    fn unless_empty(self) -> Option<Self> {
        (self.server.is_some() || self.folder.is_some() || self.offline.is_some()).then_some(self)
    }

    /// Where they are: the address without a password, and the folders.
    pub fn places(&self) -> Vec<String> {
        let address = self.server.iter().map(|server| server.address().to_owned());
        let folders = self.folder.iter().chain(self.offline.iter().map(Offline::folder));
        address.chain(folders.map(|folder| folder.display().to_string())).collect()
    }

    /// Logs what is new of a job since it was logged last, whoever did that.
    ///
    /// # Errors
    /// [`TrackError`] of the first tracker that failed; the others are logged to all the same.
    pub async fn log(&self, runs: &JobRuns) -> Result<(), TrackError> {
        let failed =
            |variable, folder: &PathBuf, source| TrackError::Folder { variable, folder: folder.clone(), source };
        let by_folder = self
            .folder
            .as_ref()
            .map_or(Ok(()), |folder| tensorboard::write(folder, runs).map_err(|error| failed(FOLDER, folder, error)));
        let by_offline = self
            .offline
            .as_ref()
            .map_or(Ok(()), |offline| offline.write(runs).map_err(|error| failed(PARENT, offline.folder(), error)));
        let by_server = match &self.server {
            Some(server) => {
                let done = tokio::time::timeout(LONGEST, server.log(runs)).await;
                done.unwrap_or_else(|_| Err(TrackError::Slow { address: server.address().to_owned() }))
            }
            None => Ok(()),
        };
        by_folder.and(by_offline).and(by_server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_display::track::{Run, RunState};
    use std::collections::BTreeMap;

    fn named(variables: &[(&str, &str)]) -> Result<Trackers, TrackError> {
        Trackers::named(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_folder_that_cannot_be_written_keeps_nothing_from_other_trackers() {
        let dir = tempfile::tempdir().unwrap();
        let (file, wandb) = (dir.path().join("file"), dir.path().join("wandb"));
        std::fs::write(&file, "").unwrap();
        let trackers = named(&[(FOLDER, file.to_str().unwrap()), (PARENT, dir.path().to_str().unwrap())]).unwrap();
        let job = Run {
            key: "job".to_owned(),
            name: "toy".to_owned(),
            state: RunState::Finished,
            settings: BTreeMap::new(),
            tags: BTreeMap::from([("verdict", "Accepted".to_owned())]),
            metrics: BTreeMap::new(),
        };
        let runs = JobRuns { uid: "u-1".to_owned(), job, children: Vec::new() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(trackers.log(&runs)).unwrap_err();
        assert!(matches!(error, TrackError::Folder { variable: FOLDER, .. }), "{error:?}");
        assert!(wandb.read_dir().unwrap().next().is_some());
        let others = trackers.without(&error).unwrap();
        assert_eq!(others.places(), [wandb.display().to_string()]);
        runtime.block_on(others.log(&runs)).unwrap();
    }

    #[test]
    fn without_a_tracker_the_error_says_what_turns_it_off() {
        assert!(matches!(named(&[]), Err(TrackError::Unnamed)));
        let off = [(PARENT, "logs"), ("WANDB_MODE", "disabled")];
        assert!(matches!(named(&off), Err(TrackError::Disabled)));
        let other = named(&[off[0], off[1], (FOLDER, "runs")]).unwrap();
        assert_eq!(other.places(), ["runs"]);
    }
}
