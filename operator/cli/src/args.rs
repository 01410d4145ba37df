//! The command line.

pub mod agent;
pub mod export;
#[cfg(feature = "cluster")]
pub mod kubectl;
#[cfg(feature = "cluster")]
pub mod operator;
pub mod search;
pub mod ui;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use pawl_api::duration::Span;
use std::path::PathBuf;

/// Measures the optimizations of a training job one by one, and trains with the accepted ones.
#[derive(Debug, Parser)]
#[command(name = "pawl", version = crate::version::VERSION.as_str(), disable_version_flag = true)]
#[command(arg_required_else_help = true, args_conflicts_with_subcommands = true)]
#[command(after_help = crate::exit::HELP, max_term_width = 100)]
pub struct Arguments {
    /// Print the version, and the optional features of this build.
    #[arg(short = 'V', long)]
    pub version: bool,
    /// With --version: also the commit and the target.
    #[arg(short, long, requires = "version")]
    pub verbose: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The variables of a tracker, for `--help`.
const TRACKERS: &str = "Environment:
  MLFLOW_TRACKING_URI        the server, http:// or https://
  MLFLOW_EXPERIMENT_NAME     the experiment, made if there is none; or MLFLOW_EXPERIMENT_ID. Default: pawl
  MLFLOW_TRACKING_TOKEN      or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD
  TENSORBOARD_LOGGING_DIR    the folder of TensorBoard
  WANDB_DIR                  the folder in which W&B's client makes its own, wandb, from which `wandb sync` uploads
  WANDB_PROJECT              the project. Default: pawl
  WANDB_ENTITY               the user or the team. Default: that of whoever uploads";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a job on this machine: measure its phases, then train with the accepted ones.
    ///
    /// All state is kept in the state directory: to resume an interrupted or killed run, repeat the command.
    #[command(after_help = crate::exit::HELP)]
    Run(RunArgs),
    /// Write a manifest for a training script, with phases that most scripts profit from.
    Init(InitArgs),
    /// Find out what makes a training script faster, without a manifest.
    ///
    /// Runs the script once as it is and finds the steps and losses in its output, proposes phases for the options that
    /// it has, measures them as `pawl run` does, and prints the changed command line.
    #[command(after_help = crate::exit::HELP, override_usage = "pawl tune [OPTIONS] <SCRIPT> [ARGUMENTS]...")]
    Tune(TuneArgs),
    /// Check manifests, and print every problem as FILE:LINE:COLUMN.
    Validate {
        /// The manifests; - is standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Print the status of a job: phases, settings, training, cost.
    Status {
        /// Job whose state is read.
        #[command(flatten)]
        state: StateArgs,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Write the evidence of a job as one HTML page.
    Report {
        /// Job whose state is read.
        #[command(flatten)]
        state: StateArgs,
        /// Output file, which must not exist; - is standard output. Default: report.html in the state directory,
        /// JOB.html for a storage, which are replaced.
        #[arg(short = 'o', long = "out", value_name = "PATH")]
        out: Option<PathBuf>,
    },
    /// Log a job to MLflow, TensorBoard or W&B, as `pawl run` does: what is new since the last time.
    #[command(after_help = TRACKERS)]
    Track {
        /// Job whose state is read.
        #[command(flatten)]
        state: StateArgs,
    },
    /// List the jobs that were run here.
    List {
        /// Directories of state directories, or of storages.
        #[arg(value_name = "DIR", default_value = ".pawl")]
        directories: Vec<PathBuf>,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Print two jobs beside each other: verdicts, settings, training, cost.
    Compare {
        /// Manifests, or names of jobs that were run here, or state directories, or storages.
        #[arg(required = true, num_args = 2, value_name = "JOB")]
        jobs: Vec<PathBuf>,
    },
    /// Serve jobs to a browser, those that were run here, of storages and of a cluster: their list, each of them as it
    /// runs, several beside each other.
    Ui(ui::UiArgs),
    /// Judge the recorded launches of a job anew, by the gates and the analysis of another manifest if one is given.
    ///
    /// No launch is run: a verdict that would need one is reported as such.
    Replay {
        /// Job whose state is read.
        #[command(flatten)]
        state: StateArgs,
        /// Manifest by which it is judged. Default: that of the last run.
        #[arg(long, value_name = "FILE")]
        gates: Option<PathBuf>,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Write the manifest that repeats a job, with a heading that says on what machine, with which versions and from
    /// which commit it ran.
    ///
    /// The records in a storage have no values of environment variables: the heading names those that have none.
    Reproduce {
        /// Record of an attempt, or a manifest, the name, the state directory or the storage of a job that was run.
        #[arg(value_name = "RECORD_OR_JOB")]
        job: PathBuf,
        /// Output file, which must not exist; - is standard output.
        #[arg(short = 'o', long = "out", value_name = "FILE", default_value = "-")]
        out: PathBuf,
    },
    /// Take the trained model out of a job: weights and configuration of a built-in workload, a language model as a
    /// directory for Transformers, the checkpoint of a script as it is.
    Export(export::ExportArgs),
    /// Export the hyperparameter search of a job.
    #[command(subcommand)]
    Search(search::SearchCommand),
    /// Print what the trainer will run, without running it.
    Plan(PlanArgs),
    /// Manage the TrainingJobs of a cluster; `kubectl pawl` when a link named kubectl-pawl is in the PATH.
    #[cfg(feature = "cluster")]
    Kubectl(kubectl::KubectlArgs),
    /// Run the operator of a cluster until SIGTERM.
    #[cfg(feature = "cluster")]
    Operator(Box<operator::OperatorArgs>),
    /// Not in this build: manage the TrainingJobs of a cluster.
    #[cfg(not(feature = "cluster"))]
    #[command(hide = true, disable_help_flag = true)]
    Kubectl(Absent),
    /// Not in this build: run the operator of a cluster.
    #[cfg(not(feature = "cluster"))]
    #[command(hide = true, disable_help_flag = true)]
    Operator(Absent),
    /// Print the CustomResourceDefinition of TrainingJob as YAML.
    Crd {
        /// With the description of every field: for reading, as it is too large for `kubectl apply`.
        #[arg(long)]
        documented: bool,
    },
    /// Print a completion script.
    Completion {
        /// Shell to complete for.
        shell: Shell,
    },
    /// Write completion scripts (DIR/completions) and man pages (DIR/man/man1), for packages.
    #[command(hide = true)]
    Manual {
        /// Directory, made if there is none; files of the same names are replaced.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Run the ranks of one pod (entry point of trainer pods).
    #[command(hide = true)]
    Agent(agent::AgentArgs),
    /// Run as one rank, configured by the environment of the trainer contract.
    #[command(hide = true)]
    Trainer,
}

/// Arguments of a command that this build does not include; all are rejected.
#[cfg(not(feature = "cluster"))]
#[derive(Debug, Args)]
pub struct Absent {
    /// Any arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub arguments: Vec<std::ffi::OsString>,
}

/// `pawl run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The manifest; - is standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// State directory. Default: .pawl/JOB, with the name of the job. Delete it to restart the job from scratch.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// GPUs to use, such as 0,1. Default: the first visible GPUs, as many as the manifest requests.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub gpus: Option<Vec<String>>,
    /// Output format of the result. With json and yaml, standard output contains only that document.
    #[arg(long, value_enum, default_value = "table")]
    pub output: Output,
    /// Print no progress, only the result.
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the command line and the environment of each launch, and start none: the baseline, each phase with all
    /// phases before it, and the training. Values of your own environment are not printed: $(NAME) stands for them.
    #[arg(long, conflicts_with_all = ["output", "quiet"])]
    pub dry_run: bool,
}

/// The job whose state is read: by `--state DIR`, or as the commands with one argument name it.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct StateArgs {
    /// The job: its manifest, the name of a job that was run here, a state directory, or a storage.
    #[arg(value_name = "JOB")]
    pub file: Option<PathBuf>,
    /// State directory, or the storage of a job, which has its records.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// `pawl init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// The training script.
    #[arg(value_name = "SCRIPT")]
    pub script: PathBuf,
    /// Framework of the script.
    #[arg(long, value_enum, default_value = "pytorch")]
    pub framework: Framework,
    /// Name of the job. Default: the name of the script.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// GPUs, with one process each; 0 trains on the CPU.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(0..=64))]
    pub gpus: u32,
    /// Batch size of the script now: items per GPU and step. Default: that of the script's own option (pytorch,
    /// accelerate), or 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=524_288))]
    pub batch: Option<u32>,
    /// Items to train after the phases. Default: the job only measures.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub items: Option<u64>,
    /// Output file, which must not exist; - is standard output.
    #[arg(short = 'o', long = "out", value_name = "FILE", default_value = "job.yaml")]
    pub out: PathBuf,
}

/// `pawl tune`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// The training script in Python, and its arguments: the baseline. Options of pawl come before it. Also the
    /// command line that starts it: with python, python -m, torchrun, accelerate launch, deepspeed, sh, env, uv run or
    /// conda run.
    #[arg(value_name = "SCRIPT", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// Longest time of the run in which the script is observed as it is.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub observe: Span,
    /// Longest time of measuring; then it ends as with SIGTERM. The same command continues.
    #[arg(long, value_name = "TIME", default_value = "20m")]
    pub budget: Span,
    /// GPUs, with one process each; 0 trains on the CPU. Default: 1, or 0 where none is visible.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=64))]
    pub gpus: Option<u32>,
    /// State directory. Default: .pawl/tune-NAME, with the name of the script. Delete it to start from scratch.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Print the manifest that would be measured, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Print no progress, only the result.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Framework of a training script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Framework {
    /// Hugging Face Trainer, with the arguments of TrainingArguments.
    Hf,
    /// Lightning, with the arguments of LightningCLI.
    Lightning,
    /// Accelerate, configured by its environment variables.
    Accelerate,
    /// A loop in plain PyTorch.
    Pytorch,
}

/// `pawl plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
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

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Human-readable table.
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// View of a plan to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dump {
    /// Operators after all passes.
    Graph,
    /// Kernels, as the graph executor runs them.
    Kernels,
    /// Memory layout, and the predicted peak.
    Memory,
}
