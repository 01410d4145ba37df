//! Why there is no page.

use super::action::ActionError;
use super::source::JobError;
#[cfg(feature = "cluster")]
use crate::commands::kubectl::error::ClusterError;
use axum::http::StatusCode;
#[cfg(feature = "cluster")]
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use pawl_display::ui::list::choice;
use pawl_display::ui::query::QueryError;
use pawl_display::ui::search::OrderError;
use pawl_display::ui::{compare, problem};
use pawl_local::state::StateError;
use tokio::task::JoinError;

/// Most jobs beside each other.
pub const MOST_COMPARED: usize = compare::MOST;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error(transparent)]
    Action(#[from] ActionError),
    #[error("name 2 to {MOST_COMPARED} jobs to compare, as in /compare?job=A&job=B: this address names {0}")]
    Number(usize),
    #[error("job: \"{0}\": not in the list of jobs: choose one there")]
    Unknown(String),
    #[error("job: \"{name}\": {} jobs have this name: choose one of them", .keys.len())]
    Several {
        /// Their name.
        name: String,
        /// What addresses each of them.
        keys: Vec<String>,
    },
    #[error("{0}: not a page: choose a job in the list")]
    NoPage(String),
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("jobs cannot be changed here: start pawl ui with --cluster --allow-actions")]
    ReadOnly,
    #[error(
        "token: not that of a page of this server, which has been started again, or of another session: reload the page"
    )]
    Token,
    /// Nobody is logged in.
    #[cfg(feature = "cluster")]
    #[error("log in first, at /login")]
    LogIn {
        /// Whether there was a session.
        ended: bool,
    },
    #[cfg(feature = "cluster")]
    #[error("the API server does not accept the token of this request: it is wrong, or has expired")]
    NotAccepted,
    #[cfg(feature = "cluster")]
    #[error("no random numbers: {0}")]
    Random(std::io::Error),
    #[error("the page could not be made: {0}")]
    Failed(#[from] JoinError),
}

impl From<StateError> for PageError {
    fn from(error: StateError) -> Self {
        Self::Job(error.into())
    }
}

impl PageError {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Query(_) | Self::Order(_) | Self::Number(_) | Self::Action(_) => StatusCode::BAD_REQUEST,
            Self::Unknown(_) | Self::Several { .. } | Self::NoPage(_) => StatusCode::NOT_FOUND,
            Self::ReadOnly | Self::Token => StatusCode::FORBIDDEN,
            Self::Job(error) => of_job(error),
            #[cfg(feature = "cluster")]
            Self::LogIn { .. } | Self::NotAccepted => StatusCode::UNAUTHORIZED,
            #[cfg(feature = "cluster")]
            Self::Random(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

const fn of_job(error: &JobError) -> StatusCode {
    match error {
        JobError::State(StateError::Absent { .. }) => StatusCode::NOT_FOUND,
        #[cfg(feature = "cluster")]
        JobError::Gone => StatusCode::NOT_FOUND,
        JobError::State(_) => StatusCode::INTERNAL_SERVER_ERROR,
        JobError::NoOperator => StatusCode::FORBIDDEN,
        #[cfg(feature = "cluster")]
        JobError::Cluster(error) => of_cluster(error),
    }
}

#[cfg(feature = "cluster")]
const fn of_cluster(error: &ClusterError) -> StatusCode {
    match error {
        ClusterError::Forbidden { .. } => StatusCode::FORBIDDEN,
        ClusterError::NoJob { .. } | ClusterError::NoPhase { .. } | ClusterError::NoNamespace(_) => {
            StatusCode::NOT_FOUND
        }
        ClusterError::Refused(_) | ClusterError::Nothing(_) => StatusCode::CONFLICT,
        ClusterError::Configuration(_)
        | ClusterError::Unreachable { .. }
        | ClusterError::NotInstalled
        | ClusterError::Answer { .. }
        | ClusterError::File(_)
        | ClusterError::Output(_) => StatusCode::BAD_GATEWAY,
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        #[cfg(feature = "cluster")]
        match self {
            Self::LogIn { ended } => {
                let form = if ended { "/login?ended" } else { "/login" };
                return (StatusCode::SEE_OTHER, [(header::LOCATION, form)]).into_response();
            }
            Self::NotAccepted => {
                let asks = [(header::WWW_AUTHENTICATE, "Bearer")];
                return (self.status(), asks, Html(problem("Not logged in", &self.to_string()))).into_response();
            }
            _ => {}
        }
        let title = match self.status() {
            StatusCode::BAD_REQUEST => "Not a valid address",
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::CONFLICT => "Not changed",
            _ => "Error",
        };
        let page = match &self {
            Self::Several { keys, .. } => choice(title, &self.to_string(), keys),
            _ => problem(title, &self.to_string()),
        };
        (self.status(), Html(page)).into_response()
    }
}
