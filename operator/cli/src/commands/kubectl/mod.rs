//! `kubectl pawl`: a file per subcommand.

pub mod complete;
pub mod error;
pub mod evidence;
mod fetch;
mod logs;
pub mod pin;
mod preflight;
mod replay;
mod report;
mod restart;
mod search;
pub mod session;
pub mod status;
pub mod suspend;
mod watch;

use super::print;
use crate::args::kubectl::{KubectlArgs, KubectlCommand, Plugin, SearchCommand};
use crate::exit;
use clap::{CommandFactory, Parser};
use error::ClusterError;
use session::Session;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs the command line of a program called `kubectl-pawl`.
pub fn plugin() -> ExitCode {
    kubectl(Plugin::parse().arguments)
}

/// Runs the command.
pub fn kubectl(arguments: KubectlArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::with_error(exit::FAILED, &error),
    };
    let done = runtime.block_on(dispatch(arguments));
    // Do not wait for a pending DNS lookup.
    runtime.shutdown_background();
    done.unwrap_or_else(|error| exit::with_error(error.code(), &error))
}

async fn dispatch(KubectlArgs { cluster, command }: KubectlArgs) -> Result<ExitCode, ClusterError> {
    let session = || Session::open(&cluster);
    match command {
        KubectlCommand::Status { job, watch: true, output } => watch::watch(&session().await?, &job.name, output).await,
        KubectlCommand::Status { job, watch: false, output } => {
            status::status(&session().await?, &job.name, output).await
        }
        KubectlCommand::Replay { job, gates, output } => {
            replay::replay(&session().await?, &job.name, gates.as_deref(), output).await
        }
        KubectlCommand::Report { job, out, records } => {
            report::report(&session().await?, &job.name, out.as_deref(), records.as_deref()).await
        }
        KubectlCommand::Search(SearchCommand::Export { job, export }) => {
            search::export(&session().await?, &job.name, &export).await
        }
        KubectlCommand::Rollback { job, phases, all } => {
            pin::rollback(&session().await?, &job.name, &phases, all).await
        }
        KubectlCommand::Pin { job, phases, to } => pin::pin(&session().await?, &job.name, &phases, to.pin()).await,
        KubectlCommand::Suspend { job } => suspend::suspend(&session().await?, &job.name, true).await,
        KubectlCommand::Resume { job } => suspend::suspend(&session().await?, &job.name, false).await,
        KubectlCommand::Restart { job } => restart::restart(&session().await?, &job.name).await,
        KubectlCommand::Logs { job, follow, tail, attempt, rank } => {
            let selection = logs::LogSelection { follow, tail, attempt, rank };
            logs::logs(&session().await?, &job.name, &selection).await
        }
        KubectlCommand::Fetch { job, out, newest, records, storage, image, pull_secrets } => {
            let directory = out.unwrap_or_else(|| PathBuf::from(&job.name));
            let selection = fetch::Selection { newest, records, storage, image, pull_secrets };
            fetch::fetch(&session().await?, &job.name, &directory, &selection).await
        }
        KubectlCommand::Preflight(arguments) => preflight::preflight(&cluster, &arguments).await,
        KubectlCommand::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Plugin::command(), "kubectl-pawl", &mut script);
            Ok(print(&String::from_utf8_lossy(&script)))
        }
    }
}
