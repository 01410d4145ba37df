//! Environment variables that the operator sets for the agent of a pod, and the timeouts of its shutdown.
//!
//! Checkpoint storage and data directory use the variables of the ranks ([`crate::env::CHECKPOINTS`],
//! [`crate::env::DATA`]).

/// Path of the attempt's plan, an [`crate::plan::AttemptPlan`].
pub const PLAN: &str = "PAWL_ATTEMPT_PLAN";
/// Index of the pod in its gang, as an Indexed Job sets it; pod 0 coordinates.
pub const INDEX: &str = "JOB_COMPLETION_INDEX";
/// `host:port` at which the other pods reach pod 0; only in gangs of several pods.
pub const AGENT_ADDRESS: &str = "PAWL_AGENT_ADDRESS";
/// Path of the file that contains the gang's token; only in gangs of several pods.
pub const TOKEN_FILE: &str = "PAWL_AGENT_TOKEN_FILE";
/// Where some clusters (GKE) mount the libraries of NVIDIA's driver, without telling the loader.
pub const DRIVER: &str = "/usr/local/nvidia/lib64";
/// Working directory of the agent.
pub const WORK_DIR: &str = "PAWL_WORK_DIR";
/// Port on which the agent serves `/metrics` and `/healthz`, and pod 0 `/progress` and `/attempt`; absent: none.
pub const HTTP_PORT: &str = "PAWL_HTTP_PORT";

/// Seconds between SIGTERM and SIGKILL of the ranks; absent: the constants below.
pub const STOP_GRACE: &str = "PAWL_STOP_GRACE_SECONDS";

/// Set where the agent of pod 0 proves that checkpoints can be written before it measures or trains: in a claim that
/// the operator creates, which no preflight mounts.
pub const PROVES_STORAGE: &str = "PAWL_PROVES_STORAGE";

/// Directory in the job's claim for caches of libraries, such as `HF_HOME`, which outlive the attempt there; absent:
/// they are where the libraries have them by default.
pub const CACHES: &str = "PAWL_CACHES";

/// Reference of the image of the trainer's container, as the pod template has it: the agent records it.
pub const IMAGE: &str = "PAWL_IMAGE";

/// Port of the agent's HTTP server on a cluster.
pub const AGENT_HTTP_PORT: u16 = 9470;
/// Port of the gang's rendezvous, at agent 0, on a cluster.
pub const RENDEZVOUS_PORT: u16 = 9471;

/// Seconds between SIGTERM and SIGKILL of the ranks when the attempt writes checkpoints, unless
/// `lifecycle.checkpointGrace` or the trainer's own estimate is known.
pub const CHECKPOINT_GRACE_SECONDS: u64 = 60;
/// Seconds between SIGTERM and SIGKILL of the ranks otherwise.
pub const STOP_GRACE_SECONDS: u64 = 15;
/// Maximum seconds that the agent takes to report the results after its ranks ended: the pod's termination grace period
/// is longer by as much.
pub const REPORT_SECONDS: u64 = 15;
