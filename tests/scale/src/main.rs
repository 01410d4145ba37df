//! Measures what the operator costs, and judges it: `tests/scale/run` says how it is called.
//!
//! - [`gangs`]: the same gang as a `TrainingJob` and as a plain batch Job;
//! - [`nodes`]: fake nodes, whose pods KWOK plays;
//! - [`census`]: which pods there are, since when;
//! - [`operator`]: the operator as a process, and what it uses;
//! - [`fleet`], [`idle`]: what is measured;
//! - [`verdict`]: the limits.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that cannot go on fails")]

mod census;
mod fleet;
mod gangs;
mod idle;
mod nodes;
mod operator;
mod verdict;

use clap::{Parser, Subcommand};
use pawl_e2e::scene;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use verdict::Measured;

/// Measures what the operator costs. `measure` runs inside the cluster's network (tests/cluster/with --nodes 0).
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures, and adds what was measured to a file.
    Measure {
        /// Where to add it: a JSON object a line.
        #[arg(long)]
        out: PathBuf,
        #[command(subcommand)]
        what: What,
    },
    /// Prints what was measured and whether it is within the limits.
    Judge {
        /// What was measured.
        results: PathBuf,
    },
}

#[derive(Subcommand)]
enum What {
    /// Many gangs at once, as plain batch Jobs.
    Raw {
        /// How many.
        jobs: usize,
    },
    /// Many gangs at once, as TrainingJobs.
    Pawl {
        /// How many.
        jobs: usize,
    },
    /// One gang at a time: how fast its pods are there, and are there again when one of them is hurt.
    Idle,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Measure { out, what } => {
            scene(async |scene| {
                let measured = match what {
                    What::Raw { jobs } => Measured::Raw(fleet::raw(scene, jobs).await),
                    What::Pawl { jobs } => Measured::Pawl(fleet::pawl(scene, jobs).await),
                    What::Idle => Measured::Idle(idle::idle(scene).await),
                };
                add(&out, &measured);
            });
            ExitCode::SUCCESS
        }
        Command::Judge { results } => {
            let text = std::fs::read_to_string(&results).expect("the results");
            let all =
                text.lines().map(|line| serde_json::from_str(line).expect("what was measured")).collect::<Vec<_>>();
            if verdict::judge(&all) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

fn add(out: &Path, measured: &Measured) {
    let mut file = File::options().create(true).append(true).open(out).expect("the file of results");
    writeln!(file, "{}", serde_json::to_string(measured).unwrap()).unwrap();
}
