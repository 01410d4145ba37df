//! `pawl ui`: serves the jobs that were run here to a browser. It reads and writes nothing else.

mod assets;
mod guard;
mod library;
mod live;
mod pages;

use super::print;
use crate::args::ui::UiArgs;
use crate::exit;
use library::Library;
use pawl_local::interrupt::Interrupts;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Where jobs are by default.
const DEFAULT: &str = ".pawl";

/// Error that prevents the pages from being served.
#[derive(Debug, thiserror::Error)]
enum UiError {
    #[error("{}: no such directory: run a job first, or name a directory of state directories", .0.display())]
    NoDirectory(PathBuf),
    #[error("--listen {address}: {source}: choose another address or port, such as {}", free(address))]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the server cannot run: {0}")]
    Server(#[from] io::Error),
}

/// The same address with a free port.
fn free(address: &SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), 0)
}

impl UiError {
    const fn code(&self) -> u8 {
        match self {
            Self::NoDirectory(_) | Self::Listen { .. } => exit::INPUT,
            Self::Server(_) => exit::FAILED,
        }
    }
}

/// Serves pages until Ctrl-C, SIGTERM or SIGHUP, then exits with 0.
pub fn ui(arguments: UiArgs) -> ExitCode {
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::with_error(error.code(), &error),
    }
}

fn serve(UiArgs { directories, listen, hosts }: UiArgs) -> Result<(), UiError> {
    let directories = existing(directories)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served: Result<(), UiError> = runtime.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let bound = TcpListener::bind(listen).await;
        let listener = bound.map_err(|source| UiError::Listen { address: listen, source })?;
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() {
            exit::say(&exposed(address, &directories));
        }
        let pages = pages::routes(Arc::new(Library::new(directories)), guard::Hosts::new(address, &hosts));
        print(&format!("listening on http://{address}\n"));
        tokio::select! {
            served = axum::serve(listener, pages).into_future() => served?,
            _ = interrupts.next() => {}
        }
        Ok(())
    });
    // Pages that are being read, and streams of updates, end with the process.
    runtime.shutdown_background();
    served
}

/// The directories that were named, all of which must exist; by default `.pawl`, which the first run creates.
fn existing(named: Vec<PathBuf>) -> Result<Vec<PathBuf>, UiError> {
    if named.is_empty() {
        return Ok(vec![PathBuf::from(DEFAULT)]);
    }
    match named.iter().find(|directory| !directory.is_dir()) {
        Some(missing) => Err(UiError::NoDirectory(missing.clone())),
        None => Ok(named),
    }
}

/// What everyone who can reach `address` can read.
fn exposed(address: SocketAddr, directories: &[PathBuf]) -> String {
    let directories: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
    format!(
        "warning: --listen {address}: without a password, everyone who can reach this address can read the names, \
         settings, command lines, measurements, messages and events of all jobs in {}: listen on 127.0.0.1, and reach \
         it with `ssh -L {port}:127.0.0.1:{port} HOST`",
        directories.join(", "),
        port = address.port(),
    )
}
