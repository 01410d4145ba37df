//! `pawl agent`: the entry point of a pod.

use crate::args::agent::{AgentArgs, AgentCommand, PodArgs};
use crate::exit;
use pawl_agent::{AgentError, AttemptEnd, AttemptResult, Event, Live, Node, Rendezvous, Stop};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use pawl_contract::{pod, record, report};
use pawl_local::interrupt::Interrupts;
use pawl_trainer::checkpoint::archive;
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

/// Error that prevents the pod from running its part of the attempt.
#[derive(Debug, thiserror::Error)]
enum PodError {
    #[error("--plan: missing: give the path of the attempt's plan")]
    NoPlan,
    #[error("{}: {source}", path.display())]
    Plan { path: PathBuf, source: io::Error },
    #[error("--address {0}: has no port: write host:port")]
    Address(String),
    #[error("port {port}: {source}")]
    Listen { port: u16, source: io::Error },
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl PodError {
    fn outcome(&self) -> Outcome {
        match self {
            Self::NoPlan | Self::Plan { .. } | Self::Address(_) | Self::Agent(AgentError::InvalidPlan { .. }) => {
                Outcome::InvalidPlan
            }
            Self::Listen { .. } | Self::Agent(_) | Self::Io(_) => Outcome::Failed,
        }
    }
}

/// Runs the ranks of this pod, writes the termination message, and exits with an exit code of the contract.
pub fn agent(AgentArgs { command, pod }: AgentArgs) -> ExitCode {
    match command {
        Some(AgentCommand::Install { directory }) => match pawl_agent::install(&directory) {
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => exit::with_error(exit::FAILED, &error),
        },
        Some(AgentCommand::Archive { checkpoints, name }) => match archive(&checkpoints, &name, io::stdout().lock()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit::with_error(exit::FAILED, &error),
        },
        Some(AgentCommand::Wait) => match wait() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit::with_error(exit::FAILED, &error),
        },
        None => run(pod),
    }
}

/// Returns after SIGTERM or SIGINT.
fn wait() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}

fn run(pod: PodArgs) -> ExitCode {
    log_to_stderr();
    let (replica, log) = (pod.replica, pod.termination_log.clone());
    let (outcome, termination_message) = match attempt(pod) {
        Ok(result) => (outcome(&result), termination_message(replica, &result)),
        Err(error) => {
            tracing::error!("{error}");
            (error.outcome(), error.to_string())
        }
    };
    if let Err(error) = std::fs::write(&log, termination_message) {
        tracing::error!("{}: {error}: the results are only in the working directory", log.display());
    }
    ExitCode::from(outcome.exit_code())
}

/// The termination message: on pod 0 the results; on other pods, and when there are no results, the reason of the end
/// as text.
fn termination_message(replica: u32, result: &AttemptResult) -> String {
    let only_a_message = result.launches.is_empty() && !result.message.is_empty();
    if replica == 0 && !only_a_message { report::fold(&result.launches) } else { result.message.clone() }
}

/// Outcome that determines the pod's exit code: `Done` when all launches ran, else the reason. All pods of a gang agree
/// on the rank that failed first.
fn outcome(result: &AttemptResult) -> Outcome {
    match result.end {
        AttemptEnd::Complete => Outcome::Done,
        AttemptEnd::Stopped => Outcome::Stopped,
        AttemptEnd::LostPeer => Outcome::LostPeer,
        AttemptEnd::LaunchFailed => {
            let failed = result.launches.iter().rev().find(|launch| launch.outcome != Outcome::Done);
            failed.map_or(Outcome::Failed, |launch| launch.outcome)
        }
    }
}

/// Logs to standard error: standard output carries the output of the ranks.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().json().flatten_event(true).with_current_span(false);
    lines.with_env_filter(filter).with_writer(io::stderr).init();
}

fn read_plan(path: Option<&Path>) -> Result<AttemptPlan, PodError> {
    let path = path.ok_or(PodError::NoPlan)?;
    let read = || serde_json::from_slice(&std::fs::read(path)?).map_err(io::Error::other);
    read().map_err(|source| PodError::Plan { path: path.to_owned(), source })
}

fn attempt(arguments: PodArgs) -> Result<AttemptResult, PodError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        // First: the kernel discards signals to process 1 that have no handler.
        let interrupts = Interrupts::listen()?;
        pawl_agent::adopt_orphans()?;
        let plan = read_plan(arguments.plan.as_deref())?;
        let span = tracing::info_span!("attempt", job = plan.job, attempt = plan.attempt, pod = arguments.replica);
        // Everything on this thread belongs to this attempt.
        let _entered = span.entered();
        run_attempt(&plan, arguments, interrupts).await
    });
    // Do not wait for a pending DNS lookup.
    runtime.shutdown_background();
    result
}

async fn run_attempt(
    plan: &AttemptPlan,
    arguments: PodArgs,
    mut interrupts: Interrupts,
) -> Result<AttemptResult, PodError> {
    let port = arguments.http_port;
    let node = node(plan, arguments)?;
    let live = Live::new(plan, node.replica, &node.work_dir)?;
    if let Some(port) = port {
        tokio::spawn(pawl_agent::serve(listen(port)?, live.clone()));
    }
    let (stop, stopped) = watch::channel(Stop::No);
    tracing::info!(launches = plan.launches.len(), ranks = plan.ranks(), "attempt started");
    let planned = plan.clone();
    let observer = move |event: Event| {
        live.hear(&event);
        log_event(&planned, &event);
    };
    let run = pawl_agent::run(plan, node, stopped, observer);
    tokio::pin!(run);
    loop {
        tokio::select! {
            result = &mut run => {
                let result = result?;
                tracing::info!(outcome = %outcome(&result), "attempt ended{}{}", colon(&result.message), result.message);
                return Ok(result);
            }
            signal = interrupts.next() => {
                tracing::info!("{signal}: stopping the ranks");
                // Repeated signals change nothing: SIGKILL ends the pod without a checkpoint.
                let _ = stop.send(Stop::Gracefully);
            }
        }
    }
}

/// This pod and its span in the gang.
fn node(plan: &AttemptPlan, arguments: PodArgs) -> Result<Node, PodError> {
    let trainer: Vec<OsString> = if arguments.trainer.is_empty() {
        vec![std::env::current_exe()?.into_os_string(), "trainer".into()]
    } else {
        arguments.trainer
    };
    let mut node = Node::local(std::path::absolute(&arguments.work_dir)?, trainer);
    node.replica = arguments.replica;
    node.echo = true;
    node.features = crate::version::features();
    node.env = threads(plan.ranks_per_replica);
    node.env.extend(user(|name| std::env::var_os(name).is_some()));
    node.env.extend(caches(arguments.caches.as_deref(), |name| std::env::var_os(name).is_some()));
    node.env.extend(driver(Path::new(pod::DRIVER), std::env::var_os("LD_LIBRARY_PATH")));
    let saves = plan.launches.iter().any(|launch| launch.kind == LaunchKind::Train);
    let grace = if saves { pod::CHECKPOINT_GRACE_SECONDS } else { pod::STOP_GRACE_SECONDS };
    node.limits.stop_grace = Duration::from_secs(arguments.stop_grace.unwrap_or(grace));
    if let Some(checkpoints) = arguments.checkpoints {
        node.checkpoints = checkpoints;
    }
    node.proves_storage = arguments.proves_storage;
    // The operator puts it beside the plan.
    node.status = arguments.plan.as_deref().and_then(Path::parent).map(|directory| directory.join(record::STATUS));
    if let Some(data) = arguments.data {
        node.data = data;
    }
    node.rendezvous = match (arguments.address, arguments.token_file) {
        (Some(address), Some(token_file)) if arguments.replica == 0 => {
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
            let listener = listen(port.ok_or_else(|| PodError::Address(address.clone()))?)?;
            Rendezvous::Listen { listener, address, token_file }
        }
        (Some(address), Some(token_file)) => Rendezvous::Join { address, token_file },
        _ => Rendezvous::Local,
    };
    Ok(node)
}

/// Listens on all addresses, IPv4 and IPv6 where the node supports both.
fn listen(port: u16) -> Result<TcpListener, PodError> {
    let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    let listener = both.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
    listener.map_err(|source| PodError::Listen { port, source })
}

/// Each rank's share of the CPUs available to the pod, unless the pod's environment sets the number of threads.
fn threads(ranks: u32) -> Vec<(String, String)> {
    // This takes cgroup limits into account.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let share = (processors / ranks.max(1) as usize).max(1);
    ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"]
        .into_iter()
        .filter(|name| std::env::var_os(name).is_none())
        .map(|name| (name.to_owned(), share.to_string()))
        .collect()
}

/// A name for the user of the pod, which images seldom know: Python's `getpass.getuser` fails without one, and with it
/// PyTorch's compiler.
fn user(is_set: impl Fn(&str) -> bool) -> Option<(String, String)> {
    let named = ["LOGNAME", "USER", "LNAME", "USERNAME"].into_iter().any(is_set);
    (!named).then(|| ("USER".to_owned(), "pawl".to_owned()))
}

/// Caches of libraries: the variable with its directory, its name below the place for all of them, and another variable
/// from which a library derives it. Their entries are named by what they depend on and are replaced atomically, so that
/// the pods of a job share them. Those of the driver and of PyTorch's C++ extensions are not among them: they have
/// locks that a killed process leaves.
const CACHES: [(&str, &str, &str); 4] = [
    ("HF_HOME", "huggingface", "XDG_CACHE_HOME"),
    ("TORCHINDUCTOR_CACHE_DIR", "inductor", "TORCHINDUCTOR_CACHE_DIR"),
    ("TRITON_CACHE_DIR", "triton", "TRITON_HOME"),
    ("PAWL_KERNEL_CACHE", "kernels", "XDG_CACHE_HOME"),
];

/// The variables of [`CACHES`] in `place`, except for what the job or its image sets.
fn caches(place: Option<&Path>, is_set: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let Some(place) = place else { return Vec::new() };
    let open = CACHES.iter().filter(|(name, _, from)| !is_set(name) && !is_set(from));
    open.map(|(name, folder, _)| ((*name).to_owned(), place.join(folder).to_string_lossy().into_owned())).collect()
}

/// The library path with the driver's libraries, where some clusters (GKE) mount them in a place that the loader does
/// not know; `None`: no change.
fn driver(folder: &Path, given: Option<OsString>) -> Option<(String, String)> {
    let given = given.and_then(|path| path.into_string().ok()).unwrap_or_default();
    let known = given.split(':').any(|part| Path::new(part) == folder);
    let parts = [given.as_str(), folder.to_str()?].into_iter().filter(|part| !part.is_empty());
    (folder.is_dir() && !known).then(|| ("LD_LIBRARY_PATH".to_owned(), parts.collect::<Vec<_>>().join(":")))
}

/// Logs an event of a launch of `plan`, with its title and its name, which is also the name of its directory.
fn log_event(plan: &AttemptPlan, event: &Event) {
    let title = |launch: &str| {
        let planned = plan.launches.iter().find(|planned| planned.launch == launch);
        planned.map_or_else(|| launch.to_owned(), |planned| planned.display_title().to_owned())
    };
    match event {
        Event::LaunchStarted { launch, .. } => tracing::info!(launch, "{}: started", title(launch)),
        Event::LaunchEnded(report) if report.outcome == Outcome::Done => tracing::info!(
            launch = report.launch,
            steps = report.measured.steps,
            items_per_second = report.measured.items_per_second,
            "{}: done",
            title(&report.launch)
        ),
        Event::LaunchEnded(report) => tracing::warn!(
            launch = report.launch,
            outcome = %report.outcome,
            rank = report.failure.as_ref().and_then(|failure| failure.rank),
            steps = report.measured.steps,
            "{}: {}{}{}",
            title(&report.launch),
            report.outcome,
            colon(&report.message),
            report.message
        ),
        Event::Warning { launch, message } => tracing::warn!(launch, "{}: {message}", title(launch)),
        Event::Progress(_) => {}
    }
}

fn colon(text: &str) -> &'static str {
    if text.is_empty() { "" } else { ": " }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::nobody(&[], Some("pawl"))]
    #[case::of_the_image(&["USER"], None)]
    #[case::by_its_other_name(&["LOGNAME", "HOME"], None)]
    fn a_user_without_a_name_gets_one(#[case] set: &[&str], #[case] expected: Option<&str>) {
        let given = user(|name| set.contains(&name));
        assert_eq!(given, expected.map(|name| ("USER".to_owned(), name.to_owned())));
    }

    #[test]
    fn caches_of_the_job_or_of_its_image_stay_where_they_are() {
        let names = |set: &[&str]| {
            let all = caches(Some(Path::new("/claim")), |name| set.contains(&name));
            all.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let compiled = ["TORCHINDUCTOR_CACHE_DIR=/claim/inductor", "TRITON_CACHE_DIR=/claim/triton"];
        let kernels = "PAWL_KERNEL_CACHE=/claim/kernels";
        assert_eq!(names(&[]), ["HF_HOME=/claim/huggingface", compiled[0], compiled[1], kernels]);
        assert_eq!(names(&["HF_HOME"]), [compiled[0], compiled[1], kernels], "the image contains the model");
        assert_eq!(names(&["XDG_CACHE_HOME", "TRITON_HOME"]), [compiled[0]]);
        assert_eq!(caches(None, |_| false), []);
    }

    #[test]
    fn libraries_of_the_driver_are_found_where_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let found = |given: Option<&str>| driver(folder.path(), given.map(OsString::from)).map(|(_, path)| path);
        assert_eq!(found(None), Some(path.clone()));
        assert_eq!(found(Some("/opt/lib")), Some(format!("/opt/lib:{path}")));
        assert_eq!(found(Some(&format!("{path}/:/opt/lib"))), None);
        assert_eq!(driver(Path::new("/nonexistent"), None), None);
    }
}
