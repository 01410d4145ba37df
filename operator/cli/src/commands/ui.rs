//! `pawl ui`: serves jobs to a browser: those that were run here, those of storages, and those of a cluster.

mod access;
mod action;
mod assets;
#[cfg(feature = "cluster")]
mod cluster;
mod copies;
mod error;
mod guard;
mod library;
mod live;
mod local;
#[cfg(feature = "cluster")]
mod login;
mod pages;
mod place;
#[cfg(feature = "cluster")]
mod recorded;
mod secret;
#[cfg(feature = "cluster")]
mod sessions;
mod source;
mod stamps;
mod storage;

use super::print;
#[cfg(feature = "cluster")]
use crate::args::kubectl::ClusterArgs;
use crate::args::ui::UiArgs;
#[cfg(feature = "cluster")]
use crate::args::ui::UiClusterArgs;
#[cfg(feature = "cluster")]
use crate::commands::kubectl::{error::ClusterError, session::Session};
use crate::exit;
use access::{Access, App};
#[cfg(feature = "cluster")]
use cluster::Cluster;
use copies::CopyError;
use library::Library;
use pawl_local::interrupt::Interrupts;
use pawl_trainer::checkpoint::StorageError;
use place::Place;
#[cfg(feature = "cluster")]
use sessions::Sessions;
use source::{Source, Sources};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use storage::{FirstLook, Storage};
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
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[cfg(feature = "cluster")]
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// The same address with a free port.
fn free(address: &SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), 0)
}

impl UiError {
    const fn code(&self) -> u8 {
        match self {
            Self::NoDirectory(_)
            | Self::Listen { .. }
            | Self::Copy(CopyError::Storage(StorageError::Address { .. })) => exit::INPUT,
            Self::Copy(_) => exit::STATE,
            Self::Server(_) => exit::FAILED,
            #[cfg(feature = "cluster")]
            Self::Cluster(error) => error.code(),
        }
    }
}

/// Serves pages until Ctrl-C, SIGTERM or SIGHUP, then exits with 0.
pub fn ui(arguments: UiArgs) -> ExitCode {
    #[cfg(not(feature = "cluster"))]
    if arguments.cluster {
        return super::without_cluster();
    }
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::with_error(error.code(), &error),
    }
}

fn serve(arguments: UiArgs) -> Result<(), UiError> {
    let directories = existing(&arguments)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Before something is copied, which is deleted at the end.
    let mut interrupts = {
        let _inside = runtime.enter();
        Interrupts::listen()?
    };
    let (places, looks) = places(&arguments, &directories)?;
    let served = runtime.block_on(async {
        tokio::select! {
            served = answer(&arguments, &directories, &places, looks) => served,
            _ = interrupts.next() => Ok(()),
        }
    });
    // Pages that are being read, and streams of updates, end with the process.
    runtime.shutdown_background();
    served
}

/// Answers requests once the storages were copied, until this is dropped.
async fn answer(
    arguments: &UiArgs,
    directories: &[PathBuf],
    places: &[Place],
    looks: Vec<FirstLook>,
) -> Result<(), UiError> {
    let listen = arguments.listen;
    let bound = TcpListener::bind(listen).await;
    let listener = bound.map_err(|source| UiError::Listen { address: listen, source })?;
    let address = listener.local_addr()?;
    for look in looks {
        // A panic is a storage without jobs.
        look.await.unwrap_or(Ok(())).map_err(CopyError::from)?;
    }
    let app = app(arguments, places).await?;
    if !address.ip().is_loopback() {
        exit::say(&exposed(address, &app, directories));
    }
    let pages = pages::routes(app, guard::Hosts::new(address, &arguments.hosts));
    print(&format!("listening on http://{address}\n"));
    Ok(axum::serve(listener, pages).await?)
}

/// What requests are answered from.
async fn app(arguments: &UiArgs, places: &[Place]) -> Result<App, UiError> {
    let sources: Vec<Arc<dyn Source>> = places.iter().map(Place::source).collect();
    #[cfg(feature = "cluster")]
    if arguments.cluster.cluster {
        return of_cluster(&arguments.cluster, places, sources).await;
    }
    #[cfg(not(feature = "cluster"))]
    let _ = arguments;
    let sources = Arc::new(Sources::new(sources, secret::secret()?));
    Ok(App { access: Access::Everyone(sources), allow_actions: false })
}

/// The same with the jobs of a cluster.
#[cfg(feature = "cluster")]
async fn of_cluster(
    arguments: &UiClusterArgs,
    places: &[Place],
    mut sources: Vec<Arc<dyn Source>>,
) -> Result<App, UiError> {
    let UiClusterArgs { namespaces, all_namespaces, context, kubeconfig, allow_actions, login, .. } = arguments;
    let named = ClusterArgs { namespace: None, context: context.clone(), kubeconfig: kubeconfig.clone() };
    let config = Session::config(&named).await?;
    if *login {
        let sessions = Sessions::start(config, namespaces.clone());
        return Ok(App { access: Access::LogIn(sessions), allow_actions: *allow_actions });
    }
    let usual = [config.default_namespace.clone()];
    let shown = match (all_namespaces, &namespaces[..]) {
        (true, _) => &[],
        (false, []) => &usual[..],
        (false, named) => named,
    };
    let cluster = Cluster::open(config, shown, places.iter().map(recorded::records_at).collect())?;
    cluster.ready().await;
    sources.push(Arc::new(cluster));
    let sources = Arc::new(Sources::new(sources, secret::secret()?));
    Ok(App { access: Access::Everyone(sources), allow_actions: *allow_actions })
}

/// Where jobs are, and the first copies of those that are copied.
type Opened = (Vec<Place>, Vec<FirstLook>);

/// The directories, and the storages that were named, whose first copies are under way.
fn places(arguments: &UiArgs, directories: &[PathBuf]) -> Result<Opened, UiError> {
    let (mut all, mut looks): Opened = Default::default();
    if !directories.is_empty() {
        all.push(Place::Directories(Arc::new(Library::new(directories.to_vec()))));
    }
    for place in arguments.places.iter().filter(|place| !is_missing(place)) {
        let Some(url) = url(place) else { continue };
        let (storage, look) = Storage::open(url)?;
        all.push(Place::Storage(storage));
        looks.push(look);
    }
    Ok((all, looks))
}

/// The directory that a place is, if it is one here.
fn directory(place: &Path) -> Option<&Path> {
    match url(place) {
        Some(url) => url.strip_prefix("file://").map(Path::new),
        None => Some(place),
    }
}

/// Whether a place is a directory that does not exist. A storage that does not exist would be made.
fn is_missing(place: &Path) -> bool {
    directory(place).is_some_and(|directory| !directory.is_dir())
}

/// The URL of a storage, if a place is one.
fn url(place: &Path) -> Option<&str> {
    place.to_str().filter(|text| text.contains("://"))
}

/// The directories that were named, and those of storages that are missing, of which the list of jobs says so: at least
/// one place must exist. If no place was named: `.pawl`, which the first run creates, and nothing where users log in,
/// who may see what the API server shows them.
fn existing(arguments: &UiArgs) -> Result<Vec<PathBuf>, UiError> {
    #[cfg(feature = "cluster")]
    if arguments.cluster.login {
        return Ok(Vec::new());
    }
    if arguments.places.is_empty() {
        return Ok(vec![PathBuf::from(DEFAULT)]);
    }
    if let Some(missing) = arguments.places.first().filter(|_| arguments.places.iter().all(|place| is_missing(place))) {
        return Err(UiError::NoDirectory(directory(missing).unwrap_or(missing).to_owned()));
    }
    let shown = arguments.places.iter().filter(|place| url(place).is_none() || is_missing(place));
    Ok(shown.filter_map(|place| directory(place)).map(Path::to_owned).collect())
}

/// What everyone who can reach `address` can do.
fn exposed(address: SocketAddr, app: &App, places: &[PathBuf]) -> String {
    #[cfg_attr(
        not(feature = "cluster"),
        expect(clippy::infallible_destructuring_match, reason = "users log in where jobs are of a cluster")
    )]
    let sources = match &app.access {
        #[cfg(feature = "cluster")]
        Access::LogIn(_) => {
            return format!(
                "warning: --listen {address}: tokens and pages are sent without encryption: put a proxy with TLS before \
                 it, or reach it with `kubectl port-forward`"
            );
        }
        Access::Everyone(sources) => sources,
    };
    let mut places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
    places.extend(sources.elsewhere());
    let change = if app.allow_actions { ", and change the jobs of the cluster as you can" } else { "" };
    format!(
        "warning: --listen {address}: without a password, everyone who can reach this address can read the names, \
         settings, command lines, measurements, messages and events of all jobs in {}{change}: listen on 127.0.0.1, and \
         reach it with `ssh -L {port}:127.0.0.1:{port} HOST`",
        places.join(", "),
        port = address.port(),
    )
}
