//! The command line.

use clap::Parser;
use std::path::PathBuf;
use std::time::Duration;

/// Runs jobs under random faults on the test cluster.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// Minutes during which faults happen and new jobs start
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Seed of the faults; default: chosen and printed
    #[arg(long, default_value_t = fastrand::u64(..1_000_000))]
    pub seed: u64,
    /// File for the events, as lines of JSON; default: target/soak/SEED.jsonl
    #[arg(long)]
    log: Option<PathBuf>,
    /// Kinds of faults to inject, such as `pod-deleted`; default: all
    #[arg(long, value_delimiter = ',')]
    pub faults: Vec<String>,
}

impl Options {
    /// How long faults happen and new jobs start.
    pub fn time(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }

    /// Where the events are written.
    pub fn log(&self) -> PathBuf {
        let default = || pawl_e2e::programs::repository().join(format!("target/soak/{}.jsonl", self.seed));
        self.log.clone().unwrap_or_else(default)
    }
}
