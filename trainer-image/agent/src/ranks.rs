//! The ranks of one launch on this node.

use crate::disturbances::Disturbances;
use crate::exits::{Exit, Exited, RankEnd, Said};
use crate::gpus::Gpus;
use crate::last_words::LastWords;
use crate::logs::{Echo, Log};
use crate::node::{Node, checkpoints};
use crate::oom::{Kills, OomCounter};
use crate::processes::whereabouts;
use crate::reports::{NoReport, bounded, read_report};
use crate::script::{Asked, Fence, Followed, Kubeflow, Resume, Script, Sightings, Tap, Verdict};
use crate::spawn::Nursery;
use crate::survivors;
use crate::torchrun;
use pawl_contract::attempt::AttemptName;
use pawl_contract::env;
use pawl_contract::exit::Outcome;
use pawl_contract::log::Patterns;
use pawl_contract::plan::{AttemptPlan, LaunchKind, LaunchPlan};
use pawl_contract::progress::Progress;
use pawl_contract::report::Report;
use pawl_contract::script::MonitorSource;
use pawl_contract::template::Rendered;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::mpsc;

/// Time between two looks at processes that the agent is not the parent of.
const LOOK: Duration = Duration::from_millis(20);

/// Configuration shared by the ranks of all launches of an attempt.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: AttemptPlan,
    pub(crate) script: Option<Script>,
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
    /// Whether the user was told that nothing is found in the output.
    pub(crate) warned: AtomicBool,
}

impl Shared {
    /// The configuration for the ranks of `node`.
    pub(crate) fn new(plan: AttemptPlan, node: &Node, address: String, token_file: PathBuf) -> io::Result<Self> {
        Ok(Self {
            script: Script::new(&plan, node),
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
            warned: AtomicBool::new(false),
        })
    }

    /// `host:port` of the rendezvous, for the ranks.
    fn rendezvous(&self) -> String {
        self.met_at.get().map_or_else(|| self.address.clone(), SocketAddr::to_string)
    }

    /// The GPUs of this node that a script uses.
    fn gpus_of_script(&self) -> Vec<String> {
        match &self.script {
            None => Vec::new(),
            // All that there are belong to the container.
            Some(_) if self.gpus.is_empty() => (0..self.plan.gpus_per_replica).map(|gpu| gpu.to_string()).collect(),
            Some(_) => self.gpus.clone(),
        }
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
    oom_kills: Option<Kills>,
    disturbances: Disturbances,
    gpus: Gpus,
    killed: bool,
    /// Whether they got SIGTERM.
    terminated: Arc<AtomicBool>,
    complete: bool,
    /// Rank 0, if it is a script that the agent measures here.
    followed: Option<Followed>,
    /// The progress of rank 0 that was written last.
    published: Option<Progress>,
    kubeflow: Option<Kubeflow>,
    /// That of a script whose rank 0 runs here.
    fence: Option<Fence>,
    /// Of the checkpoints of a measured script.
    sightings: Option<Sightings>,
    /// Items of the last good position of a measured script that has diverged.
    diverged: Option<u64>,
}

#[derive(Debug)]
struct Rank {
    group: Pid,
    log: Log,
    /// Of a script that does not implement the contract.
    followed: Option<Followed>,
}

/// A shell that died of SIGTERM has passed it on to nobody: what it has started gets it now, and has until it is
/// killed.
async fn pass_on(group: Pid) {
    let _ = kill_process_group(group, Signal::TERM);
    while test_kill_process_group(group).is_ok() {
        tokio::time::sleep(LOOK).await;
    }
}

impl Ranks {
    /// No ranks yet.
    pub(crate) fn none(shared: &Shared) -> Self {
        let (sender, exits) = mpsc::unbounded_channel();
        let oom_kills = shared.oom.kills();
        Self {
            alive: BTreeMap::new(),
            exits,
            sender,
            oom_kills,
            disturbances: Disturbances::start(),
            gpus: Gpus::named(shared.gpus_of_script()),
            killed: false,
            terminated: Arc::default(),
            complete: false,
            followed: None,
            published: None,
            kubeflow: None,
            fence: None,
            sightings: None,
            diverged: None,
        }
    }

    /// Starts one process for each local rank.
    pub(crate) async fn start(
        &mut self,
        shared: &Shared,
        launch: &LaunchPlan,
        master_port: u16,
        resume: &Resume,
    ) -> io::Result<()> {
        for local in 0..shared.plan.ranks_per_replica {
            let rank = shared.replica * shared.plan.ranks_per_replica + local;
            self.start_rank(shared, (launch, resume), master_port, local, rank).await.map_err(|e| {
                let program = shared.plan.command.first().map_or_else(
                    || shared.trainer.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default(),
                    Clone::clone,
                );
                io::Error::new(e.kind(), format!("rank {rank}: cannot start `{program}`: {e}"))
            })?;
        }
        Ok(())
    }

    async fn start_rank(
        &mut self,
        shared: &Shared,
        (launch, resume): (&LaunchPlan, &Resume),
        master_port: u16,
        local: u32,
        rank: u32,
    ) -> io::Result<()> {
        let dir = shared.dir(&launch.launch);
        let lock = survivors::lock(&dir.join(format!("rank-{rank}.lock")))?;
        let (output, writer) = io::pipe()?;
        let monitor = shared.script.as_ref().and_then(Script::monitor);
        let measured = monitor.filter(|_| rank == 0);
        let patterns = measured.map(Patterns::new).transpose().map_err(io::Error::other)?;
        let followed = monitor.map(|_| {
            let script = shared.script.as_ref().zip(measured).zip(patterns.as_ref());
            let expected = script.map(|((script, monitor), patterns)| script.expected(launch, monitor, patterns));
            Followed::new(launch, expected)
        });
        if let (Some(monitor), Some(followed)) = (measured, &followed) {
            self.followed = Some(followed.clone());
            // Before the script starts to write.
            let watched = shared.script.as_ref().map(|script| script.fence(launch, resume, followed)).transpose()?;
            self.fence = watched.flatten();
            let follow = |script: &Script| script.follow(launch, resume, followed);
            self.sightings = shared.script.as_ref().map(follow).transpose()?.flatten();
            if monitor.source == MonitorSource::Kubeflow {
                self.kubeflow = Some(Kubeflow::start(&dir, followed.clone()).await?);
            }
        }
        let contract = environment(shared, launch, &dir, master_port, local, rank);
        let mut command = command(shared, launch, resume, contract)?;
        if rank == 0 {
            command.envs(self.kubeflow.iter().flat_map(Kubeflow::environment));
        }
        command.current_dir(&dir).stdin(std::process::Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        // Before the process starts: its first output must not be lost.
        let echo = shared.echo.then(|| Echo::of_rank(rank));
        let tap = followed.clone().map(|followed| Tap::new(followed, patterns));
        let log = Log::start(output, dir.join(format!("rank-{rank}.log")), shared.log_bytes, echo, tap)?;
        let mut child = shared.nursery.spawn(command, lock).await?;
        let group = child.id().and_then(|id| Pid::from_raw(id as i32));
        let group = group.ok_or_else(|| io::Error::other("it exited at once"))?;
        self.alive.insert(rank, Rank { group, log, followed });
        let (sender, terminated) = (self.sender.clone(), Arc::clone(&self.terminated));
        tokio::spawn(async move {
            let status = child.wait().await;
            let by_term = |status: &ExitStatus| status.signal() == Some(Signal::TERM.as_raw());
            if status.as_ref().is_ok_and(by_term) && terminated.load(Ordering::Relaxed) {
                pass_on(group).await;
            }
            // The receiver is gone when the launch was dropped.
            let _ = sender.send((rank, status));
        });
        Ok(())
    }

    /// Notes the progress of a measurement, so that the window is what is watched.
    pub(crate) fn follow(&mut self, launch: &LaunchPlan, progress: &Progress) {
        let warmup_steps = launch.budget.warmup_steps.unwrap_or(0);
        let limit = launch.window_limit(launch.settings.accumulation_steps());
        if launch.kind == LaunchKind::Measure && self.disturbances.follow(progress.step, warmup_steps, limit) {
            self.gpus.watch();
        }
    }

    /// Whether no rank is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.alive.is_empty()
    }

    /// Whether the ranks got SIGTERM.
    pub(crate) fn is_terminated(&self) -> bool {
        self.terminated.load(Ordering::Relaxed)
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
        let (last_words, followed) = match self.alive.remove(&rank) {
            Some(gone) => {
                // The group may be empty already.
                let _ = kill_process_group(gone.group, Signal::KILL);
                (gone.log.last_words().await, gone.followed)
            }
            None => (LastWords::default(), None),
        };
        let exit = match status {
            Ok(status) => Exit::of(status),
            Err(e) => {
                let message = format!("rank {rank}: cannot be waited for: {e}");
                return RankEnd {
                    rank,
                    by_agent: false,
                    outcome: Outcome::Failed,
                    message,
                    signal: None,
                    exit_code: None,
                    fingerprint: None,
                    report: None,
                };
            }
        };
        let dir = shared.dir(&launch.launch);
        let said = if followed.is_some() { Said::Output } else { Said::Report };
        let (exit, report) = match followed {
            Some(followed) => {
                if let Some(sightings) = self.sightings.take_if(|_| rank == 0) {
                    sightings.finish().await;
                }
                let asked = Asked { stop: self.is_terminated(), complete: self.complete, has_all: self.has_all() };
                let (exit, report) = followed.end(launch, rank, exit, asked, &last_words.text);
                let failed_at = report.failure.as_ref().filter(|_| report.outcome.is_divergence());
                self.diverged = failed_at.map(|at| at.items).or(self.diverged);
                let (exit, report) = explained(shared, launch, exit, report).await;
                (exit, Ok(bounded(report)))
            }
            None => (exit, read_report(&dir.join(rank_report(rank)), &launch.launch)),
        };
        let (exit, report) = without_input(shared, (launch, rank), exit, report, &last_words);
        let exit = Exited {
            rank,
            exit,
            killed: self.killed,
            terminated: self.is_terminated(),
            out_of_memory: shared.oom.killed_since(self.oom_kills),
            last_words,
            said,
        };
        let mut end = exit.judge(report);
        if let Some(report) = end.report.as_mut().filter(|_| rank == 0 && launch.kind == LaunchKind::Measure) {
            self.disturbances.add_to(&mut report.measured.disturbance);
            self.gpus.add_to(&mut report.measured.disturbance);
        }
        end
    }

    /// Sends SIGTERM to the ranks: checkpoint and exit. Only to the rank's process, as Kubernetes does, not to its
    /// children.
    pub(crate) fn terminate(&mut self) {
        self.terminated.store(true, Ordering::Relaxed);
        for rank in self.alive.values() {
            // It may have exited already, not yet reaped.
            let _ = kill_process(rank.group, Signal::TERM);
        }
    }

    /// Ends ranks that have done what the launch was for: SIGTERM. However they end, they are done.
    pub(crate) fn complete(&mut self) {
        self.complete = true;
        self.disturbances.end();
        for rank in self.alive.values() {
            let _ = kill_process(rank.group, Signal::TERM);
        }
    }

    /// After the ranks have ended: sets aside what they wrote when they were superseded, or had diverged. Returns a
    /// warning for the user.
    pub(crate) fn set_aside(&self, shared: &Shared, launch: &LaunchPlan) -> Option<String> {
        if self.fence.as_ref().is_some_and(|fence| fence.set_aside() || !fence.is_newest()) {
            // The checkpoints are another gang's.
            return None;
        }
        shared.script.as_ref()?.diverged(launch, self.diverged?)
    }

    /// Why a measured script has to be ended, if it has and still runs.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.followed.as_ref().filter(|_| self.has(0))?.verdict()
    }

    /// Notes that the launcher of a measured script has started its workers again, `count` times. A launch that
    /// measures fails by it; of a training, which continues, the warning for the user is returned.
    pub(crate) fn restarted(&self, kind: LaunchKind, count: u32) -> Option<String> {
        let followed = self.followed.as_ref().filter(|_| self.has(0))?;
        let (outcome, message) = followed.restarted(count);
        if kind == LaunchKind::Train {
            return Some(message);
        }
        followed.fail(outcome, message);
        None
    }

    /// Whether a measured script has done what the launch was for.
    pub(crate) fn has_all(&self) -> bool {
        self.followed.as_ref().is_some_and(Followed::has_all)
    }

    /// What may have to be corrected if a measured script has written output, and nothing was found in it.
    pub(crate) fn unmatched(&self) -> Option<String> {
        self.followed.as_ref().filter(|_| self.has(0))?.unmatched()
    }

    /// Writes the progress of a measured script, as a trainer of the contract does.
    pub(crate) fn publish(&mut self, dir: &Path) {
        let Some(progress) = self.followed.as_ref().and_then(Followed::progress) else { return };
        if self.published.as_ref() == Some(&progress) {
            return;
        }
        let (path, new) = (dir.join("progress.json"), dir.join("progress.json.new"));
        // A full disk must not end the launch; the report has the measurements too.
        let written =
            serde_json::to_vec(&progress).map_err(io::Error::other).and_then(|text| std::fs::write(&new, text));
        if let Err(error) = written.and_then(|()| std::fs::rename(&new, &path)) {
            tracing::warn!(file = %path.display(), %error, "cannot write the progress");
        }
        self.published = Some(progress);
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

/// The program of a rank with its arguments and environment. The contract's variables cannot be overridden.
fn command(shared: &Shared, launch: &LaunchPlan, resume: &Resume, contract: Variables) -> io::Result<Command> {
    let Some(script) = &shared.script else {
        let mut words = shared.trainer.iter();
        let mut command = Command::new(words.next().cloned().unwrap_or_default());
        command.args(words).envs(shared.env.iter().cloned()).envs(nccl(launch)).envs(contract);
        return Ok(command);
    };
    let value = |name: &str| {
        let set =
            contract.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string_lossy().into_owned());
        set.or_else(|| script.variable(name))
    };
    let Rendered { command: words, env, consumed, unset: _, is_given_length: _ } =
        script.rendered(launch, resume, &value).map_err(|error| io::Error::other(error.to_string()))?;
    script.prepare(launch, resume)?;
    let consumed: Vec<_> = consumed.into_iter().collect();
    let mut words = words.into_iter();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    let defaults = script.defaults(launch, shared.plan.gpus_per_replica == 0);
    command.envs(defaults.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()));
    command.envs(shared.env.iter().cloned()).envs(env).envs(nccl(launch)).envs(contract);
    command.env(env::CONSUMED, consumed.join(","));
    for name in Script::removed(launch) {
        command.env_remove(name);
    }
    Ok(command)
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

/// Environment variables by name.
type Variables = Vec<(&'static str, OsString)>;

/// The environment of the contract, and that of `torchrun`.
fn environment(shared: &Shared, launch: &LaunchPlan, dir: &Path, master_port: u16, local: u32, rank: u32) -> Variables {
    let rendezvous = shared.rendezvous();
    let mut all: Variables = vec![
        (env::PLAN, dir.join("plan.json").into()),
        (env::RANK, rank.to_string().into()),
        (env::LOCAL_RANK, local.to_string().into()),
        (env::WORLD_SIZE, shared.plan.world_size().to_string().into()),
        (env::RENDEZVOUS, rendezvous.clone().into()),
        (env::TOKEN_FILE, shared.token_file.clone().into()),
        (env::REPORT, dir.join(rank_report(rank)).into()),
        (env::PROGRESS, dir.join("progress.json").into()),
        (env::METRICS, dir.join(METRICS).into()),
        (env::CHECKPOINTS, checkpoints(launch, &shared.checkpoints).into()),
        (env::DATA, shared.data.clone().into()),
    ];
    let torchrun = torchrun::environment(&shared.plan, shared.replica, &rendezvous, master_port, local, rank);
    all.extend(torchrun.into_iter().map(|(name, value)| (name, value.into())));
    if shared.plan.gpus_per_replica == 0 {
        let checks_for_gpus = shared.plan.checks.is_some_and(|gang| gang.gpus_per_replica > 0);
        let device = if checks_for_gpus { "cuda" } else { "cpu" };
        all.extend([(env::DEVICE, device.into()), ("CUDA_VISIBLE_DEVICES", OsString::new())]);
        return all;
    }
    all.push((env::DEVICE, format!("cuda:{local}").into()));
    if !shared.gpus.is_empty() {
        all.push(("CUDA_VISIBLE_DEVICES", shared.gpus.join(",").into()));
    }
    all
}

/// Time that a killed rank may take to exit.
pub(crate) const DEATH: Duration = Duration::from_secs(30);
/// The end of a script that failed, if it was for want of space: scripts do not say so in words that are known.
async fn explained(shared: &Shared, launch: &LaunchPlan, exit: Exit, report: Report) -> (Exit, Report) {
    let failed = report.outcome == Outcome::Failed;
    let Some(script) = shared.script.as_ref().filter(|_| failed) else { return (exit, report) };
    let Some(why) = script.full(launch).await else { return (exit, report) };
    let message = format!("{why}; the script: {}", report.message);
    let outcome = Outcome::StorageFull;
    (Exit::Code(outcome.exit_code().into()), Report { outcome, message, ..report })
}

/// The end of a script before its first step, if it was because a path that it was given does not exist: nobody who
/// starts it again mends that. Once launches of the job have run, it may be this node that lacks the path.
fn without_input(
    shared: &Shared,
    (launch, rank): (&LaunchPlan, u32),
    exit: Exit,
    report: Result<Report, NoReport>,
    last_words: &LastWords,
) -> (Exit, Result<Report, NoReport>) {
    let failed = matches!(exit, Exit::Code(code) if Outcome::from_exit_code(code) == Outcome::Failed);
    let (steps, message) = match &report {
        Ok(report) => (report.measured.steps, report.message.as_str()),
        Err(NoReport::Absent) => (0, ""),
        Err(NoReport::Invalid(_)) => return (exit, report),
    };
    let begins = failed && steps == 0 && is_first(&shared.plan, launch);
    let LastWords { text, error } = last_words;
    let said = if message.is_empty() { text.clone() } else { format!("{message} {error}") };
    let Some(path) = shared.script.as_ref().filter(|_| begins).and_then(|it| it.absent_path(launch, &said)) else {
        return (exit, report);
    };
    let cause = if message.is_empty() { error.as_str() } else { message };
    let remedy = "correct it in the manifest, or mount its volume by trainer.podTemplate.volumes and volumeMounts";
    let outcome = Outcome::InvalidPlan;
    let message = format!("{path} does not exist on this node: {remedy}; the script: {cause}");
    let report = Report { message, ..Report::bare(launch, rank, outcome) };
    (Exit::Code(outcome.exit_code().into()), Ok(bounded(report)))
}

/// Whether no launch of the job has run before this one, other than checks of settings, which are the first attempt.
/// Later attempts check settings, too, when other nodes have run launches.
fn is_first(plan: &AttemptPlan, launch: &LaunchPlan) -> bool {
    let is_early = AttemptName::parse(&plan.attempt).is_some_and(|attempt| attempt.number <= 2);
    let leads = plan.launches.first().is_some_and(|first| first.launch == launch.launch);
    let resumes = launch.checkpoint.as_ref().is_some_and(|policy| policy.known().is_some());
    is_early && (launch.kind == LaunchKind::Preflight || leads && !resumes)
}
