//! `pawl`: measures the phases of a training job one by one. See `pawl --help`.

mod args;
mod commands;
mod exit;
mod version;

use clap::Parser;
use std::path::Path;
use std::process::ExitCode;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Dispatches on the name of the program: a link is enough for kubectl to find the plugin.
fn main() -> ExitCode {
    // With clients of object stores, TLS has two implementations of its cryptography, and would not know which to take.
    #[cfg(feature = "cluster")]
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    match Path::new(&program).file_stem().and_then(|name| name.to_str()) {
        #[cfg(feature = "cluster")]
        Some("kubectl-pawl") => commands::kubectl::plugin(),
        #[cfg(feature = "cluster")]
        Some("kubectl_complete-pawl") => commands::kubectl::complete::answer(words),
        #[cfg(not(feature = "cluster"))]
        Some("kubectl-pawl" | "kubectl_complete-pawl") => commands::without_cluster(),
        _ => commands::dispatch(args::Arguments::parse()),
    }
}
