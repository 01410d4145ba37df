//! The command line of `pawl operator`.

use clap::{ArgAction, Args, ValueEnum};
use pawl_api::Policy;
use pawl_api::duration::Span;
use pawl_api::quantity::Bytes;
use pawl_controller::objects::{DEFAULT_CLAIM_SIZE, DefaultStorage, PodDefaults, Retention};
use std::net::SocketAddr;

/// `pawl operator`.
#[derive(Debug, Args)]
pub struct OperatorArgs {
    /// Namespaces to watch. Default: all.
    #[arg(long = "namespace", env = "PAWL_NAMESPACES", value_name = "NAME", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Default trainer image, for jobs without spec.trainer.image.
    #[arg(long, env = "PAWL_TRAINER_IMAGE", value_name = "IMAGE", default_value = IMAGE)]
    pub trainer_image: String,
    /// Image from which the agent is copied into pods with a custom trainer image. Default: the operator's image.
    #[arg(long, env = "PAWL_AGENT_IMAGE", value_name = "IMAGE", default_value = IMAGE)]
    pub agent_image: String,
    /// Storage of checkpoints of jobs that name none: Claim (a PersistentVolumeClaim for each job, JOB-storage), a
    /// storage URL that the jobs share, or None (checkpoints are deleted with the pods).
    #[arg(long, env = "PAWL_DEFAULT_STORAGE", value_name = "STORAGE", default_value_t)]
    pub default_storage: DefaultStorage,
    /// With --default-storage Claim: size of each claim.
    #[arg(long, env = "PAWL_CLAIM_SIZE", value_name = "SIZE", default_value = DEFAULT_CLAIM_SIZE)]
    pub claim_size: Bytes,
    /// StorageClass of the claims. Default: the default StorageClass of the cluster.
    #[arg(long, env = "PAWL_CLAIM_CLASS", value_name = "NAME")]
    pub claim_class: Option<String>,
    /// Access mode of the claims. Default: ReadWriteOnce, or ReadWriteMany for jobs with several replicas or parallel
    /// trials.
    #[arg(long, env = "PAWL_CLAIM_ACCESS_MODE", value_name = "MODE")]
    pub claim_access_mode: Option<String>,
    /// Whether a claim is kept (Retain) or deleted (Delete) when its job is deleted.
    #[arg(long, env = "PAWL_CLAIM_RETENTION", value_name = "POLICY", default_value_t)]
    pub claim_retention: Retention,
    /// What pod templates of jobs may refer to, in JSON, as the value `policy` of the chart. Default: no Secret,
    /// service account, priority class, runtime class, host path or id.
    #[arg(long, env = "PAWL_POLICY", value_name = "JSON")]
    pub policy: Option<Policy>,
    /// Defaults of trainer pods, such as ids, size limits of directories, image pull secrets and tolerations, in JSON,
    /// as the value `pods` of the chart. Default: that of the chart.
    #[arg(long, env = "PAWL_PODS", value_name = "JSON")]
    pub pods: Option<PodDefaults>,
    /// Maximum number of concurrent reconciles. A reconcile mostly waits for the API server.
    #[arg(long, env = "PAWL_CONCURRENCY", value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Poll interval of running gangs.
    #[arg(long, env = "PAWL_ASK_EVERY", value_name = "TIME", default_value = "5s")]
    pub ask_every: Span,
    /// Minimum interval between progress-only status updates of a job.
    #[arg(long, env = "PAWL_PROGRESS_EVERY", value_name = "TIME", default_value = "15s")]
    pub progress_every: Span,
    /// Listen address of /metrics, /healthz and /readyz.
    #[arg(long, env = "PAWL_LISTEN", value_name = "ADDRESS", default_value = "[::]:8080")]
    pub listen: SocketAddr,
    /// Enable leader election. If false, run a single replica only.
    #[arg(long, env = "PAWL_LEADER_ELECTION", value_name = "BOOLEAN", default_value = "true", action = ArgAction::Set)]
    pub leader_election: bool,
    /// Namespace of the leader election lease. Default: the namespace of the kubeconfig or service account.
    #[arg(long, env = "PAWL_POD_NAMESPACE", value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// Unique identity of this replica in the leader election. Default: host name and process id.
    #[arg(long, env = "PAWL_POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,
    /// Format of the log, which is written to standard error.
    #[arg(long, env = "PAWL_LOG_FORMAT", value_enum, default_value = "json")]
    pub log_format: LogFormat,
    /// Log level, or levels by module: info,pawl_controller=debug.
    #[arg(long, env = "PAWL_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,
}

/// The image released with this program: operator, agent, and the trainer for CPUs.
pub const IMAGE: &str = concat!("ghcr.io/pawl-dev/pawl:", env!("CARGO_PKG_VERSION"));

/// Log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Human-readable text.
    Text,
}
