//! The command line of `kubectl pawl`.

use super::Output;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use clap_complete::engine::ArgValueCompleter;
use pawl_api::spec::Pin;
use std::path::PathBuf;

use crate::commands::kubectl::complete;

/// What its exit codes mean.
const HELP: &str = "Exit codes:
  0  done; with status --watch: the job is complete, and every gate holds
  1  with status --watch: the job failed
  2  bad input: no such job or phase, a manifest that is not valid, or that cannot run here; nothing was changed
  3  with status --watch: the job is at rest, but not as asked: a gate was missed, or it is suspended
  4  the cluster cannot be used: not reached, not allowed, or TrainingJobs are not installed";

/// Looks after the TrainingJobs of a cluster.
#[derive(Debug, Parser)]
#[command(name = "kubectl-pawl", bin_name = "kubectl pawl", version, max_term_width = 100)]
pub struct Plugin {
    /// What to do, and where.
    #[command(flatten)]
    pub arguments: Arguments,
}

/// What to do, and where.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster, as kubectl says it.
#[derive(Debug, Default, Args)]
pub struct Cluster {
    /// Namespace. Default: that of the context.
    #[arg(short, long, global = true, value_name = "NAME", add = ArgValueCompleter::new(complete::namespaces))]
    pub namespace: Option<String>,
    /// Context of the kubeconfig. Default: the current one.
    #[arg(long, global = true, value_name = "NAME", add = ArgValueCompleter::new(complete::contexts))]
    pub context: Option<String>,
    /// The kubeconfig. Default: $KUBECONFIG, ~/.kube/config, or the service account of a pod.
    #[arg(long, global = true, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print where a job is: its phases, settings, training, cost.
    Status {
        /// Which.
        #[command(flatten)]
        job: Job,
        /// Go on printing until the job is at rest, and exit as `pawl run` does.
        #[arg(short, long)]
        watch: bool,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Write the evidence of a job as one HTML page.
    Report {
        /// Which.
        #[command(flatten)]
        job: Job,
        /// Where to; - is standard output. Default: JOB.html.
        #[arg(short = 'o', long = "out", value_name = "PATH")]
        out: Option<PathBuf>,
    },
    /// Revert phases, and keep them out: pins them to RolledBack.
    #[command(group = ArgGroup::new("which").required(true))]
    Rollback {
        /// Which.
        #[command(flatten)]
        job: Job,
        /// A phase; may be given several times.
        #[arg(short, long = "phase", group = "which", value_name = "NAME", add = ArgValueCompleter::new(complete::phases))]
        phases: Vec<String>,
        /// All phases: train with the baseline.
        #[arg(long, group = "which")]
        all: bool,
    },
    /// Pin a phase: a person's word beats measurement.
    Pin {
        /// Which.
        #[command(flatten)]
        job: Job,
        /// The phase; may be given several times.
        #[arg(short, long = "phase", required = true, value_name = "NAME", add = ArgValueCompleter::new(complete::phases))]
        phases: Vec<String>,
        /// To what.
        #[arg(value_enum)]
        to: PinTo,
    },
    /// Stop after a checkpoint, and give all devices back.
    Suspend {
        /// Which.
        #[command(flatten)]
        job: Job,
    },
    /// Let a suspended job go on.
    Resume {
        /// Which.
        #[command(flatten)]
        job: Job,
    },
    /// Print the log of the rank that failed first, or of rank 0 of the newest attempt.
    Logs {
        /// Which.
        #[command(flatten)]
        job: Job,
        /// Go on as the log grows, until the pod ends.
        #[arg(short, long)]
        follow: bool,
        /// Lines from the end. Default: all.
        #[arg(long, value_name = "N")]
        tail: Option<u32>,
        /// This rank instead, whichever failed.
        #[arg(long, value_name = "N")]
        rank: Option<u32>,
    },
    /// Say whether a manifest would run here, without running it.
    Preflight {
        /// The manifest; - is standard input.
        #[arg(short, long = "filename", value_name = "FILE")]
        file: PathBuf,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Print a completion script for the program kubectl-pawl.
    ///
    /// kubectl itself completes `kubectl pawl` when a link to pawl named kubectl_complete-pawl is in the PATH.
    Completion {
        /// For which shell.
        shell: Shell,
    },
}

/// A job by name.
#[derive(Debug, Args)]
pub struct Job {
    /// Name of the TrainingJob.
    #[arg(value_name = "JOB", value_parser = bare_name, add = ArgValueCompleter::new(complete::jobs))]
    pub name: String,
}

/// The name in `NAME` or `tj/NAME`, as kubectl takes and prints it.
fn bare_name(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        None => Ok(text.to_owned()),
        Some(("tj" | "trainingjob" | "trainingjobs" | "trainingjob.pawl.dev" | "trainingjobs.pawl.dev", name)) => {
            Ok(name.to_owned())
        }
        Some((kind, _)) => Err(format!("{kind:?} is no kind of Pawl: give the name of a TrainingJob, or tj/NAME")),
    }
}

/// What a phase is pinned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PinTo {
    /// Keep it, unmeasured.
    Accepted,
    /// Leave it out, unmeasured.
    RolledBack,
    /// Measure and judge it, but do not keep it.
    DryRun,
    /// Take the pin away: measurement decides.
    #[value(name = "none")]
    Nothing,
}

impl PinTo {
    /// As the spec says it.
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
