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
    /// Measures, and appends the results to a file.
    Measure {
        /// File to append to: one JSON object per line.
        #[arg(long)]
        out: PathBuf,
        #[command(subcommand)]
        what: What,
    },
    /// Prints the results and whether they are within the limits.
    Judge {
        /// File of results.
        results: PathBuf,
    },
}

#[derive(Subcommand)]
enum What {
    /// Many gangs at once, as plain batch Jobs.
    Raw {
        /// Number of gangs.
        jobs: usize,
    },
    /// Many gangs at once, as TrainingJobs.
    Pawl {
        /// Number of gangs.
        jobs: usize,
    },
    /// One gang at a time: time until its pods run, and until they run again after one of them fails.
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
