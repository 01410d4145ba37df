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
    /// The server takes too long.
    #[error("{address}: not done after {} s: check MLFLOW_TRACKING_URI and the server", LONGEST.as_secs())]
    Slow {
        /// Its address.
        address: String,
    },
}

/// The experiment trackers of a job.
#[derive(Debug)]
pub struct Trackers {
    server: Option<Server>,
    folder: Option<PathBuf>,
    offline: Option<Offline>,
}

impl Trackers {
    /// The trackers that `variable`, the environment, names.
    ///
    /// # Errors
    /// [`TrackError::Unnamed`]: none; [`TrackError::Address`]: something other than a server that this build can reach.
    pub fn named(variable: impl Fn(&str) -> Option<String>) -> Result<Self, TrackError> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let server = given(ADDRESS).map(|address| Server::new(&address, given)).transpose()?;
        let folder = given(FOLDER).map(PathBuf::from);
        // Whoever disables W&B's client wants no runs for it.
        let is_off = given("WANDB_MODE").is_some_and(|mode| mode == "disabled");
        let offline = given(PARENT).filter(|_| !is_off).map(|parent| Offline::new(&parent, given));
        let is_named = server.is_some() || folder.is_some() || offline.is_some();
        if is_named { Ok(Self { server, folder, offline }) } else { Err(TrackError::Unnamed) }
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
    /// [`TrackError`]; what was logged before it stays.
    pub async fn log(&self, runs: &JobRuns) -> Result<(), TrackError> {
        let failed =
            |variable, folder: &PathBuf, source| TrackError::Folder { variable, folder: folder.clone(), source };
        if let Some(folder) = &self.folder {
            tensorboard::write(folder, runs).map_err(|error| failed(FOLDER, folder, error))?;
        }
        if let Some(offline) = &self.offline {
            offline.write(runs).map_err(|error| failed(PARENT, offline.folder(), error))?;
        }
        let Some(server) = &self.server else { return Ok(()) };
        let done = tokio::time::timeout(LONGEST, server.log(runs)).await;
        done.unwrap_or_else(|_| Err(TrackError::Slow { address: server.address().to_owned() }))
    }
}
