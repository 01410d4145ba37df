//! `pawl-bench`: arms alternate within one run, so that a busy machine slows all of them alike; what counts is the
//! ratio.

mod arms;
mod cases;
mod report;
mod save;

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
    /// The training step of Vision-BDH in float32, likewise.
    VisionBdh(VisionBdh),
    /// What a checkpoint costs the training of UPS on the CPU: `pawl-bench ups-save` prints the share of a minute's
    /// steps.
    UpsSave(UpsSave),
}

/// The checkpoint to measure.
#[derive(clap::Args)]
struct UpsSave {
    /// Preset of the workload: smoke, small, medium (the full model).
    #[arg(long, default_value = "medium")]
    preset: String,
    /// Threads of the training, among which the writer's work is divided.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Saves; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Directory of the checkpoints. Default: a temporary one.
    #[arg(long)]
    storage: Option<PathBuf>,
}

/// The step of UPS to measure.
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
    #[command(flatten)]
    run: Rounds,
}

/// The step of Vision-BDH to measure: generated images, dropout, linear layout, cached rotary tables.
#[derive(clap::Args)]
struct VisionBdh {
    /// Preset of the workload: smoke, medium (the full model).
    #[arg(long, default_value = "smoke", value_parser = ["smoke", "medium"])]
    preset: String,
    /// Images of a step.
    #[arg(long, default_value_t = 8)]
    batch: u32,
    #[command(flatten)]
    run: Rounds,
}

/// The arms and their rounds.
#[derive(clap::Args)]
struct Rounds {
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
    /// The workload's PyTorch peer: a script.
    #[arg(long, requires = "torch")]
    peer: Option<PathBuf>,
    /// Measure the CPU time of all threads instead of the elapsed time: on a machine with other load, with `--threads
    /// 1`.
    #[arg(long)]
    cpu_time: bool,
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
    match Cli::parse().bench {
        Bench::UpsSmall(args) => arms::compare(&cases::ups(&args)?, &args.run),
        Bench::VisionBdh(args) => arms::compare(&cases::vision_bdh(&args)?, &args.run),
        Bench::UpsSave(args) => save::ups(&args),
    }
}
