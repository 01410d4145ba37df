//! `pawl agent`.

use clap::{Args, Subcommand};
use pawl_contract::{env, pod};
use std::ffi::OsString;
use std::path::PathBuf;

/// `pawl agent`: runs the ranks of a pod, or the subcommand.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Subcommand, instead of running a pod.
    #[command(subcommand)]
    pub command: Option<AgentCommand>,
    /// Options of running a pod.
    #[command(flatten)]
    pub pod: PodArgs,
}

/// Subcommands of an agent.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Copy this program to DIR/pawl, for a container whose image does not include it.
    Install {
        /// Destination directory.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Write a checkpoint to standard output as a tar archive.
    Archive {
        /// Checkpoint storage, URL or path.
        #[arg(long, env = env::CHECKPOINTS, value_name = "URL")]
        checkpoints: String,
        /// Name of the checkpoint in the storage.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Do nothing until SIGTERM: keeps a container running for `kubectl pawl fetch`.
    Wait,
}

/// Configuration of a pod, set by the operator.
#[derive(Debug, Args)]
pub struct PodArgs {
    /// The attempt's plan.
    #[arg(long, env = pod::PLAN, value_name = "PATH")]
    pub plan: Option<PathBuf>,
    /// Index of this pod in the gang; pod 0 coordinates.
    #[arg(long, env = pod::INDEX, value_name = "N", default_value = "0")]
    pub replica: u32,
    /// host:port at which the other pods reach pod 0.
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
    /// Directory for generated data of workloads. Default: in the working directory.
    #[arg(long, env = env::DATA, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Directory for caches of libraries, such as HF_HOME. Default: where the libraries have them.
    #[arg(long, env = pod::CACHES, value_name = "DIR")]
    pub caches: Option<PathBuf>,
    /// HTTP port of /metrics and /healthz, and on pod 0 also of /progress and /attempt. Default: no HTTP server.
    #[arg(long, env = pod::HTTP_PORT, value_name = "PORT")]
    pub http_port: Option<u16>,
    /// Seconds between SIGTERM and SIGKILL of the ranks. Default: 60 when the attempt trains, otherwise 15.
    #[arg(long, env = pod::STOP_GRACE, value_name = "SECONDS")]
    pub stop_grace: Option<u64>,
    /// Before anything is measured or trained, pod 0 proves that files can be written to the checkpoint storage.
    #[arg(long, env = pod::PROVES_STORAGE)]
    pub proves_storage: bool,
    /// File for the termination message: the results in at most 4096 bytes.
    #[arg(long, env = "PAWL_TERMINATION_LOG", default_value = "/dev/termination-log", value_name = "PATH")]
    pub termination_log: PathBuf,
    /// The trainer and its arguments, for plans without a command. Default: the built-in trainer.
    #[arg(last = true, value_name = "TRAINER")]
    pub trainer: Vec<OsString>,
}
