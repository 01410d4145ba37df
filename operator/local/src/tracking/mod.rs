//! Logs a job to the experiment tracker that the environment names: MLflow, by its REST API.

mod mlflow;

use mlflow::Server;
use pawl_display::track::JobRuns;
use std::time::Duration;

/// Longest time of logging a job once: nothing waits for a tracker that is slow.
const LONGEST: Duration = Duration::from_secs(60);

/// The address of the tracking server, as for MLflow's own client.
pub const ADDRESS: &str = "MLFLOW_TRACKING_URI";

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
    #[error("{address}/{call}: status {status}: {message}")]
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
    /// The server takes too long.
    #[error("{address}: not done after {} s", LONGEST.as_secs())]
    Slow {
        /// Its address.
        address: String,
    },
}

/// The experiment tracker of a job.
#[derive(Debug)]
pub struct Tracker {
    server: Server,
}

impl Tracker {
    /// The tracker that `variable`, the environment, names; `None`: none.
    ///
    /// # Errors
    /// [`TrackError::Address`]: it names something other than a server that this build can reach.
    pub fn named(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, TrackError> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let Some(address) = given(ADDRESS) else { return Ok(None) };
        Ok(Some(Self { server: Server::new(&address, given)? }))
    }

    /// Its address, without a password.
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// Logs what is new of a job since it was logged last, whoever did that.
    ///
    /// # Errors
    /// [`TrackError`]; what was logged before it stays.
    pub async fn log(&self, runs: &JobRuns) -> Result<(), TrackError> {
        let done = tokio::time::timeout(LONGEST, self.server.log(runs)).await;
        done.unwrap_or_else(|_| Err(TrackError::Slow { address: self.address().to_owned() }))
    }
}
