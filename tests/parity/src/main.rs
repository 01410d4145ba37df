//! `pawl-parity`: trains the same weights on the same batches in the same order as the PyTorch peer, in alternating
//! rounds, and prints losses side by side, and ratios of speed and memory.
//!
//! The peer exports its first weights, its data and its order of batches before its first round. Each round of each arm
//! is a process of its own, so that neither's memory or clocks weigh on the other's.

mod atft;
mod compare;
mod export;
mod forex;
mod ours;
mod peer;
mod slm;
mod ups;
mod vision_bdh;

use clap::{Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// UPS, with its recipe for 2 or 4 GPUs, on one device.
    Ups {
        #[command(flatten)]
        comparison: ComparisonOptions,
        #[command(flatten)]
        experiment: ups::UpsExperiment,
    },
    /// The language model, on one device.
    Slm {
        #[command(flatten)]
        comparison: ComparisonOptions,
        #[command(flatten)]
        experiment: slm::SlmExperiment,
    },
    /// Vision-BDH on generated images, on one device.
    VisionBdh {
        #[command(flatten)]
        comparison: ComparisonOptions,
        #[command(flatten)]
        experiment: vision_bdh::VisionExperiment,
    },
    /// Forex on simulated bars, on one device. The arms draw different noise: losses are comparable on average only.
    Forex {
        #[command(flatten)]
        comparison: ComparisonOptions,
        #[command(flatten)]
        experiment: forex::ForexExperiment,
    },
    /// ATFT-GAT-FAN on a simulated panel, on one device.
    Atft {
        #[command(flatten)]
        comparison: ComparisonOptions,
        #[command(flatten)]
        experiment: atft::AtftExperiment,
    },
    /// One round of our arm on the peer's export; prints one line of JSON.
    #[command(hide = true)]
    Ours {
        /// The folder of the export.
        #[arg(long)]
        export: PathBuf,
        /// Repetition to run, as JSON.
        #[arg(long)]
        repetition: String,
    },
}

/// Options of a comparison.
#[derive(clap::Args)]
struct ComparisonOptions {
    /// The peer: `ups_peer.py`, `slm_peer.py` or `slm_best.py`, `vision_bdh_peer.py`, `forex_vae_sssd_peer.py` or
    /// `atft_gat_fan_peer.py`.
    #[arg(long)]
    peer: PathBuf,
    /// A Python that has torch.
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Rounds of each arm.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Directory of the export (gigabytes at full size), which is kept and reused.
    #[arg(long, default_value = "parity")]
    work: PathBuf,
    /// Use a different seed per round, validate after its last step, and compare the difference of the arms with that
    /// of the peer's seeds.
    #[arg(long)]
    validate: bool,
    /// Number of losses to print.
    #[arg(long, default_value_t = 20)]
    losses: usize,
    /// Print one JSON document instead of tables.
    #[arg(long)]
    json: bool,
    /// Additional arguments for the peer, which take precedence: `-- --compile none`.
    #[arg(last = true)]
    more: Vec<String>,
}

/// What both arms run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "workload", rename_all = "lowercase")]
pub enum Experiment {
    /// The Universal Physics Stack.
    Ups(ups::UpsExperiment),
    /// The language model.
    Slm(slm::SlmExperiment),
    /// Vision-BDH.
    #[serde(rename = "vision-bdh")]
    VisionBdh(vision_bdh::VisionExperiment),
    /// Forex.
    Forex(forex::ForexExperiment),
    /// ATFT-GAT-FAN.
    Atft(atft::AtftExperiment),
}

/// What a round of either arm runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Repetition {
    experiment: Experiment,
    seed: u64,
    /// Whether what is held out is looked at after the last step.
    validates: bool,
}

/// Precision of both arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Exact float32 products.
    Fp32,
    /// bfloat16, with float32 sums.
    Bf16,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Ups { comparison, experiment } => compare::run(&comparison, &Experiment::Ups(experiment)),
        Command::Slm { comparison, experiment } => compare::run(&comparison, &Experiment::Slm(experiment)),
        Command::VisionBdh { comparison, experiment } => compare::run(&comparison, &Experiment::VisionBdh(experiment)),
        Command::Forex { comparison, experiment } => compare::run(&comparison, &Experiment::Forex(experiment)),
        Command::Atft { comparison, experiment } => compare::run(&comparison, &Experiment::Atft(experiment)),
        Command::Ours { export, repetition } => {
            println!("{}", serde_json::to_string(&ours::round(&export, &serde_json::from_str(&repetition)?)?)?);
            Ok(())
        }
    }
}
