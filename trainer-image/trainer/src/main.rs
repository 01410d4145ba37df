//! `pawl-trainer`: runs the launch that the environment names, or prints the programs of a plan.

use clap::{Parser, Subcommand, ValueEnum};
use pawl_trainer::checkpoint::Choice;
use pawl_trainer::export::{self, Dtype};
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
    /// Exports the model of a plan: `model.safetensors` and what it is; a language model as a directory that Hugging
    /// Face libraries load.
    Export {
        /// The launch's plan.json.
        #[arg(long)]
        plan: PathBuf,
        /// The checkpoint storage, a directory or a URL.
        #[arg(long)]
        checkpoints: String,
        /// The checkpoint: best, last, or its name.
        #[arg(long, default_value = "best")]
        checkpoint: Choice,
        /// The output directory, which must not exist or be empty.
        #[arg(long)]
        to: PathBuf,
        /// Format of the weights.
        #[arg(long, value_enum, default_value = "fp32")]
        dtype: Dtype,
        /// Export the weights themselves where evaluation uses their moving averages.
        #[arg(long)]
        no_average: bool,
        /// Write the adapters of a language model alone, as PEFT has them.
        #[arg(long)]
        adapter: bool,
        /// Write the model also in ONNX's format.
        #[arg(long)]
        onnx: bool,
        /// Where the initial weights of a language model are now. Default: where its configuration says. Names and
        /// shapes are checked, values are not.
        #[arg(long)]
        weights: Option<PathBuf>,
        /// Where the tokenizer of a language model that was trained on text is now: its file, or the directory with it.
        /// Default: where its configuration says.
        #[arg(long)]
        tokenizer: Option<PathBuf>,
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
        Some(Command::Export {
            plan,
            checkpoints,
            checkpoint,
            to,
            dtype,
            no_average,
            adapter,
            onnx,
            weights,
            tokenizer,
        }) => {
            let (format, averages) = (dtype.into(), !no_average);
            let options = export::Options { format, averages, adapter, onnx, weights, tokenizer };
            let exported = export::plan_file(&plan, &checkpoints, &checkpoint, &options, &to);
            exported.map(|exported| format!("{}: {exported}", to.display()))
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
