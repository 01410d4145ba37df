//! Environment variables that the agent sets for each rank.

/// Path of the launch's `plan.json`.
pub const PLAN: &str = "PAWL_PLAN";
/// Global rank, `0..world size`.
pub const RANK: &str = "PAWL_RANK";
/// Rank within this node, `0..ranks per replica`; also the GPU index.
pub const LOCAL_RANK: &str = "PAWL_LOCAL_RANK";
/// Device of the rank: `cpu`, `cuda:N` for visible GPU N, or `cuda` for a preflight check of GPU settings without a
/// GPU. Absent: the CPU.
pub const DEVICE: &str = "PAWL_DEVICE";
/// Number of ranks in the gang.
pub const WORLD_SIZE: &str = "PAWL_WORLD_SIZE";
/// `host:port` of the gang's rendezvous.
pub const RENDEZVOUS: &str = "PAWL_RENDEZVOUS";
/// Path of the file that holds the rendezvous token.
pub const TOKEN_FILE: &str = "PAWL_TOKEN_FILE";
/// Path to which the rank writes its `report.json`.
pub const REPORT: &str = "PAWL_REPORT";
/// Path to which rank 0 writes its `progress.json`, atomically, a few times a second at most.
pub const PROGRESS: &str = "PAWL_PROGRESS";
/// Name of the node of the pod, set by the operator; absent without a cluster.
pub const NODE_NAME: &str = "PAWL_NODE_NAME";
/// Namespace of the job; absent without a cluster.
pub const JOB_NAMESPACE: &str = "PAWL_JOB_NAMESPACE";
/// Unique identifier of the job: a job that is deleted and created again has another one.
pub const JOB_UID: &str = "PAWL_JOB_UID";
/// Generation of the job's spec when the attempt was started.
pub const JOB_GENERATION: &str = "PAWL_JOB_GENERATION";
/// URL (or path) of the job's own checkpoint storage: no other job writes there.
pub const CHECKPOINTS: &str = "PAWL_CHECKPOINTS";
/// URL (or path) at which the ranks read `checkpoint.resumeFrom` of the plan, where that is not its own `storage`: a
/// claim is mounted. Absent: `storage`.
pub const RESUME_FROM: &str = "PAWL_RESUME_FROM";
/// Directory in which the workload may keep generated data.
pub const DATA: &str = "PAWL_DATA";
/// Path to which rank 0 may write metrics in the Prometheus text format, atomically, a few times a second at most. The
/// agent serves them together with its own, which cover `progress.json`: only metrics beyond those belong here.
pub const METRICS: &str = "PAWL_METRICS";
/// Settings that placeholders of the command or the environment have consumed, separated by commas:
/// `compile,workload.width`. A script that reports settings which it does not use as unsupported leaves these out.
pub const CONSUMED: &str = "PAWL_CONSUMED_SETTINGS";
