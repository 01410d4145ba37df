//! The ranks of one launch on this node.

use crate::exits::{Exit, Exited, read_report};
use crate::logs::{Echo, Log};
use crate::messages::RankEnd;
use crate::node::Node;
use crate::oom::OomCounter;
use crate::processes::whereabouts;
use crate::spawn::Nursery;
use crate::survivors;
use pawl_contract::env;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchPlan};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::mpsc;

/// Configuration shared by the ranks of all launches of an attempt.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: AttemptPlan,
    pub(crate) replica: u32,
    pub(crate) work_dir: PathBuf,
    pub(crate) trainer: Vec<OsString>,
    pub(crate) gpus: Vec<String>,
    pub(crate) checkpoints: String,
    pub(crate) data: PathBuf,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) log_bytes: u64,
    pub(crate) echo: bool,
    /// `host:port` of the rendezvous, as configured.
    address: String,
    /// Its resolved address, so that a starting rank needs no DNS lookup.
    pub(crate) met_at: Arc<OnceLock<SocketAddr>>,
    pub(crate) token_file: PathBuf,
    pub(crate) nursery: Nursery,
    pub(crate) oom: OomCounter,
}

impl Shared {
    /// The configuration for the ranks of `node`.
    pub(crate) fn new(plan: AttemptPlan, node: &Node, address: String, token_file: PathBuf) -> io::Result<Self> {
        Ok(Self {
            plan,
            replica: node.replica,
            work_dir: node.work_dir.clone(),
            trainer: node.trainer.clone(),
            gpus: node.gpus.clone(),
            checkpoints: node.checkpoints.clone(),
            data: node.data.clone(),
            env: node.env.clone(),
            log_bytes: node.limits.log_bytes,
            echo: node.echo,
            address,
            met_at: Arc::default(),
            token_file,
            nursery: Nursery::start()?,
            oom: OomCounter::find(),
        })
    }

    /// `host:port` of the rendezvous, for the ranks.
    fn rendezvous(&self) -> String {
        self.met_at.get().map_or_else(|| self.address.clone(), SocketAddr::to_string)
    }

    /// The directory of a launch.
    pub(crate) fn dir(&self, launch: &str) -> PathBuf {
        self.work_dir.join(launch)
    }
}

/// The running ranks of one launch. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Ranks {
    alive: BTreeMap<u32, Rank>,
    exits: mpsc::UnboundedReceiver<(u32, io::Result<ExitStatus>)>,
    /// Kept so that `exits` never reports the end of the channel.
    sender: mpsc::UnboundedSender<(u32, io::Result<ExitStatus>)>,
    oom_kills: Option<u64>,
    killed: bool,
    terminated: bool,
}

#[derive(Debug)]
struct Rank {
    group: Pid,
    log: Log,
}

impl Ranks {
    /// No ranks yet.
    pub(crate) fn none(shared: &Shared) -> Self {
        let (sender, exits) = mpsc::unbounded_channel();
        let oom_kills = shared.oom.kills();
        Self { alive: BTreeMap::new(), exits, sender, oom_kills, killed: false, terminated: false }
    }

    /// Starts one process for each local rank.
    pub(crate) async fn start(&mut self, shared: &Shared, launch: &LaunchPlan, master_port: u16) -> io::Result<()> {
        for local in 0..shared.plan.ranks_per_replica {
            let rank = shared.replica * shared.plan.ranks_per_replica + local;
            self.start_rank(shared, launch, master_port, local, rank).await.map_err(|e| {
                let program = program(shared).0;
                io::Error::new(e.kind(), format!("rank {rank}: cannot start `{}`: {e}", program.to_string_lossy()))
            })?;
        }
        Ok(())
    }

    async fn start_rank(
        &mut self,
        shared: &Shared,
        launch: &LaunchPlan,
        master_port: u16,
        local: u32,
        rank: u32,
    ) -> io::Result<()> {
        let dir = shared.dir(&launch.launch);
        let lock = survivors::lock(&dir.join(format!("rank-{rank}.lock")))?;
        let (output, writer) = io::pipe()?;
        let (program, args) = program(shared);
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(&dir)
            .stdin(std::process::Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .envs(shared.env.iter().map(|(name, value)| (name, value)))
            .envs(nccl(launch));
        environment(&mut command, shared, &dir, master_port, local, rank);
        // Before the process starts: its first output must not be lost.
        let echo = shared.echo.then(|| Echo::of_rank(rank));
        let log = Log::start(output, dir.join(format!("rank-{rank}.log")), shared.log_bytes, echo)?;
        let mut child = shared.nursery.spawn(command, lock).await?;
        let group = child.id().and_then(|id| Pid::from_raw(id as i32));
        let group = group.ok_or_else(|| io::Error::other("it exited at once"))?;
        self.alive.insert(rank, Rank { group, log });
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let status = child.wait().await;
            // The receiver is gone when the launch was dropped.
            let _ = sender.send((rank, status));
        });
        Ok(())
    }

    /// Whether no rank is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.alive.is_empty()
    }

    /// Whether the ranks were killed.
    pub(crate) fn is_killed(&self) -> bool {
        self.killed
    }

    /// Whether `rank` still runs here.
    pub(crate) fn has(&self, rank: u32) -> bool {
        self.alive.contains_key(&rank)
    }

    /// The end of the next rank. Waits forever when none is left; cancel-safe.
    pub(crate) async fn next_exit(&mut self) -> (u32, io::Result<ExitStatus>) {
        match self.exits.recv().await {
            Some(exit) => exit,
            None => std::future::pending().await,
        }
    }

    /// Classifies the end of a rank. Its child processes are ended with it.
    pub(crate) async fn judge(
        &mut self,
        shared: &Shared,
        launch: &LaunchPlan,
        rank: u32,
        status: io::Result<ExitStatus>,
    ) -> RankEnd {
        let last_words = match self.alive.remove(&rank) {
            Some(gone) => {
                // The group may be empty already.
                let _ = kill_process_group(gone.group, Signal::KILL);
                gone.log.last_words().await
            }
            None => String::new(),
        };
        let exit = match status {
            Ok(status) => Exit::of(status),
            Err(e) => {
                let message = format!("rank {rank}: cannot be waited for: {e}");
                return RankEnd { rank, by_agent: false, outcome: Outcome::Failed, message, report: None };
            }
        };
        let dir = shared.dir(&launch.launch);
        let report = read_report(&dir.join(rank_report(rank)), &launch.launch);
        let exit = Exited {
            rank,
            exit,
            killed: self.killed,
            terminated: self.terminated,
            out_of_memory: shared.oom.killed_since(self.oom_kills),
            last_words,
        };
        exit.judge(report)
    }

    /// Sends SIGTERM to the ranks: checkpoint and exit. Only to the rank's process, as Kubernetes does, not to its children.
    pub(crate) fn terminate(&mut self) {
        self.terminated = true;
        for rank in self.alive.values() {
            // It may have exited already, not yet reaped.
            let _ = kill_process(rank.group, Signal::TERM);
        }
    }

    /// SIGKILL to the process groups of all ranks.
    pub(crate) fn kill(&mut self) {
        self.killed = true;
        for rank in self.alive.values() {
            let _ = kill_process_group(rank.group, Signal::KILL);
        }
    }

    /// State of the ranks' processes, for debugging a hang.
    pub(crate) fn whereabouts(&self) -> String {
        self.alive.iter().map(|(rank, of)| format!("rank {rank}:\n{}", whereabouts(of.group))).collect()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill();
    }
}

fn program(shared: &Shared) -> (OsString, Vec<OsString>) {
    let command: Vec<OsString> = if shared.plan.command.is_empty() {
        shared.trainer.clone()
    } else {
        shared.plan.command.iter().map(OsString::from).collect()
    };
    let mut words = command.into_iter();
    (words.next().unwrap_or_default(), words.collect())
}

/// Name of rank 0's metrics.
pub(crate) const METRICS: &str = "metrics.prom";

/// Name of a rank's own report.
pub(crate) fn rank_report(rank: u32) -> String {
    format!("rank-{rank}.report.json")
}

/// NCCL reads its variables from the environment.
fn nccl(launch: &LaunchPlan) -> impl Iterator<Item = (&String, &String)> {
    launch.settings.nccl.iter().flatten().filter(|(name, _)| name.starts_with("NCCL_"))
}

/// The environment of the contract, and that of PyTorch's `env://`.
fn environment(command: &mut Command, shared: &Shared, dir: &Path, master_port: u16, local: u32, rank: u32) {
    let rendezvous = shared.rendezvous();
    let host = rendezvous.rsplit_once(':').map_or(rendezvous.as_str(), |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let world_size = shared.plan.world_size().to_string();
    command
        .env(env::PLAN, dir.join("plan.json"))
        .env(env::RANK, rank.to_string())
        .env(env::LOCAL_RANK, local.to_string())
        .env(env::WORLD_SIZE, &world_size)
        .env(env::RENDEZVOUS, &rendezvous)
        .env(env::TOKEN_FILE, &shared.token_file)
        .env(env::REPORT, dir.join(rank_report(rank)))
        .env(env::PROGRESS, dir.join("progress.json"))
        .env(env::METRICS, dir.join(METRICS))
        .env(env::CHECKPOINTS, &shared.checkpoints)
        .env(env::DATA, &shared.data)
        .env("MASTER_ADDR", host)
        .env("MASTER_PORT", master_port.to_string())
        .env("RANK", rank.to_string())
        .env("LOCAL_RANK", local.to_string())
        .env("WORLD_SIZE", world_size);
    if shared.plan.gpus_per_replica == 0 {
        let checks_for_gpus = shared.plan.checks.is_some_and(|gang| gang.gpus_per_replica > 0);
        let device = if checks_for_gpus { "cuda" } else { "cpu" };
        command.env(env::DEVICE, device).env("CUDA_VISIBLE_DEVICES", "");
        return;
    }
    command.env(env::DEVICE, format!("cuda:{local}"));
    if !shared.gpus.is_empty() {
        command.env("CUDA_VISIBLE_DEVICES", shared.gpus.join(","));
    }
}

/// Time that a killed rank may take to exit.
pub(crate) const DEATH: Duration = Duration::from_secs(30);
