//! The command line of `pawl operator`.

use clap::{ArgAction, Args, ValueEnum};
use pawl_api::duration::Span;
use std::net::SocketAddr;

/// `pawl operator`.
#[derive(Debug, Args)]
pub struct Operator {
    /// Namespaces whose jobs are run. Default: all.
    #[arg(long = "namespace", env = "PAWL_NAMESPACES", value_name = "NAME", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Image of jobs that name none.
    #[arg(long, env = "PAWL_TRAINER_IMAGE", value_name = "IMAGE", default_value = IMAGE)]
    pub trainer_image: String,
    /// Image whose agent is copied into foreign images: this operator's own.
    #[arg(long, env = "PAWL_AGENT_IMAGE", value_name = "IMAGE", default_value = IMAGE)]
    pub agent_image: String,
    /// Jobs that are reconciled at a time. Most of a reconcile is waiting for the API server.
    #[arg(long, env = "PAWL_CONCURRENCY", value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Time between two questions to one running gang.
    #[arg(long, env = "PAWL_ASK_EVERY", value_name = "TIME", default_value = "5s")]
    pub ask_every: Span,
    /// Shortest time between two writes of a job's status because of mere progress.
    #[arg(long, env = "PAWL_PROGRESS_EVERY", value_name = "TIME", default_value = "15s")]
    pub progress_every: Span,
    /// Where /metrics, /healthz and /readyz are served.
    #[arg(long, env = "PAWL_LISTEN", value_name = "ADDRESS", default_value = "[::]:8080")]
    pub listen: SocketAddr,
    /// Whether replicas elect the one that acts. With false there must be one only.
    #[arg(long, env = "PAWL_LEADER_ELECTION", value_name = "BOOLEAN", default_value = "true", action = ArgAction::Set)]
    pub leader_election: bool,
    /// Namespace of the lease. Default: that of the cluster's configuration.
    #[arg(long, env = "PAWL_POD_NAMESPACE", value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// Who this replica is; no two may be the same. Default: the host's name and the number of the process.
    #[arg(long, env = "PAWL_POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,
    /// Form of the log, which goes to standard error.
    #[arg(long, env = "PAWL_LOG_FORMAT", value_enum, default_value = "json")]
    pub log_format: LogFormat,
    /// Level of the log, or levels by module: info,pawl_controller=debug.
    #[arg(long, env = "PAWL_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,
}

/// The image that is released with this program: operator, agent, and the trainer for CPUs.
pub const IMAGE: &str = concat!("ghcr.io/pawl-dev/pawl:", env!("CARGO_PKG_VERSION"));

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}
