//! Runs one attempt on one node, from its plan to its result.

use crate::coordinator::{Coordinator, Inbox};
use crate::files::{self, named};
use crate::finished::{ATTEMPT, finished_reports};
use crate::link::{join, link};
use crate::member::{Link, Member, next_stop};
use crate::messages::{Down, Up};
use crate::node::{AttemptEnd, AttemptResult, Event, Node, Rendezvous, Stop};
use crate::orphans;
use crate::provenance::Inquiry;
use crate::ranks::{DEATH, Shared};
use crate::records::Recorder;
use crate::script::Script;
use crate::server::Server;
use crate::storage;
use crate::store::Store;
use crate::survivors::{self, end_survivors};
use parking_lot::Mutex;
use pawl_contract::CONTRACT_VERSION;
use pawl_contract::plan::AttemptPlan;
use pawl_contract::report::LaunchResult;
use pawl_rendezvous::{ClientError, Token, TokenError};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// The attempt could not be run on this node.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The plan contradicts itself or this node.
    #[error("attempt `{attempt}`: {message}")]
    InvalidPlan {
        /// Name of the attempt.
        attempt: String,
        /// The problem, and the remedy.
        message: String,
    },
    /// Another agent is running in the directory.
    #[error("{}: another `pawl` is running this attempt: wait for it, or end it", .0.display())]
    Busy(PathBuf),
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Agent 0 rejected this agent.
    #[error("agent 0 at {address}: {source}")]
    Refused {
        /// `host:port`.
        address: String,
        /// Cause.
        source: ClientError,
    },
    /// A file or a process of the node failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Runs `plan` on this node: all its launches in order, except those that have a report from an earlier run.
///
/// `stop` requests an early end; `observer` receives events on this task, and must not block for long. Dropping the
/// future ends all ranks, as does the death of this process.
///
/// # Errors
/// The plan is invalid, the directory is in use or cannot be written, or agent 0 rejected this agent. A failed rank is
/// not an error but is reported in its launch, and an agent that does not connect is reported in the result's end.
pub async fn run(
    plan: &AttemptPlan,
    mut node: Node,
    mut stop: watch::Receiver<Stop>,
    observer: impl Fn(Event) + Send + Sync + 'static,
) -> Result<AttemptResult, AgentError> {
    check(plan, &node).map_err(|message| AgentError::InvalidPlan { attempt: plan.attempt.clone(), message })?;
    let (_lock, launches) = take_over(plan, &node.work_dir).await?;
    node.limits.gather = gather(plan).unwrap_or(node.limits.gather);

    let mut tasks = JoinSet::new();
    let (link, shared) = match &node.rendezvous {
        Rendezvous::Join { address, token_file } => {
            let token = Token::read(token_file)?;
            let reached = tokio::select! {
                reached = join(address, &token, node.replica, node.limits.gather) => reached,
                _ = next_stop(&mut stop, Stop::No) => {
                    return Ok(AttemptResult { launches, end: AttemptEnd::Stopped, message: String::new() });
                }
            };
            let connection = match reached {
                Ok(connection) => connection,
                Err(source @ (ClientError::WrongToken | ClientError::Protocol)) => {
                    return Err(AgentError::Refused { address: address.clone(), source });
                }
                Err(error) => {
                    let waited = node.limits.gather.as_secs_f64();
                    let message = format!("agent 0 at {address} was not reached within {waited} s: {error}");
                    return Ok(AttemptResult { launches, end: AttemptEnd::LostPeer, message });
                }
            };
            let shared = Shared::new(plan.clone(), &node, address.clone(), token_file.clone())?;
            let _ = shared.met_at.set(connection.0.peer_addr()?);
            let (link, task) = link(connection, node.limits.lost_after)?;
            tasks.spawn(async { task.await.unwrap_or_default() });
            (link, shared)
        }
        Rendezvous::Listen { listener, address, token_file } => {
            let token = Token::read(token_file)?;
            let shared = Shared::new(plan.clone(), &node, address.clone(), token_file.clone())?;
            (coordinate(&shared, &node, listener.try_clone()?, token, &mut tasks)?, shared)
        }
        Rendezvous::Local => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let (token, token_file) = own_token(&node)?;
            let shared = Shared::new(plan.clone(), &node, listener.local_addr()?.to_string(), token_file)?;
            (coordinate(&shared, &node, listener, token, &mut tasks)?, shared)
        }
    };
    let recorder = recorder(plan, &node);
    let inquiry_ended = machine(plan, &node);
    let heard = |event: Event| {
        let warning = recorder.as_ref().and_then(|recorder| recorder.hear(&event));
        observer(event);
        warning.into_iter().for_each(&observer);
    };
    let member = Member { shared: &shared, limits: &node.limits, link, stop, observer: &heard, launches };
    let result = without_remnants(&node, member.run()).await?;
    inquiry_ended.store(true, Ordering::Relaxed);
    // The first task to end is the coordinator, once all agents have received the end, or this agent's connection.
    tasks.join_next().await;
    if let Some(recorder) = recorder {
        recorder.finish(result.end, &result.message).await.into_iter().for_each(&observer);
    }
    Ok(result)
}

/// The token of an attempt without other nodes, and its file.
fn own_token(node: &Node) -> Result<(Token, PathBuf), AgentError> {
    let file = node.work_dir.join("token");
    let token = Token::random()?;
    files::write_secret(&file, token.secret()).map_err(|e| named(&file, e))?;
    Ok((token, file))
}

/// How long the plan lets agents gather, if it says so.
fn gather(plan: &AttemptPlan) -> Option<Duration> {
    Duration::try_from_secs_f64(plan.gather_seconds?).ok()
}

/// Locks the attempt's directory, and ends what an earlier run has left there. Returns the lock, and the launches that
/// need not run again.
async fn take_over(plan: &AttemptPlan, work_dir: &Path) -> Result<(File, Vec<LaunchResult>), AgentError> {
    std::fs::create_dir_all(work_dir).map_err(|e| named(work_dir, e))?;
    let lock = lock(work_dir)?;
    let directory = work_dir.to_owned();
    tokio::task::spawn_blocking(move || end_survivors(&directory, DEATH)).await.map_err(io::Error::other)??;
    claim(plan, work_dir)?;
    let finished = finished_reports(work_dir)?;
    let finished = finished.iter().filter(|report| report.outcome.is_evidence());
    Ok((lock, finished.map(LaunchResult::from).collect()))
}

/// What keeps the record of the attempt: on agent 0, which knows the reports.
fn recorder(plan: &AttemptPlan, node: &Node) -> Option<Recorder> {
    if node.replica != 0 {
        return None;
    }
    let started = Recorder::start(plan, node);
    started.inspect_err(|error| tracing::warn!(%error, "the record of this attempt is not kept")).ok()
}

/// Finds out what this node has, unless the recorder of agent 0 does. Nothing waits for it, and the switch that is
/// returned ends it.
fn machine(plan: &AttemptPlan, node: &Node) -> Arc<AtomicBool> {
    let inquiry = Inquiry::new(plan, node);
    let ended = inquiry.ended();
    if node.replica > 0 && plan.measures() {
        let asked = std::thread::Builder::new().name("machine".to_owned()).spawn(move || inquiry.keep_machine());
        let _ = asked.inspect_err(|error| tracing::debug!(%error, "what this node has is not known"));
    }
    ended
}

/// Runs the launches, and ends what they have left behind.
async fn without_remnants(
    node: &Node,
    launches: impl Future<Output = io::Result<AttemptResult>>,
) -> io::Result<AttemptResult> {
    let result = launches.await;
    let (remnants, grace) = (orphans::Of::Attempt(node.work_dir.clone()), node.limits.peer_grace);
    tokio::task::spawn_blocking(move || orphans::end_remnants(&remnants, grace)).await.map_err(io::Error::other)?;
    result
}

/// Starts the coordinator of agent 0; returns the link of its own member.
fn coordinate(
    shared: &Shared,
    node: &Node,
    listener: TcpListener,
    token: Token,
    tasks: &mut JoinSet<()>,
) -> io::Result<Link> {
    let plan = &shared.plan;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let store = Arc::new(Store::default());
    let (sender, inbox) = mpsc::unbounded_channel();
    let (up, mut said) = mpsc::unbounded_channel::<Up>();
    let (own, down) = mpsc::unbounded_channel::<Down>();
    let coordinator = Coordinator {
        plan: plan.clone(),
        work_dir: node.work_dir.clone(),
        script: Script::new(plan, node),
        unproven: storage::directory(&node.checkpoints).filter(|_| node.proves_storage),
        limits: node.limits.clone(),
        store: Arc::clone(&store),
        inbox,
        members: BTreeMap::from([(0, own)]),
        machines: BTreeMap::new(),
        stop: Stop::No,
    };
    let server = Server {
        token,
        replicas: plan.replicas,
        world_size: plan.world_size(),
        lost_after: node.limits.lost_after,
        store,
        inbox: sender.clone(),
        met_at: Arc::clone(&shared.met_at),
        came: Mutex::new(BTreeSet::new()),
    };
    tasks.spawn(async move {
        let pass_on = async {
            while let Some(message) = said.recv().await {
                // The coordinator ends only after it has notified all agents.
                let _ = sender.send(Inbox::Said { replica: 0, message });
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = coordinator.run() => {}
            () = server.run(listener) => {}
            () = pass_on => {}
        }
    });
    Ok(Link { up, down })
}

/// Validates the plan for this node.
fn check(plan: &AttemptPlan, node: &Node) -> Result<(), String> {
    if plan.contract != CONTRACT_VERSION {
        return Err(format!("contract {}: this agent supports contract {CONTRACT_VERSION}", plan.contract));
    }
    if plan.replicas == 0 || plan.ranks_per_replica == 0 || plan.ranks() > 1 << 16 {
        return Err(format!("{} x {} ranks: choose 1 to 65536", plan.replicas, plan.ranks_per_replica));
    }
    let first = matches!(node.rendezvous, Rendezvous::Local | Rendezvous::Listen { .. });
    let alone = matches!(node.rendezvous, Rendezvous::Local);
    if node.replica >= plan.replicas || (node.replica == 0) != first || (alone && plan.replicas > 1) {
        return Err(format!(
            "replica {} of {}: agent 0 listens, every other agent joins; only a gang of one does without",
            node.replica, plan.replicas
        ));
    }
    if plan.command.is_empty() && node.trainer.is_empty() {
        return Err("no command: name one, or a built-in trainer".to_owned());
    }
    if !node.work_dir.is_absolute() {
        return Err(format!("work directory {}: must be absolute", node.work_dir.display()));
    }
    let mut names = BTreeSet::new();
    for launch in &plan.launches {
        let name = launch.launch.as_str();
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(plain) {
            return Err(format!(
                "launch `{name}`: a name has 1 to 128 of A-Z a-z 0-9 . _ - and does not start with a dot"
            ));
        }
        if launch.contract != CONTRACT_VERSION {
            return Err(format!("launch `{name}`: contract {}, not {CONTRACT_VERSION}", launch.contract));
        }
        if !names.insert(name) {
            return Err(format!("launch `{name}` is duplicated: names must be unique"));
        }
    }
    Ok(())
}

/// Locks the attempt's directory until the returned file is dropped.
fn lock(work_dir: &Path) -> Result<File, AgentError> {
    let path = work_dir.join("agent.lock");
    survivors::lock(&path).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => AgentError::Busy(work_dir.to_owned()),
        _ => named(&path, e).into(),
    })
}

/// Writes the attempt's plan, unless the directory belongs to another attempt.
fn claim(plan: &AttemptPlan, work_dir: &Path) -> Result<(), AgentError> {
    let path = work_dir.join(ATTEMPT);
    let there = files::read_bounded(&path, files::MAX_ATTEMPT).ok();
    let there = there.and_then(|content| serde_json::from_slice::<AttemptPlan>(&content).ok());
    match there {
        Some(there) if (&there.job, &there.attempt) != (&plan.job, &plan.attempt) => Err(AgentError::InvalidPlan {
            attempt: plan.attempt.clone(),
            message: format!("{} holds attempt `{}`: use another directory", work_dir.display(), there.attempt),
        }),
        Some(there) if there == *plan => Ok(()),
        _ => Ok(files::write(&path, &serde_json::to_vec(plan).map_err(io::Error::other)?)?),
    }
}
