//! The coordinator on agent 0: synchronizes the agents of the gang.

use crate::finished::report;
use crate::member::leaves_in_peace;
use crate::messages::{Down, Up};
use crate::node::{AttemptEnd, Limits, Stop};
use crate::provenance::provenance;
use crate::ranks::DEATH;
use crate::script::{Resume, Script};
use crate::storage;
use crate::store::Store;
use crate::verdict::{Evidence, Fact, verdict};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchKind, LaunchPlan};
use pawl_contract::provenance::{OtherPods, Provenance};
use pawl_contract::report::Report;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Messages to the coordinator from the agents, including agent 0.
#[derive(Debug)]
pub(crate) enum Inbox {
    /// An agent connected and is authenticated.
    Joined { replica: u32, down: mpsc::UnboundedSender<Down> },
    /// An agent sent a message.
    Said { replica: u32, message: Up },
    /// An agent's connection has ended.
    Gone { replica: u32, why: String },
}

/// Runs the launches of an attempt over all agents.
pub(crate) struct Coordinator {
    pub(crate) plan: AttemptPlan,
    pub(crate) work_dir: PathBuf,
    pub(crate) script: Option<Script>,
    /// The job's directory of checkpoints, until it is known whether they can be written there; `None` for object
    /// storage.
    pub(crate) unproven: Option<PathBuf>,
    pub(crate) limits: Limits,
    pub(crate) store: Arc<Store>,
    pub(crate) inbox: mpsc::UnboundedReceiver<Inbox>,
    pub(crate) members: BTreeMap<u32, mpsc::UnboundedSender<Down>>,
    /// What the other nodes have, as far as they have said it.
    pub(crate) machines: BTreeMap<u32, Provenance>,
    pub(crate) stop: Stop,
}

/// The attempt cannot continue.
struct Over(AttemptEnd, String);

impl Over {
    fn lost(message: String) -> Self {
        Self(AttemptEnd::LostPeer, message)
    }
}

/// An agent's message that the coordinator itself does not handle.
enum News {
    Of(u32, Up),
    Lost(u32, String),
    Joined,
    Stop,
    Late,
}

impl Coordinator {
    /// Runs to the end of the attempt, and notifies all agents.
    pub(crate) async fn run(mut self) {
        let Over(end, message) = match self.attempt().await {
            Ok(()) => Over(AttemptEnd::Complete, String::new()),
            Err(over) => over,
        };
        self.tell(&Down::Finish { end, message });
        let mut remote: BTreeSet<u32> = self.members.keys().copied().filter(|&replica| replica != 0).collect();
        // The connections end once everything is written and the agents have closed them.
        self.members.clear();
        let hung_up = async {
            while !remote.is_empty() {
                if let Some(Inbox::Gone { replica, .. }) = self.inbox.recv().await {
                    remote.remove(&replica);
                }
            }
        };
        // Do not wait for an agent that does not close its connection.
        let _ = tokio::time::timeout(Duration::from_secs(2), hung_up).await;
    }

    async fn attempt(&mut self) -> Result<(), Over> {
        self.gather().await?;
        for launch in self.plan.launches.clone() {
            let known = report(&self.work_dir, &launch.launch).filter(|report| report.outcome.is_evidence());
            let report = match known {
                Some(report) => report,
                None => {
                    if self.stop > Stop::No {
                        return Err(Over(AttemptEnd::Stopped, String::new()));
                    }
                    let report = self.launch(&launch).await?;
                    self.tell(&Down::Verdict(Box::new(report.clone())));
                    report
                }
            };
            if report.outcome == Outcome::Stopped {
                return Err(Over(AttemptEnd::Stopped, report.message));
            }
            if self.members.len() < self.plan.replicas as usize {
                return Err(Over::lost(report.message));
            }
            if self.plan.stop_on_failure && report.outcome != Outcome::Done {
                return Err(Over(AttemptEnd::LaunchFailed, report.message));
            }
        }
        Ok(())
    }

    /// Sends to every connected agent.
    fn tell(&self, message: &Down) {
        for down in self.members.values() {
            // Its connection reports when it is lost.
            let _ = down.send(message.clone());
        }
    }

    /// The next message; [`News::Late`] at `deadline`. Requests to stop are forwarded here.
    async fn next(&mut self, deadline: Option<Instant>) -> News {
        let inbox = async {
            match deadline {
                Some(deadline) => tokio::time::timeout_at(deadline, self.inbox.recv()).await.unwrap_or(None),
                None => self.inbox.recv().await,
            }
        };
        match inbox.await {
            Some(Inbox::Joined { replica, down }) => {
                self.members.insert(replica, down);
                News::Joined
            }
            Some(Inbox::Said { replica: _, message: Up::Stop(stop) }) => {
                if stop > self.stop {
                    self.stop = stop;
                    self.tell(&Down::Stop(stop));
                }
                News::Stop
            }
            Some(Inbox::Said { replica, message }) => News::Of(replica, message),
            Some(Inbox::Gone { replica, why }) => {
                self.members.remove(&replica);
                News::Lost(replica, format!("agent {replica} was lost: {why}"))
            }
            None => News::Late,
        }
    }

    /// Waits until all agents are connected.
    async fn gather(&mut self) -> Result<(), Over> {
        let deadline = Instant::now() + self.limits.gather;
        while self.members.len() < self.plan.replicas as usize {
            match self.next(Some(deadline)).await {
                News::Late => {
                    let absent: Vec<String> = self.absent().map(|replica| replica.to_string()).collect();
                    let waited = self.limits.gather.as_secs_f64();
                    return Err(Over::lost(format!(
                        "no connection from agent {} within {waited} s",
                        absent.join(", ")
                    )));
                }
                News::Stop => return Err(Over(AttemptEnd::Stopped, String::new())),
                News::Of(..) | News::Lost(..) | News::Joined => {}
            }
        }
        Ok(())
    }

    fn absent(&self) -> impl Iterator<Item = u32> {
        (0..self.plan.replicas).filter(|replica| !self.members.contains_key(replica))
    }

    /// One launch, from the barrier to its report.
    async fn launch(&mut self, plan: &LaunchPlan) -> Result<Report, Over> {
        let begun = Instant::now();
        let mut facts = self.prepare(plan).await?;
        if let Some(script) = self.script.as_ref().filter(|_| facts.is_empty())
            && let Some(report) = script.before_start(plan)
        {
            let problem = if report.outcome == Outcome::Done { script.prove_storage(plan).await } else { None };
            return Ok(problem.unwrap_or(report));
        }
        if facts.is_empty()
            && let Some(report) = self.prove_storage(plan).await
        {
            return Ok(report);
        }
        let mut progress = None;
        if facts.is_empty() {
            let resume = match self.resume(plan).await {
                Ok(resume) => resume,
                Err(report) => return Ok(*report),
            };
            let port = match free_port() {
                Ok(port) => port,
                Err(e) => return Err(Over::lost(format!("agent 0 has no free port: {e}"))),
            };
            self.store.open(Some(&plan.launch));
            self.tell(&Down::Start { launch: plan.launch.clone(), master_port: port, resume });
            progress = self.watch(plan, &mut facts).await;
            self.store.open(None);
        }
        Ok(self.with_other_pods(verdict(&Evidence {
            plan,
            facts: &facts,
            stopping: self.stop > Stop::No,
            progress: progress.as_deref(),
            wall_seconds: begun.elapsed().as_secs_f64(),
        })))
    }

    /// The report with the nodes that are known to differ from this one.
    fn with_other_pods(&self, report: Report) -> Report {
        let others = Some(&self.machines).filter(|machines| !machines.is_empty());
        let own = others.and_then(|others| Some((provenance(&self.work_dir)?, others)));
        let other_pods = own.map(|(own, others)| OtherPods::differing(&own, others)).unwrap_or_default();
        if other_pods.is_empty() {
            return report;
        }
        let provenance = Some(Provenance { other_pods, ..report.provenance.unwrap_or_default() });
        Report { provenance, ..report }
    }

    /// Proves that the job's checkpoints can be written, before the first launch of the attempt that measures or
    /// trains, as long as nothing has been written there; the report of the launch's end if not. The preflight cannot
    /// prove it of a claim that Pawl creates, which it does not mount: it would bind the claim where there may be no
    /// devices.
    async fn prove_storage(&mut self, launch: &LaunchPlan) -> Option<Report> {
        if launch.kind == LaunchKind::Preflight {
            return None;
        }
        if let Err((outcome, message)) = storage::prove_unused(self.unproven.clone()?).await {
            // Of a training that outcome says that its checkpoints are lost; here, another attempt may succeed.
            let trains = launch.kind == LaunchKind::Train && outcome == Outcome::CheckpointUnreadable;
            let outcome = if trains { Outcome::Failed } else { outcome };
            return Some(Report { message, ..Report::bare(launch, 0, outcome) });
        }
        self.unproven = None;
        None
    }

    /// The checkpoint that a launch of a script resumes.
    async fn resume(&self, plan: &LaunchPlan) -> Result<Resume, Box<Report>> {
        let Some(script) = self.script.clone() else { return Ok(Resume::default()) };
        let launch = plan.clone();
        let decided = tokio::task::spawn_blocking(move || script.resume(&launch)).await;
        decided.unwrap_or_else(|error| {
            let message = format!("agent 0 cannot decide which checkpoint to resume: {error}");
            Err(Box::new(Report { message, ..Report::bare(plan, 0, Outcome::Failed) }))
        })
    }

    /// The barrier: all agents are ready for this launch. A node that cannot prepare is recorded as a fact of the
    /// launch.
    async fn prepare(&mut self, plan: &LaunchPlan) -> Result<Vec<Fact>, Over> {
        self.tell(&Down::Prepare { launch: plan.launch.clone() });
        let deadline = Instant::now() + self.limits.gather;
        let mut waiting: BTreeSet<u32> = (0..self.plan.replicas).collect();
        let mut facts = Vec::new();
        while !waiting.is_empty() {
            match self.next(Some(deadline)).await {
                News::Of(replica, Up::Ready { launch }) if launch == plan.launch => {
                    waiting.remove(&replica);
                }
                News::Of(replica, Up::Unable { launch, outcome, message }) if launch == plan.launch => {
                    waiting.remove(&replica);
                    facts.push(Fact::Unable(outcome, format!("agent {replica}: {message}")));
                }
                News::Lost(_, message) => return Err(Over::lost(message)),
                News::Late => return Err(Over::lost(format!("agents {waiting:?} did not prepare `{}`", plan.launch))),
                News::Stop => return Err(Over(AttemptEnd::Stopped, String::new())),
                News::Of(..) | News::Joined => {}
            }
        }
        Ok(facts)
    }

    /// Watches the ranks of all nodes until the last has ended, and ends all when one fails or hangs. Returns the last
    /// progress of rank 0.
    async fn watch(
        &mut self,
        plan: &LaunchPlan,
        facts: &mut Vec<Fact>,
    ) -> Option<Box<pawl_contract::progress::Progress>> {
        let mut running: BTreeSet<u32> = (0..self.plan.replicas).collect();
        let mut ending = Ending { launch: plan.launch.clone(), sent: false, deadline: None };
        let exit_time = Duration::try_from_secs_f64(plan.hang_timeout_seconds).unwrap_or(DEATH);
        let mut progress = None;
        while !running.is_empty() {
            match self.next(ending.deadline).await {
                News::Of(_, Up::RankEnded { launch, end }) if launch == plan.launch => {
                    if !leaves_in_peace(end.outcome, self.stop) {
                        ending.all(self, false);
                    } else if ending.deadline.is_none() {
                        // One rank is done: the others must finish soon.
                        ending.deadline = Some(Instant::now() + exit_time.max(self.stop_time()));
                    }
                    facts.push(Fact::Rank(end));
                }
                News::Of(_, Up::Complete { launch }) if launch == plan.launch => {
                    ending.deadline = Some(Instant::now() + exit_time.max(DEATH));
                    self.tell(&Down::Complete { launch });
                }
                News::Of(_, Up::Hung { launch, message }) if launch == plan.launch => {
                    facts.push(Fact::Hung(message));
                    ending.all(self, true);
                }
                News::Of(replica, Up::Unable { launch, outcome, message }) if launch == plan.launch => {
                    facts.push(Fact::Unable(outcome, format!("agent {replica}: {message}")));
                    ending.all(self, false);
                }
                News::Of(replica, Up::Ended { launch, progress: said, machine }) if launch == plan.launch => {
                    running.remove(&replica);
                    self.machines.extend(machine.map(|machine| (replica, *machine)));
                    progress = progress.or(said);
                }
                News::Lost(replica, message) => {
                    running.remove(&replica);
                    facts.push(Fact::Lost(message));
                    ending.all(self, false);
                }
                News::Late if ending.sent => {
                    facts.push(Fact::Lost(format!("agents {running:?} did not end their ranks")));
                    for replica in std::mem::take(&mut running) {
                        self.members.remove(&replica);
                    }
                }
                News::Late => {
                    let seconds = exit_time.as_secs_f64();
                    facts.push(Fact::Hung(format!("a rank did not exit within {seconds} s after another was done")));
                    ending.all(self, true);
                }
                News::Of(..) | News::Joined | News::Stop => {}
            }
        }
        progress
    }

    /// Time that ranks may take to stop.
    fn stop_time(&self) -> Duration {
        if self.stop > Stop::No { self.limits.stop_grace + DEATH } else { Duration::ZERO }
    }
}

/// The end of a launch that did not end by itself.
struct Ending {
    launch: String,
    sent: bool,
    deadline: Option<Instant>,
}

impl Ending {
    fn all(&mut self, coordinator: &Coordinator, hung: bool) {
        if !self.sent {
            self.sent = true;
            // Agents kill their ranks after the peer grace, and give up on a rank that is still alive after DEATH.
            self.deadline = Some(Instant::now() + coordinator.limits.peer_grace + 3 * DEATH);
            coordinator.tell(&Down::End { launch: self.launch.clone(), hung });
        }
    }
}

/// Ports below those that Linux gives to connections of its own accord.
const STORE_PORTS: Range<u16> = 20_000..30_000;

/// A port for rank 0's own store (`MASTER_PORT`). Rank 0 listens there only after its imports, so that the port must
/// not be given to a connection in the meantime.
fn free_port() -> std::io::Result<u16> {
    let bind = |port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    let random = RandomState::new().hash_one(0) as usize;
    let turned = STORE_PORTS.cycle().skip(random % STORE_PORTS.len()).take(STORE_PORTS.len());
    for port in turned {
        match bind(port) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound.map(|_| port),
        }
    }
    Ok(bind(0)?.local_addr()?.port())
}
