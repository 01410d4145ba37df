//! Errors of commands on a cluster, each with its remedy.

use crate::commands::output::OutputError;
use crate::exit;
use kube::core::Status;

/// Error of a command on a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No usable kubeconfig.
    #[error(
        "the cluster's configuration: {0}\n  name a kubeconfig with --kubeconfig or $KUBECONFIG, a context with --context"
    )]
    Configuration(String),
    /// The API server is unreachable.
    #[error("the API server at {server}: {cause}\n  is it running, and does --context select the right cluster?")]
    Unreachable {
        /// Its address.
        server: String,
        /// What happened.
        cause: String,
    },
    /// The TrainingJob CRD is not installed.
    #[error(
        "this cluster has no TrainingJobs: install Pawl with `helm install pawl oci://ghcr.io/pawl-dev/charts/pawl \
         --namespace pawl-system --create-namespace`"
    )]
    NotInstalled,
    /// The namespace does not exist.
    #[error("{0}: create the namespace first")]
    NoNamespace(String),
    /// There is no such job.
    #[error("namespace {namespace:?} has no TrainingJob {name:?}{}", suggested(.near))]
    NoJob {
        /// Name that was requested.
        name: String,
        /// Namespace.
        namespace: String,
        /// Jobs with similar names.
        near: Vec<String>,
    },
    /// The job has no such phase.
    #[error("job {job:?} has no phase {name:?}{}", suggested(.near))]
    NoPhase {
        /// The job.
        job: String,
        /// Name that was requested.
        name: String,
        /// Phases with similar names; all phases when there are none.
        near: Vec<String>,
    },
    /// The user lacks permission.
    #[error(
        "you are not allowed to {verb} {resource} in namespace {namespace:?}: a Role with the verb {verb:?} on {resource} is required\n  response of the API server: {message}"
    )]
    Forbidden {
        /// Attempted verb.
        verb: &'static str,
        /// Resource.
        resource: &'static str,
        /// Namespace.
        namespace: String,
        /// Message of the API server.
        message: String,
    },
    /// The API server rejected the request as invalid.
    #[error("rejected by the API server: {0}")]
    Refused(String),
    /// Nothing to show.
    #[error("{0}")]
    Nothing(String),
    /// Any other error of the API server.
    #[error("cannot {verb} {resource}: {message}")]
    Answer {
        /// Attempted verb.
        verb: &'static str,
        /// Resource.
        resource: &'static str,
        /// Message of the API server.
        message: String,
    },
    /// The file that the command line names as output exists, or cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A file cannot be written, or a stream was interrupted.
    #[error("{0}")]
    File(String),
}

fn suggested(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!("; available: {}", names.join(", ")),
    }
}

impl ClusterError {
    /// What happened, without the options of the command that may help: for users of a page, who did not give it.
    pub fn cause(&self) -> String {
        match self {
            Self::Configuration(cause) => cause.clone(),
            Self::Unreachable { server, cause } => format!("the API server at {server}: {cause}"),
            other => other.to_string(),
        }
    }

    /// The exit code.
    pub const fn code(&self) -> u8 {
        match self {
            Self::NoNamespace(_)
            | Self::NoJob { .. }
            | Self::NoPhase { .. }
            | Self::Refused(_)
            | Self::Nothing(_)
            | Self::Output(_) => exit::INPUT,
            Self::Configuration(_)
            | Self::Unreachable { .. }
            | Self::NotInstalled
            | Self::Forbidden { .. }
            | Self::Answer { .. } => exit::CLUSTER,
            Self::File(_) => exit::FAILED,
        }
    }
}

/// A request to the API server, for its error.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The verb, as a Role names it.
    pub verb: &'static str,
    /// The resource, as kubectl names it.
    pub resource: &'static str,
    /// Namespace.
    pub namespace: &'a str,
    /// Address of the API server.
    pub server: &'a str,
}

impl Request<'_> {
    /// Classifies `error`, the failure of this request.
    pub fn failed(&self, error: kube::Error) -> ClusterError {
        let Self { verb, resource, .. } = *self;
        match error {
            kube::Error::Api(status) => self.answered(*status),
            kube::Error::Service(_) | kube::Error::HyperError(_) => {
                ClusterError::Unreachable { server: self.server.to_owned(), cause: deepest(&error) }
            }
            kube::Error::Auth(cause) => ClusterError::Configuration(deepest(&cause)),
            kube::Error::SerdeError(cause) => ClusterError::Answer {
                verb,
                resource,
                message: format!(
                    "the object in the cluster has the format of another Pawl version ({cause}): use the version of the operator"
                ),
            },
            other => ClusterError::Answer { verb, resource, message: deepest(&other) },
        }
    }

    fn answered(&self, status: Status) -> ClusterError {
        let Self { verb, resource, namespace, .. } = *self;
        let named = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
        let message = if status.message.is_empty() { status.reason.clone() } else { status.message.clone() };
        let kind = status.details.as_ref().map(|details| details.kind.as_str());
        match status.code {
            404 if kind == Some("namespaces") => ClusterError::NoNamespace(message),
            401 => ClusterError::Configuration(format!("the API server rejected your credentials ({message})")),
            403 => ClusterError::Forbidden { verb, resource, namespace: namespace.to_owned(), message },
            // The response names an unknown object, but not an unknown kind of object.
            404 if !named && resource.ends_with(".pawl.dev") => ClusterError::NotInstalled,
            400 | 409 | 422 => ClusterError::Refused(message),
            _ => ClusterError::Answer { verb, resource, message },
        }
    }
}

/// The innermost cause: the outer ones carry no information.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}
