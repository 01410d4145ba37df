//! What the caller gives and gets: the node, its limits, events, the result.

use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Progress;
use pawl_contract::report::{LaunchResult, Report};
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

/// The node on which an agent runs, and its place in the gang.
#[derive(Debug)]
pub struct Node {
    /// Index of this agent in the gang; 0 coordinates.
    pub replica: u32,
    /// The attempt's directory, absolute. Created when it is not there.
    pub work_dir: PathBuf,
    /// Program and arguments of the built-in trainer, for plans without a command of their own.
    pub trainer: Vec<OsString>,
    /// GPUs of this node for `CUDA_VISIBLE_DEVICES`; empty: those that the environment shows.
    pub gpus: Vec<String>,
    /// Checkpoint storage, URL or path.
    pub checkpoints: String,
    /// Where workloads keep generated data.
    pub data: PathBuf,
    /// More environment for the ranks. The contract's variables cannot be overridden.
    pub env: Vec<(String, String)>,
    /// Whether the output of the ranks goes to this process's standard output too, each line behind its rank.
    pub echo: bool,
    /// How the gang meets.
    pub rendezvous: Rendezvous,
    /// How long the agent waits for what.
    pub limits: Limits,
}

impl Node {
    /// This machine as the whole gang. Checkpoints and data lie in the attempt's directory until said otherwise.
    pub fn local(work_dir: impl Into<PathBuf>, trainer: Vec<OsString>) -> Self {
        let work_dir = work_dir.into();
        Self {
            replica: 0,
            trainer,
            gpus: Vec::new(),
            checkpoints: work_dir.join("checkpoints").to_string_lossy().into_owned(),
            data: work_dir.join("data"),
            env: Vec::new(),
            echo: false,
            rendezvous: Rendezvous::Local,
            limits: Limits::default(),
            work_dir,
        }
    }
}

/// How the agents and ranks of a gang meet.
#[derive(Debug)]
pub enum Rendezvous {
    /// One agent is the gang: it listens on the loopback interface, with a fresh token.
    Local,
    /// Agent 0 of several.
    Listen {
        /// Where it listens.
        listener: TcpListener,
        /// `host:port` at which the other agents and all ranks reach it.
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

/// How long an agent waits for what, and how much it keeps.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Added to `hangTimeout` until the first step is done. Default 10 minutes.
    pub start_allowance: Duration,
    /// From SIGTERM to SIGKILL when a stop was asked for: time for a checkpoint. Default 60 s.
    pub stop_grace: Duration,
    /// From the death of one rank to the SIGKILL of its peers: time to say what they saw. Default 500 ms.
    pub peer_grace: Duration,
    /// Until all agents are there, when the plan does not say; and for each barrier between launches. Default 10 minutes.
    pub gather: Duration,
    /// Silence after which an agent counts as lost; agents beat four times in it. Default 15 s.
    pub lost_after: Duration,
    /// Bytes of output kept of each rank and launch, twice: the newest. Default 4 MiB.
    pub log_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start_allowance: Duration::from_secs(600),
            stop_grace: Duration::from_secs(60),
            peer_grace: Duration::from_millis(500),
            gather: Duration::from_secs(600),
            lost_after: Duration::from_secs(15),
            log_bytes: 4 << 20,
        }
    }
}

/// What the caller asks of a running attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Stop {
    /// Go on.
    #[default]
    No,
    /// SIGTERM to all ranks: they checkpoint and exit 30. Those that do not within [`Limits::stop_grace`] are killed.
    Gracefully,
    /// SIGKILL to all ranks.
    Now,
}

/// What happens while an attempt runs, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// All ranks of this node were started.
    LaunchStarted {
        /// Name of the launch.
        launch: String,
        /// What it is for.
        kind: LaunchKind,
    },
    /// Rank 0 said something new. Only the agent that holds rank 0 tells.
    Progress(Progress),
    /// The launch has ended on all nodes, and `report.json` is on this node's disk.
    LaunchEnded(Box<Report>),
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptResult {
    /// The finished launches in order; those of an earlier run of the same attempt included.
    pub launches: Vec<LaunchResult>,
    /// Why it ended.
    pub end: AttemptEnd,
    /// What happened, for people; empty when all is well.
    pub message: String,
}

/// Why an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum AttemptEnd {
    /// All launches were run.
    Complete,
    /// A launch did not end well, and the plan says to end then.
    LaunchFailed,
    /// A stop was asked for.
    Stopped,
    /// An agent went away or did not come: the gang is not whole.
    LostPeer,
}
