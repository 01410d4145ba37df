//! `pawl-trainer`: runs the launch that the environment names, or prints what a plan will run.

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
    /// Prints what a plan will run, without running it.
    Plan {
        /// The launch's plan.json.
        #[arg(long)]
        plan: PathBuf,
        /// Ranks in the gang.
        #[arg(long, default_value_t = 1)]
        world_size: u32,
        /// What to print.
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
    /// Places in memory, and the predicted peak.
    Memory,
}

fn main() -> ExitCode {
    let Some(Command::Plan { plan, world_size, dump }) = Arguments::parse().command else {
        return pawl_trainer::run_from_env();
    };
    let view = match dump {
        Dump::Graph => pawl_trainer::View::Graph,
        Dump::Kernels => pawl_trainer::View::Kernels,
        Dump::Memory => pawl_trainer::View::Memory,
    };
    match pawl_trainer::plan_file(&plan, world_size, view) {
        // A reader such as `head` may have seen enough.
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
