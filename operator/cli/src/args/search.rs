//! The command lines of `pawl search` and `kubectl pawl search`.

use super::StateArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// What to do with the search of a local job.
#[derive(Debug, Subcommand)]
pub enum SearchCommand {
    /// Write the trials of a job as CSV, as JSON, or as a study that Optuna reads.
    #[command(after_help = FORMATS)]
    Export {
        /// Job whose state is read.
        #[command(flatten)]
        state: StateArgs,
        /// What to write.
        #[command(flatten)]
        export: ExportArgs,
    },
}

/// How to read each format.
pub const FORMATS: &str = "Formats:
  csv     a row per trial of all stages
  json    the parameters, trials, finalists and winner of each stage
  optuna  the log of a JournalStorage, one study JOB/STAGE per stage:
          JournalStorage(JournalFileBackend(PATH))";

/// What to write, and where.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Output format.
    #[arg(long, value_enum, default_value = "csv")]
    pub format: ExportFormat,
    /// Output file, which must not exist; - is standard output.
    #[arg(short = 'o', long = "out", value_name = "PATH", default_value = "-")]
    pub out: PathBuf,
}

/// Format of the trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// CSV.
    Csv,
    /// JSON.
    Json,
    /// Log of Optuna's JournalStorage.
    Optuna,
}
