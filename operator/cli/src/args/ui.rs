//! Arguments of `pawl ui`.

use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `pawl ui`.
#[derive(Debug, Args)]
pub struct UiArgs {
    /// Directories of state directories, or state directories. Default: .pawl
    #[arg(value_name = "DIR")]
    pub directories: Vec<PathBuf>,
    /// Address and port to listen on; port 0 is a free one. There is no password: another address than a loopback
    /// address lets everyone who can reach it read the jobs.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080", value_parser = address)]
    pub listen: SocketAddr,
    /// Host name under which browsers may open the pages, besides the address and localhost. May be repeated.
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080".to_owned())
}
