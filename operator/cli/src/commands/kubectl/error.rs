//! What goes wrong with a cluster, in words that say what to do.

use crate::exit;
use kube::core::Status;

/// Why a command on a cluster could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is no usable kubeconfig.
    #[error(
        "the cluster's configuration: {0}\n  name a kubeconfig with --kubeconfig or $KUBECONFIG, a context with --context"
    )]
    Configuration(String),
    /// The API server was not reached.
    #[error("the API server at {server}: {cause}\n  is it up, and is --context the cluster that you mean?")]
    Unreachable {
        /// Its address.
        server: String,
        /// What happened.
        cause: String,
    },
    /// The cluster does not know TrainingJobs.
    #[error(
        "this cluster has no TrainingJobs: install Pawl with `helm install pawl charts/pawl --namespace pawl-system --create-namespace`"
    )]
    NotInstalled,
    /// There is no such job.
    #[error("namespace {namespace:?} has no TrainingJob {name:?}{}", suggested(.near))]
    NoJob {
        /// What was asked for.
        name: String,
        /// Where.
        namespace: String,
        /// Jobs with names like it.
        near: Vec<String>,
    },
    /// The job has no such phase.
    #[error("job {job:?} has no phase {name:?}{}", suggested(.near))]
    NoPhase {
        /// The job.
        job: String,
        /// What was asked for.
        name: String,
        /// Phases with names like it; all when none is.
        near: Vec<String>,
    },
    /// The user may not do this.
    #[error(
        "you may not {verb} {resource} in namespace {namespace:?}: ask for a Role with the verb {verb:?} on {resource}\n  the API server says: {message}"
    )]
    Forbidden {
        /// What was tried.
        verb: &'static str,
        /// On what.
        resource: &'static str,
        /// Where.
        namespace: String,
        /// The API server's words.
        message: String,
    },
    /// The API server says that the input is wrong.
    #[error("the API server refuses it: {0}")]
    Refused(String),
    /// There is nothing to show.
    #[error("{0}")]
    Nothing(String),
    /// The API server answered something else.
    #[error("cannot {verb} {resource}: {message}")]
    Answer {
        /// What was tried.
        verb: &'static str,
        /// On what.
        resource: &'static str,
        /// Its answer.
        message: String,
    },
    /// A file that cannot be written, or a stream that broke off.
    #[error("{0}")]
    File(String),
}

fn suggested(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!("; there is {}", names.join(", ")),
    }
}

impl ClusterError {
    /// The exit code.
    pub const fn code(&self) -> u8 {
        match self {
            Self::NoJob { .. } | Self::NoPhase { .. } | Self::Refused(_) | Self::Nothing(_) => exit::INPUT,
            Self::Configuration(_)
            | Self::Unreachable { .. }
            | Self::NotInstalled
            | Self::Forbidden { .. }
            | Self::Answer { .. } => exit::CLUSTER,
            Self::File(_) => exit::FAILED,
        }
    }
}

/// What was tried on the API server.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The verb, as a Role names it.
    pub verb: &'static str,
    /// The resource, as kubectl names it.
    pub resource: &'static str,
    /// Where.
    pub namespace: &'a str,
    /// Address of the API server.
    pub server: &'a str,
}

impl Request<'_> {
    /// What `error`, the answer to this request, means.
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
                    "what the cluster holds is not of this version of Pawl ({cause}): use the same version"
                ),
            },
            other => ClusterError::Answer { verb, resource, message: deepest(&other) },
        }
    }

    fn answered(&self, status: Status) -> ClusterError {
        let Self { verb, resource, namespace, .. } = *self;
        let named = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
        let message = if status.message.is_empty() { status.reason.clone() } else { status.message.clone() };
        match status.code {
            401 => ClusterError::Configuration(format!("the API server does not know who you are ({message})")),
            403 => ClusterError::Forbidden { verb, resource, namespace: namespace.to_owned(), message },
            // An unknown object is named in the answer; an unknown kind of object is not.
            404 if !named && resource.ends_with(".pawl.dev") => ClusterError::NotInstalled,
            400 | 409 | 422 => ClusterError::Refused(message),
            _ => ClusterError::Answer { verb, resource, message },
        }
    }
}

/// The innermost cause: the outer ones only say that there is one.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}
