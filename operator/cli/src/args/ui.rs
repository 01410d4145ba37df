//! Arguments of `pawl ui`.

use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `pawl ui`.
#[derive(Debug, Args)]
pub struct UiArgs {
    /// Directories of state directories or of storages, one of these itself, or storages of jobs such as
    /// s3://BUCKET/DIR, which are looked at every half minute. Default: .pawl
    #[arg(value_name = "PLACE")]
    pub places: Vec<PathBuf>,
    /// Address and port to listen on; port 0 is a free one. Without --login there is no password: another address than
    /// a loopback address lets everyone who can reach it read the jobs.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080", value_parser = address)]
    pub listen: SocketAddr,
    /// Host name under which browsers may open the pages, besides the address and localhost. May be repeated.
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// The cluster whose jobs are shown.
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    pub cluster: UiClusterArgs,
    /// Not in this build.
    #[cfg(not(feature = "cluster"))]
    #[arg(long, hide = true)]
    pub cluster: bool,
}

/// The cluster whose jobs are shown.
#[cfg(feature = "cluster")]
#[derive(Debug, Args)]
pub struct UiClusterArgs {
    /// Show the TrainingJobs of a cluster too, with your permissions there.
    #[arg(long)]
    pub cluster: bool,
    /// Namespace whose jobs are shown. May be repeated. Default: that of the context; with --login, all.
    #[arg(short, long = "namespace", value_name = "NAME", value_delimiter = ',')]
    #[arg(requires = "cluster", value_parser = namespace)]
    pub namespaces: Vec<String>,
    /// Show the jobs of all namespaces.
    #[arg(short = 'A', long, requires = "cluster", conflicts_with = "namespaces")]
    pub all_namespaces: bool,
    /// Context of the kubeconfig. Default: the current one.
    #[arg(long, value_name = "NAME", requires = "cluster")]
    pub context: Option<String>,
    /// The kubeconfig. Default: $KUBECONFIG, ~/.kube/config, or the API server of a pod.
    #[arg(long, value_name = "PATH", requires = "cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// Let users change jobs: suspend, resume, roll back and pin, as kubectl pawl does.
    #[arg(long, requires = "cluster")]
    pub allow_actions: bool,
    /// Let each user log in with a token of their own for the API server, which decides what they see and change: by a
    /// form, or by the header `Authorization: Bearer` of an authenticating proxy. Credentials of the kubeconfig are not
    /// used.
    #[arg(long, requires = "cluster", conflicts_with = "places")]
    pub login: bool,
}

/// A name that a namespace may have.
#[cfg(feature = "cluster")]
pub fn namespace(text: &str) -> Result<String, String> {
    let is_name = (1..=63).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if is_name {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is no name of a namespace: write names such as team-a"))
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080".to_owned())
}
