//! `pawl`: one manifest, judged phase by phase. See `pawl --help`.

mod args;
mod commands;
mod exit;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    commands::dispatch(args::Arguments::parse().command)
}
