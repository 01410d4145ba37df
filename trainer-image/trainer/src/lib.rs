//! The trainer: one process per rank that runs one launch of a plan and reports its measurements.
//!
//! [`run_from_env`] is the whole program: it reads the contract's environment and `plan.json`, runs the launch, writes
//! `progress.json` and `report.json`, and returns the contract's exit code. The main loop is [`train::train`]; every other
//! concern has a file of its own.

mod available;
pub mod budget;
pub mod checkpoint;
pub mod collective;
pub mod device;
pub mod dump;
pub mod ending;
mod epochs;
pub mod executors;
pub mod export;
mod feed;
#[cfg(feature = "cuda")]
mod gpu;
pub mod launch;
pub mod losses;
pub mod metrics;
pub mod model_flops;
#[cfg(feature = "cuda")]
mod nvml;
pub mod profile;
pub mod progress;
pub mod rank;
pub mod recipe;
pub mod report;
pub mod run;
mod saving;
pub mod session;
pub mod signals;
mod test_split;
pub mod throughput;
pub mod train;
pub mod vote;
#[cfg(feature = "cuda")]
mod xid;

use pawl_contract::exit::Outcome;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

pub use dump::{View, plan, plan_file};

/// Runs the launch that the environment names; see [`launch::Launch::from_env`] and [`pawl_contract::env`].
pub fn run_from_env() -> ExitCode {
    let started = Instant::now();
    // The host program may have installed its own subscriber.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    let _ = log.try_init();
    let ready = signals::StopRequest::on_sigterm()
        .and_then(|stop| signals::die_with_parent().map(|()| stop))
        .and_then(|stop| signals::survive_file_size_limit().map(|()| stop));
    let (launch, stop) = match (launch::Launch::from_env(), ready) {
        (Ok(launch), Ok(stop)) => (launch, stop),
        (Err(ending), _) => {
            tracing::error!("{ending}");
            return ExitCode::from(ending.outcome().exit_code());
        }
        (_, Err(error)) => {
            tracing::error!("cannot handle signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| rank::run(&launch, &stop, started)));
    let report = outcome.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let message = format!("the trainer panicked, which is a bug: {}", said.unwrap_or("no message"));
        report::bare(&launch.plan, launch.rank, Outcome::Failed, message, started.elapsed())
    });
    match report.outcome {
        Outcome::Done => tracing::info!(steps = report.measured.steps, items = report.measured.items, "done"),
        outcome => tracing::error!(?outcome, "{}", report.message),
    }
    if let Some(path) = &launch.report
        && let Err(error) = report::write(path, &report)
    {
        tracing::error!("cannot write the report: {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    ExitCode::from(report.outcome.exit_code())
}
