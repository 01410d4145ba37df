//! `pawl-bench`: arms alternate within one run, so that a busy machine slows all of them alike; what counts is the ratio.

mod arms;
mod report;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Speed of the training engine on this machine.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The training step of UPS: the graph executor compared with the eager one, and with the PyTorch peer if given.
    UpsSmall(UpsSmall),
}

/// What to measure.
#[derive(clap::Args)]
struct UpsSmall {
    /// Preset of the workload: smoke, small, medium.
    #[arg(long, default_value = "smoke")]
    preset: String,
    /// Items of a step (half of them of each task).
    #[arg(long, default_value_t = 2)]
    items: u32,
    /// Pairs per item. Default: the preset's.
    #[arg(long)]
    pairs: Option<u32>,
    /// Threads of every arm.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Rounds: in each, every arm runs once.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Steps of an arm per round.
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// A Python with torch and numpy.
    #[arg(long, requires = "peer")]
    torch: Option<PathBuf>,
    /// `ups_peer.py`.
    #[arg(long, requires = "torch")]
    peer: Option<PathBuf>,
    /// Skip the eager arm (it is slow on large presets).
    #[arg(long)]
    no_eager: bool,
    /// Print the kernels that take most of the time.
    #[arg(long)]
    profile: bool,
    /// Print `kernels` or `memory` of the step.
    #[arg(long, value_parser = ["kernels", "memory"])]
    dump: Option<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    let Cli { bench: Bench::UpsSmall(args) } = Cli::parse();
    arms::ups(&args)
}
