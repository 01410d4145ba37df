//! The process of a rank, from its environment to its exit code.

use crate::ending::Ending;
use crate::launch::Launch;
use crate::report;
use crate::signals::{self, StopRequest};
use pawl_contract::exit::Outcome;
use pawl_contract::report::Report;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// Runs `launch`, such as that of [`Launch::from_env`], by `run`, which is called with the launch, the flag of a
/// request to stop, and the start of the process. Writes the report and returns the contract's exit code. A launch that
/// is to report ends with the process that started it, its agent.
///
/// A panic of `run` is the outcome [`Outcome::Failed`].
pub fn run(launch: Result<Launch, Ending>, run: impl FnOnce(&Launch, &StopRequest, Instant) -> Report) -> ExitCode {
    let started = Instant::now();
    log();
    let supervised = launch.as_ref().is_ok_and(|launch| launch.report.is_some());
    let ready = StopRequest::on_sigterm(supervised)
        .and_then(|stop| if supervised { signals::die_with_parent().map(|()| stop) } else { Ok(stop) })
        .and_then(|stop| signals::survive_file_size_limit().map(|()| stop));
    let (launch, stop) = match (launch, ready) {
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
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&launch, &stop, started)));
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

/// Logs to stderr, by the filter of `RUST_LOG`. The host program may have installed its own subscriber.
pub fn log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    let _ = log.try_init();
}
