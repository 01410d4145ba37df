//! The command line of `kubectl pawl`.

use super::Output;
use super::search::{ExportArgs, FORMATS};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use pawl_api::spec::Pin;
use std::path::PathBuf;

/// Its exit codes.
const HELP: &str = "Exit codes:
  0  success; with status --watch: the job is complete, and every gate passed
  1  with status --watch: the job failed
  2  invalid input: no such job or phase, or a manifest that is invalid or cannot run here; nothing was changed
  3  with status --watch: the job has stopped without reaching its goal: a gate failed, or it is suspended
  4  the cluster cannot be used: unreachable, forbidden, or the TrainingJob CRD is not installed";

/// Manages the TrainingJobs of a cluster.
#[derive(Debug, Parser)]
#[command(name = "kubectl-pawl", bin_name = "kubectl pawl", version, max_term_width = 100)]
pub struct Plugin {
    /// Command and cluster.
    #[command(flatten)]
    pub arguments: KubectlArgs,
}

/// Command and cluster.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct KubectlArgs {
    /// Cluster to connect to.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Command to run.
    #[command(subcommand)]
    pub command: KubectlCommand,
}

/// Cluster to connect to, with kubectl's options.
#[derive(Debug, Default, Args)]
pub struct ClusterArgs {
    /// Namespace. Default: that of the context.
    #[arg(short, long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Context of the kubeconfig. Default: the current one.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// The kubeconfig. Default: $KUBECONFIG, ~/.kube/config, or the service account of a pod.
    #[arg(long, global = true, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
}

/// Command to run.
#[derive(Debug, Subcommand)]
pub enum KubectlCommand {
    /// Print the status of a job: phases, settings, training, cost.
    Status {
        /// Name of the job.
        #[command(flatten)]
        job: JobArgs,
        /// Watch the job until it completes, fails or is suspended, and exit with the exit codes of `pawl run`.
        #[arg(short, long)]
        watch: bool,
        /// Output format.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Write the evidence of a job as one HTML page.
    Report {
        /// Name of the job.
        #[command(flatten)]
        job: JobArgs,
        /// Output file, which must not exist; - is standard output. Default: JOB.html, which is replaced.
        #[arg(short = 'o', long = "out", value_name = "PATH")]
        out: Option<PathBuf>,
        /// Where `kubectl pawl fetch` has copied the records of the job, which have its loss curves. Default: JOB, if
        /// they are there.
        #[arg(long, value_name = "DIR")]
        records: Option<PathBuf>,
    },
    /// Judge the recorded launches of a job anew, by the gates and the analysis of another manifest if one is given.
    ///
    /// No launch is run: a verdict that would need one is reported as such.
    Replay {
        /// Name of the job.
        #[command(flatten)]
        job: JobArgs,
        /// Manifest by which it is judged. Default: the spec of the job.
        #[arg(long, value_name = "FILE")]
        gates: Option<PathBuf>,
        /// Output format.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Export the hyperparameter search of a job.
    #[command(subcommand)]
    Search(SearchCommand),
    /// Roll back phases permanently: pins them to RolledBack.
    #[command(group = ArgGroup::new("which").required(true))]
    Rollback {
        /// Name of the job.
        #[command(flatten)]
        job: JobArgs,
        /// Phase to roll back; may be repeated.
        #[arg(short, long = "phase", group = "which", value_name = "NAME")]
        phases: Vec<String>,
        /// Roll back all phases: train with the baseline.
        #[arg(long, group = "which")]
        all: bool,
    },
    /// Pin a phase: a manual override of the measured verdict.
    Pin {
        /// Name of the job.
        #[command(flatten)]
        job: JobArgs,
        /// Phase to pin; may be repeated.
        #[arg(short, long = "phase", required = true, value_name = "NAME")]
        phases: Vec<String>,
        /// State to pin the phase to.
        #[arg(value_enum)]
        to: PinTo,
    },
    /// Stop after a checkpoint, and release all devices.
    Suspend {
        /// Name of the job.
        #[command(flatten)]
        job: JobArgs,
    },
    /// Resume a suspended job.
    Resume {
        /// Name of the job.
        #[command(flatten)]
        job: JobArgs,
    },
    /// Replace the running attempt by a new one, with the pod template as it is now.
    Restart {
        /// Name of the job.
        #[command(flatten)]
        job: JobArgs,
    },
    /// Print the log of the rank that failed first, or of rank 0 of the newest attempt.
    Logs {
        /// Name of the job.
        #[command(flatten)]
        job: JobArgs,
        /// Follow the log until the pod ends.
        #[arg(short, long)]
        follow: bool,
        /// Number of lines from the end of the log. Default: all.
        #[arg(long, value_name = "N")]
        tail: Option<u32>,
        /// Print the log of this attempt, such as toy-4 or 4, of several that run at the same time.
        #[arg(long, value_name = "ATTEMPT")]
        attempt: Option<String>,
        /// Print the log of this rank.
        #[arg(long, value_name = "N")]
        rank: Option<u32>,
    },
    /// Copy the trained model: the best checkpoint of a job, or the newest one.
    ///
    /// Starts a pod that mounts the storage of the job, and copies the checkpoint through the API server. Requires the
    /// permissions of the built-in role edit: to create, watch and delete pods, and to get and create pods/exec;
    /// pawl-edit is not sufficient. The copy is verified by its hashes. To continue from it elsewhere, set
    /// train.resumeFrom.storage to file:///DIR.
    Fetch {
        /// Name of the job.
        #[command(flatten)]
        job: JobArgs,
        /// Output directory; the checkpoint is a directory in it. Default: JOB.
        #[arg(short = 'o', long = "out", value_name = "DIR")]
        out: Option<PathBuf>,
        /// Copy the newest checkpoint instead of the best one.
        #[arg(long, conflicts_with_all = ["records", "storage"])]
        newest: bool,
        /// Copy only the records of the job: its manifest, status, plans, reports and loss curves.
        #[arg(long)]
        records: bool,
        /// Storage of a job that was deleted, of which only the records are copied. Of an object store the pod has none
        /// of the job's credentials: it needs those of the node, or of the default service account.
        #[arg(long, value_name = "URL")]
        storage: Option<String>,
        /// Image of the pod; it contains /bin/pawl.
        #[arg(long, env = "PAWL_AGENT_IMAGE", value_name = "IMAGE", default_value = super::operator::IMAGE)]
        image: String,
        /// Secret of the namespace with which the image is pulled, besides those of the job and of its pods, as long as
        /// there are any; may be repeated.
        #[arg(long = "pull-secret", value_name = "NAME")]
        pull_secrets: Vec<String>,
    },
    /// Check whether manifests can run on this cluster, without running them.
    ///
    /// Makes dry runs of each TrainingJob and of the objects of its gang (batch Job, pods, Service, claim) with your
    /// own permissions, and checks what the API server checks later or not at all: the operator of the namespace, the
    /// queue, what pods refer to, the StorageClass, and quotas and nodes for all pods at once. What you may not read or
    /// try is `unknown`: pawl-edit is sufficient for the TrainingJob itself, the built-in role edit for its gang. Exits
    /// with 2 if there is a problem.
    Preflight(PreflightArgs),
    /// Print a completion script for the program kubectl-pawl.
    ///
    /// kubectl itself completes `kubectl pawl` when a link to pawl named kubectl_complete-pawl is in the PATH.
    Completion {
        /// Shell to complete for.
        shell: Shell,
    },
}

/// `kubectl pawl preflight`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("manifests").required(true).multiple(true))]
pub struct PreflightArgs {
    /// The manifests, of any number of documents; - is standard input.
    #[arg(group = "manifests", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The same, as kubectl names it; may be repeated.
    #[arg(short = 'f', long = "filename", group = "manifests", value_name = "FILE")]
    pub named: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// Namespace of the operator, where its Deployment is read if you may not list those of all namespaces.
    #[arg(long, value_name = "NAME", default_value = "pawl-system")]
    pub operator_namespace: String,
}

/// What to do with the search of a job.
#[derive(Debug, Subcommand)]
pub enum SearchCommand {
    /// Write the trials of a job as CSV, as JSON, or as a study that Optuna reads.
    #[command(after_help = FORMATS)]
    Export {
        /// Name of the job.
        #[command(flatten)]
        job: JobArgs,
        /// What to write.
        #[command(flatten)]
        export: ExportArgs,
    },
}

/// A job by name.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// Name of the TrainingJob.
    #[arg(value_name = "JOB", value_parser = bare_name)]
    pub name: String,
}

/// The name in `NAME` or `tj/NAME`, as kubectl accepts and prints it.
fn bare_name(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        None => Ok(text.to_owned()),
        Some(("tj" | "trainingjob" | "trainingjobs" | "trainingjob.pawl.dev" | "trainingjobs.pawl.dev", name)) => {
            Ok(name.to_owned())
        }
        Some((kind, _)) => Err(format!("{kind:?} is not a TrainingJob: give the name of a TrainingJob, or tj/NAME")),
    }
}

/// State that a phase is pinned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PinTo {
    /// Apply it, without measurement.
    Accepted,
    /// Do not apply it, without measurement.
    RolledBack,
    /// Measure it and report the verdict, but do not apply it.
    DryRun,
    /// Remove the pin: the measurement decides.
    #[value(name = "none")]
    Nothing,
}

impl PinTo {
    /// The value of `pin` in the spec.
    pub const fn pin(self) -> Option<Pin> {
        match self {
            Self::Accepted => Some(Pin::Accepted),
            Self::RolledBack => Some(Pin::RolledBack),
            Self::DryRun => Some(Pin::DryRun),
            Self::Nothing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Plugin::command().debug_assert();
    }

    #[test]
    fn names_may_carry_their_kind() {
        for text in ["toy", "tj/toy", "trainingjob/toy", "trainingjob.pawl.dev/toy"] {
            assert_eq!(bare_name(text).unwrap(), "toy", "{text}");
        }
        assert!(bare_name("pod/toy").unwrap_err().contains("TrainingJob"));
    }
}
