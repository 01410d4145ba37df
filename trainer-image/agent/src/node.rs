//! Input and output of an attempt: the node, its limits, events, the result.

pub use pawl_contract::attempt::AttemptEnd;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::progress::{Progress, RankPhase};
use pawl_contract::report::{LaunchResult, Report};
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

/// Where a launch has its checkpoints: in the storage, or in a directory of it.
pub(crate) fn checkpoints(launch: &LaunchPlan, storage: &str) -> String {
    match launch.checkpoint.as_ref().and_then(|policy| policy.directory.as_deref()) {
        Some(directory) => format!("{}/{directory}", storage.trim_end_matches('/')),
        None => storage.to_owned(),
    }
}

/// The node on which an agent runs, and its place in the gang.
#[derive(Debug)]
pub struct Node {
    /// Index of this agent in the gang; agent 0 coordinates.
    pub replica: u32,
    /// The attempt's directory, absolute. Created if it does not exist.
    pub work_dir: PathBuf,
    /// Program and arguments of the built-in trainer, for plans without a command of their own.
    pub trainer: Vec<OsString>,
    /// GPUs of this node for `CUDA_VISIBLE_DEVICES`; empty: those visible in the environment.
    pub gpus: Vec<String>,
    /// Checkpoint storage, URL or path.
    pub checkpoints: String,
    /// Whether agent 0 proves that files can be written there before it measures or trains, as nobody else has.
    pub proves_storage: bool,
    /// File with the manifest and the status of the job, as JSON, which agent 0 copies to the job's records. Absent or
    /// missing: none is written.
    pub status: Option<PathBuf>,
    /// Directory for generated data of workloads.
    pub data: PathBuf,
    /// Optional features of this build, for the record of the attempt.
    pub features: Vec<&'static str>,
    /// Additional environment of the ranks. The contract's variables cannot be overridden.
    pub env: Vec<(String, String)>,
    /// Whether the output of the ranks is also written to this process's standard output, each line prefixed with its
    /// rank.
    pub echo: bool,
    /// Rendezvous of the gang.
    pub rendezvous: Rendezvous,
    /// Timeouts and limits.
    pub limits: Limits,
}

impl Node {
    /// This machine as the whole gang. Checkpoints and data are in the attempt's directory by default.
    pub fn local(work_dir: impl Into<PathBuf>, trainer: Vec<OsString>) -> Self {
        let work_dir = work_dir.into();
        Self {
            replica: 0,
            trainer,
            gpus: Vec::new(),
            checkpoints: work_dir.join("checkpoints").to_string_lossy().into_owned(),
            proves_storage: false,
            status: None,
            data: work_dir.join("data"),
            features: Vec::new(),
            env: Vec::new(),
            echo: false,
            rendezvous: Rendezvous::Local,
            limits: Limits::default(),
            work_dir,
        }
    }
}

/// How the agents and ranks of a gang connect.
#[derive(Debug)]
pub enum Rendezvous {
    /// A gang of one agent: it listens on the loopback interface, with a new token.
    Local,
    /// Agent 0 of several.
    Listen {
        /// Listen address.
        listener: TcpListener,
        /// `host:port` at which the other agents and all ranks connect to it.
        address: String,
        /// File that holds the gang's token.
        token_file: PathBuf,
    },
    /// Any other agent.
    Join {
        /// `host:port` of agent 0.
        address: String,
        /// File that holds the gang's token.
        token_file: PathBuf,
    },
}

/// Timeouts and size limits of an agent.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Added to `hangTimeout` until the first step is done, and in each phase other than training. Default 10 minutes.
    pub start_allowance: Duration,
    /// Until a script is reported in whose output nothing was found. Default 1 minute.
    pub unmatched_after: Duration,
    /// Maximum duration of a phase without a step, whatever its heartbeats. Default [`RankPhase::longest`].
    pub longest_phase: fn(RankPhase) -> Option<Duration>,
    /// From SIGTERM to SIGKILL after a request to stop: time for a checkpoint. Default 60 s.
    pub stop_grace: Duration,
    /// From the death of one rank to the SIGKILL of its peers: time to log errors. Default 500 ms.
    pub peer_grace: Duration,
    /// Until all agents are connected, unless the plan sets it; and for each barrier between launches. Default 10
    /// minutes.
    pub gather: Duration,
    /// Heartbeat timeout after which an agent counts as lost; agents send four heartbeats in it. Default 15 s.
    pub lost_after: Duration,
    /// Size in bytes at which a rank's log is rotated; the current and the previous file are kept. Default 4 MiB.
    pub log_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start_allowance: Duration::from_secs(600),
            unmatched_after: Duration::from_secs(60),
            longest_phase: RankPhase::longest,
            stop_grace: Duration::from_secs(60),
            peer_grace: Duration::from_millis(500),
            gather: Duration::from_secs(600),
            lost_after: Duration::from_secs(15),
            log_bytes: 4 << 20,
        }
    }
}

/// Request to a running attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Stop {
    /// Continue.
    #[default]
    No,
    /// SIGTERM to all ranks: they checkpoint and exit 30. Those that do not within [`Limits::stop_grace`] are killed.
    Gracefully,
    /// SIGKILL to all ranks.
    Now,
}

/// Events of a running attempt, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// All ranks of this node were started.
    LaunchStarted {
        /// Name of the launch.
        launch: String,
        /// Its kind.
        kind: LaunchKind,
    },
    /// New progress of rank 0. Sent only by the agent that runs rank 0.
    Progress(Box<Progress>),
    /// What the user may have to correct, while the launch still runs, or why the record of the attempt is not kept.
    /// Each is sent once in an attempt, by the agent that runs rank 0.
    Warning {
        /// Name of the launch.
        launch: String,
        /// What is wrong, and the remedy.
        message: String,
    },
    /// The launch has ended on all nodes, and `report.json` is on this node's disk.
    LaunchEnded(Box<Report>),
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptResult {
    /// The finished launches in order, including those of an earlier run of the same attempt.
    pub launches: Vec<LaunchResult>,
    /// Reason of the end.
    pub end: AttemptEnd,
    /// Human-readable description; empty on success.
    pub message: String,
}
