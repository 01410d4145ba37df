//! The command line.

pub mod agent;
#[cfg(feature = "cluster")]
pub mod kubectl;
#[cfg(feature = "cluster")]
pub mod operator;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;

/// Trains a model, keeping only the optimizations that measurably hold.
#[derive(Debug, Parser)]
#[command(name = "pawl", version, after_help = crate::exit::HELP, max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a job on this machine: judge its phases, then train with what held.
    ///
    /// Everything is kept in the state directory: a run that was interrupted or killed goes on where it was when the
    /// same command is given again.
    #[command(after_help = crate::exit::HELP)]
    Run(Run),
    /// Check manifests, and print every problem as FILE:LINE:COLUMN.
    Validate {
        /// The manifests; - is standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Print where a job is: its phases, settings, training, cost.
    Status {
        /// Whose.
        #[command(flatten)]
        place: Place,
        /// Form of the output.
        #[arg(long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Write the evidence of a job as one HTML page.
    Report {
        /// Whose.
        #[command(flatten)]
        place: Place,
        /// Where to; - is standard output. Default: report.html in the state directory.
        #[arg(short = 'o', long = "out", value_name = "PATH")]
        out: Option<PathBuf>,
    },
    /// Print what the trainer will run, without running it.
    Plan(Plan),
    /// Manage the TrainingJobs of a cluster; `kubectl pawl` when a link named kubectl-pawl is in the PATH.
    #[cfg(feature = "cluster")]
    Kubectl(kubectl::Arguments),
    /// Run the operator of a cluster until SIGTERM.
    #[cfg(feature = "cluster")]
    Operator(operator::Operator),
    /// Not in this build: manage the TrainingJobs of a cluster.
    #[cfg(not(feature = "cluster"))]
    #[command(hide = true, disable_help_flag = true)]
    Kubectl(Absent),
    /// Not in this build: run the operator of a cluster.
    #[cfg(not(feature = "cluster"))]
    #[command(hide = true, disable_help_flag = true)]
    Operator(Absent),
    /// Print the CustomResourceDefinition of TrainingJob as YAML.
    Crd,
    /// Print a completion script.
    Completion {
        /// For which shell.
        shell: Shell,
    },
    /// Run the ranks of one pod: its entry point.
    #[command(hide = true)]
    Agent(agent::Agent),
    /// Be one rank: read the trainer contract's environment.
    #[command(hide = true)]
    Trainer,
}

/// Arguments of a command that this build does not have; it refuses them all.
#[cfg(not(feature = "cluster"))]
#[derive(Debug, Args)]
pub struct Absent {
    /// Whatever was written.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub arguments: Vec<std::ffi::OsString>,
}

/// `pawl run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The manifest; - is standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// State directory. Default: .pawl/<job name>. Delete it to start the job anew.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// GPUs to use, such as 0,1. Default: the first visible ones, as many as the manifest wants.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub gpus: Option<Vec<String>>,
    /// Form of the result. With json and yaml, standard output is that document alone.
    #[arg(long, value_enum, default_value = "table")]
    pub output: Output,
    /// No progress, only the result.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Whose state to read: `--state DIR`, or the default directory of a manifest's job.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Place {
    /// The job's manifest: its default state directory is read.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// State directory.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// `pawl plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// The manifest; - is standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What to print.
    #[arg(long, value_enum, default_value = "graph")]
    pub dump: Dump,
    /// Phases to apply on top of the baseline, in this order.
    #[arg(long = "phase", value_name = "NAME")]
    pub phases: Vec<String>,
}

/// Form of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// What of a plan to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dump {
    /// Operators after all passes.
    Graph,
    /// Kernels, as the graph executor runs them.
    Kernels,
    /// Places in memory, and the predicted peak.
    Memory,
}
