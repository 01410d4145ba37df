//! `pawl-trainer`: runs the launch that the environment names, or prints the programs of a plan.

use clap::{Parser, Subcommand, ValueEnum};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs the launch that the environment names (PAWL_PLAN, PAWL_RANK, ...).
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Profiles the kernels of a plan's micro-step on its data, on the CPU or the GPU that PAWL_DEVICE names.
    Profile {
        /// The launch's plan.json.
        #[arg(long)]
        plan: PathBuf,
        /// Number of timed runs.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Number of slowest kernels to print.
        #[arg(long, default_value_t = 30)]
        kernels: usize,
    },
    /// Exports the language model of a plan as a directory that Hugging Face libraries can load.
    Export {
        /// The launch's plan.json.
        #[arg(long)]
        plan: PathBuf,
        /// The checkpoint storage, a directory or a URL; its best checkpoint is exported.
        #[arg(long)]
        checkpoints: String,
        /// Export the newest checkpoint instead of the best one.
        #[arg(long)]
        newest: bool,
        /// The output directory.
        #[arg(long)]
        to: PathBuf,
        /// Write weights in bfloat16 instead of float32.
        #[arg(long)]
        narrow: bool,
    },
    /// Prints the programs of a plan, without running them.
    Plan {
        /// The launch's plan.json.
        #[arg(long)]
        plan: PathBuf,
        /// Number of ranks in the gang.
        #[arg(long, default_value_t = 1)]
        world_size: u32,
        /// View to print.
        #[arg(long, value_enum, default_value = "graph")]
        dump: Dump,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Dump {
    /// Operators after all passes.
    Graph,
    /// Kernels, as the graph executor runs them.
    Kernels,
    /// Memory layout, and the predicted peak.
    Memory,
}

fn main() -> ExitCode {
    let text = match Arguments::parse().command {
        None => return pawl_trainer::run_from_env(),
        Some(Command::Plan { plan, world_size, dump }) => {
            let view = match dump {
                Dump::Graph => pawl_trainer::View::Graph,
                Dump::Kernels => pawl_trainer::View::Kernels,
                Dump::Memory => pawl_trainer::View::Memory,
            };
            pawl_trainer::plan_file(&plan, world_size, view)
        }
        Some(Command::Export { plan, checkpoints, newest, to, narrow }) => {
            pawl_trainer::export::plan_file(&plan, &checkpoints, newest, narrow, &to)
        }
        Some(Command::Profile { plan, rounds, kernels }) => pawl_trainer::profile::plan_file(&plan, rounds, kernels),
    };
    match text {
        // A reader such as `head` may close the pipe early.
        Ok(text) => match writeln!(std::io::stdout(), "{text}") {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        },
        Err(ending) => {
            eprintln!("{ending}");
            ExitCode::from(ending.outcome().exit_code())
        }
    }
}
