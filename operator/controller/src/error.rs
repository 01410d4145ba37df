//! Why a reconcile failed.

use std::time::Duration;

/// An object that is being deleted is reported when it is still there after this time: most are gone within seconds.
const LEAVING: Duration = Duration::from_secs(10);
/// Another failure, such as a webhook that does not answer, is reported when it lasts longer than this: an API server
/// that is restarted is away for less.
const LASTING: Duration = Duration::from_secs(120);

/// Why a reconcile failed. It is made again, after a wait that grows with each failure of the same job.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error("cannot {doing}: {source}")]
    Api {
        /// What was being done, such as `create batch Job toy-1`.
        doing: String,
        /// Why not.
        source: kube::Error,
    },
    /// Something else has the name of an object that an attempt needs.
    #[error("{kind} {name} is not this job's: {why}: delete it, or rename the job")]
    Taken {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// How that is known.
        why: String,
    },
    /// An object of an attempt cannot be made yet: an earlier one of its name is being deleted, or will be.
    #[error("{kind} {name} {why}")]
    Leaving {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What it waits for.
        why: String,
    },
    /// The queue of an attempt would run its pods in another cluster; no batch Job of it is left.
    #[error(
        "the queue {queue} would run batch Job {name} in another cluster (MultiKueue), where nobody reads its reports: name a queue \
         without MultiKueue in the label kueue.x-k8s.io/queue-name of the TrainingJob, or create it in that cluster"
    )]
    Elsewhere {
        /// Name of the batch Job.
        name: String,
        /// The queue.
        queue: String,
    },
    /// The decision was made on data that are not the newest; nothing was done.
    #[error("the job changed meanwhile")]
    Stale,
    /// A plan or a token could not be made.
    #[error("cannot make {what}: {why}")]
    Local {
        /// What.
        what: &'static str,
        /// Why not.
        why: String,
    },
}

impl Error {
    /// The kind of error, from a fixed set, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Api { source, .. } if fenced(source) => "fenced",
            Self::Api { source: kube::Error::Api(status), .. } => match status.code {
                401 => "unauthorized",
                403 => "forbidden",
                409 => "conflict",
                400 | 422 => "invalid",
                429 => "throttled",
                _ => "api",
            },
            Self::Api { .. } => "unreachable",
            Self::Taken { .. } => "taken",
            Self::Leaving { .. } => "leaving",
            Self::Elsewhere { .. } => "elsewhere",
            Self::Stale => "stale",
            Self::Local { .. } => "local",
        }
    }

    /// How long it must have lasted before the condition `Stalled` reports it; `None`: never. What the API server
    /// rejects, somebody has to change: that is reported at once.
    pub fn reported_after(&self) -> Option<Duration> {
        match self {
            Self::Api { source, .. } if fenced(source) => None,
            Self::Api { source, .. } if matches!(code(source), Some(400 | 403 | 422)) => Some(Duration::ZERO),
            Self::Taken { .. } | Self::Elsewhere { .. } => Some(Duration::ZERO),
            Self::Leaving { .. } => Some(LEAVING),
            Self::Api { .. } | Self::Local { .. } => Some(LASTING),
            Self::Stale => None,
        }
    }
}

/// Whether nothing was sent, because this replica does not lead any more.
fn fenced(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(source) if source.is::<crate::leader::Fenced>())
}

/// The HTTP status with which the API server refused a request.
pub fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Says what was being done when a request failed.
pub trait Doing<T> {
    /// `doing` is a verb and its object, such as `create batch Job toy-1`.
    ///
    /// # Errors
    /// [`Error::Api`].
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Doing<T> for kube::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Api { doing: doing(), source })
    }
}
