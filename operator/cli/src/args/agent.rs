//! `pawl agent`.

use clap::{Args, Subcommand};
use pawl_contract::{env, pod};
use std::ffi::OsString;
use std::path::PathBuf;

/// `pawl agent`: runs the ranks of a pod, or does what the subcommand says.
#[derive(Debug, Args)]
pub struct Agent {
    /// What to do instead of running a pod.
    #[command(subcommand)]
    pub command: Option<AgentCommand>,
    /// The pod.
    #[command(flatten)]
    pub pod: Pod,
}

/// What an agent does besides running a pod.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Copy this program to DIR/pawl, for a container whose image has none.
    Install {
        /// Where to.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// What the operator gives to a pod.
#[derive(Debug, Args)]
pub struct Pod {
    /// The attempt's plan.
    #[arg(long, env = pod::PLAN, value_name = "PATH")]
    pub plan: Option<PathBuf>,
    /// Index of this pod in the gang; 0 coordinates.
    #[arg(long, env = pod::INDEX, value_name = "N", default_value = "0")]
    pub replica: u32,
    /// host:port at which pod 0 is reached by the others.
    #[arg(long, env = pod::AGENT_ADDRESS, value_name = "HOST:PORT", requires = "token_file")]
    pub address: Option<String>,
    /// File that holds the gang's token.
    #[arg(long, env = pod::TOKEN_FILE, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Working directory of the attempt.
    #[arg(long, env = pod::WORK_DIR, default_value = "/tmp/pawl", value_name = "DIR")]
    pub work_dir: PathBuf,
    /// Checkpoint storage, URL or path. Default: in the working directory.
    #[arg(long, env = env::CHECKPOINTS, value_name = "URL")]
    pub checkpoints: Option<String>,
    /// Where workloads keep generated data. Default: in the working directory.
    #[arg(long, env = env::DATA, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Port for /metrics and /healthz, and of pod 0 /progress and /attempt. Default: none is served.
    #[arg(long, env = pod::HTTP_PORT, value_name = "PORT")]
    pub http_port: Option<u16>,
    /// Where the results go in at most 4096 bytes.
    #[arg(long, env = "PAWL_TERMINATION_LOG", default_value = "/dev/termination-log", value_name = "PATH")]
    pub termination_log: PathBuf,
    /// The trainer and its arguments, for plans without a command. Default: the built-in trainer.
    #[arg(last = true, value_name = "TRAINER")]
    pub trainer: Vec<OsString>,
}
