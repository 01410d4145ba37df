//! The attempts of a job on this machine: their records on disk, and the agents that run them.

use crate::machine::Machine;
use crate::state::attempts::{self, AttemptRecord, RecordState};
use crate::state::{StateDir, StateError};
use crate::trainer::build;
use jiff::Timestamp;
use pawl_agent::{AgentError, AttemptEnd, AttemptResult, Event, Node, Stop};
use pawl_api::spec::Workload;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;
use pawl_decision::observed::{AttemptFacts, AttemptState, Observed};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How long processes that an earlier `pawl run` left behind may take to end.
const SURVIVORS: Duration = Duration::from_secs(30);

/// Configuration of the agent of an attempt, in addition to its plan.
#[derive(Clone, Debug)]
pub struct Site {
    /// The state directory.
    pub state: StateDir,
    /// The devices.
    pub machine: Machine,
    /// Program and arguments of the built-in trainer.
    pub trainer: Vec<OsString>,
    /// Optional features of this build.
    pub features: Vec<&'static str>,
    /// Checkpoint storage, URL or path.
    pub checkpoints: String,
    /// Environment from the manifest.
    pub env: Vec<(String, String)>,
}

impl Site {
    fn build(&self, command: &[String]) -> String {
        let own = |name: &str| self.env.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        build(command, &|name| own(name).or_else(|| std::env::var(name).ok()))
    }
}

/// An observation of a running attempt.
#[derive(Debug)]
pub struct News {
    /// Its name.
    pub attempt: String,
    /// What was observed.
    pub what: What,
}

/// What was observed of a running attempt.
#[derive(Debug)]
pub enum What {
    /// An event of one of its launches.
    Event(Event),
    /// It ended.
    Ended(Result<AttemptResult, AgentError>),
}

/// A running agent.
#[derive(Debug)]
struct Agent {
    attempt: String,
    /// Which share of the machine it uses.
    share: usize,
    stop: watch::Sender<Stop>,
}

/// An attempt that has not been released.
#[derive(Debug)]
struct Attempt {
    record: AttemptRecord,
    results: Vec<LaunchResult>,
    progress: Option<Progress>,
    /// The requested stop, if any.
    stopping: Option<Stop>,
}

impl Attempt {
    fn is(&self, name: &str) -> bool {
        self.record.plan.attempt == name
    }
}

/// The attempts of a job that have not been released. Those of a search run on a share of the devices each; any other
/// runs alone.
#[derive(Debug)]
pub struct Attempts {
    site: Site,
    known: Vec<Attempt>,
    agents: Vec<Agent>,
    sender: mpsc::UnboundedSender<News>,
    news: mpsc::UnboundedReceiver<News>,
}

impl Attempts {
    /// Reads the attempts from the state directory.
    ///
    /// # Errors
    /// [`StateError`] when a record or a report cannot be read.
    pub fn load(site: Site) -> Result<Self, StateError> {
        let mut known = Vec::new();
        for mut record in attempts::load(&site.state)? {
            let directory = attempts::directory(&site.state, &record.plan.attempt);
            if record.state == RecordState::Active {
                // What outlived an earlier process would hold the devices, and write checkpoints beside the next
                // attempt.
                pawl_agent::end_survivors(&directory, SURVIVORS).map_err(StateError::unusable(&directory))?;
                // Its other launches would run another build of the trainer: they belong into another attempt.
                let other_build =
                    record.trainer.as_deref().is_some_and(|known| known != site.build(&record.plan.command));
                if other_build || has_trained(&record.plan, &directory) {
                    record.state = RecordState::Stopped;
                }
            }
            let finished = pawl_agent::finished_launches(&directory).map_err(StateError::unusable(&directory))?;
            // The machine may be another one by now: the other launch of a pair belongs into the attempt of the first.
            if record.state == RecordState::Active && has_measured(&record.plan, &finished) {
                record.state = RecordState::Stopped;
            }
            let results = match &record.state {
                RecordState::Released => continue,
                // Launches without evidence are run again when the attempt is resumed.
                RecordState::Active => finished.into_iter().filter(|result| result.outcome.is_evidence()).collect(),
                RecordState::Completed | RecordState::Stopped | RecordState::Lost(_) => finished,
            };
            known.push(Attempt { record, results, progress: None, stopping: None });
        }
        let (sender, news) = mpsc::unbounded_channel();
        Ok(Self { site, known, agents: Vec::new(), sender, news })
    }

    /// The observations for the decision core.
    pub fn observe(&self) -> Observed {
        let facts = |attempt: &Attempt| AttemptFacts {
            name: attempt.record.plan.attempt.clone(),
            plan_hash: attempt.record.plan_hash.clone(),
            state: attempt.record.state.ending().map_or(AttemptState::Running, AttemptState::Ended),
            placement: self.placement(attempt),
            trainer: attempt.record.trainer.clone().unwrap_or_default(),
            results: attempt.results.clone(),
            progress: attempt.progress.clone(),
        };
        Observed { attempts: self.known.iter().map(facts).collect(), ..Observed::default() }
    }

    /// The build that a new attempt of a custom command would run.
    pub fn build(&self, workload: &Workload) -> String {
        let command: Vec<String> = workload.command.iter().chain(&workload.args).cloned().collect();
        self.site.build(&command)
    }

    /// Creates the attempt of `plan`, unless an attempt of its name was created before. Returns whether the
    /// observations changed.
    ///
    /// # Errors
    /// [`StateError`] when its record cannot be written.
    pub fn start(&mut self, plan: AttemptPlan, plan_hash: String, now: Timestamp) -> Result<bool, StateError> {
        let existing = attempts::directory(&self.site.state, &plan.attempt).join(attempts::RECORD);
        if existing.exists() {
            return Ok(false);
        }
        let trainer = Some(self.site.build(&plan.command));
        let record = AttemptRecord { plan, plan_hash, created: now, trainer, state: RecordState::Active };
        record.save(&self.site.state)?;
        self.known.push(Attempt { record, results: Vec::new(), progress: None, stopping: None });
        Ok(true)
    }

    /// Requests the stop of an attempt. Returns whether the observations changed already.
    ///
    /// # Errors
    /// [`StateError`] when its record cannot be written.
    pub fn stop(&mut self, name: &str, checkpoint: bool) -> Result<bool, StateError> {
        let how = if checkpoint { Stop::Gracefully } else { Stop::Now };
        let Some(attempt) = self.known.iter_mut().find(|attempt| attempt.record.plan.attempt == name) else {
            return Ok(false);
        };
        if attempt.record.state != RecordState::Active || attempt.stopping >= Some(how) {
            return Ok(false);
        }
        attempt.stopping = Some(how);
        match self.agents.iter().find(|agent| agent.attempt == name) {
            Some(agent) => {
                // If the agent has just ended, its end will be observed.
                let _ = agent.stop.send(how);
                Ok(false)
            }
            // No agent runs it: this process has just been started and has not resumed it.
            None => self.end(name, RecordState::Stopped).map(|()| true),
        }
    }

    /// Releases an attempt that has ended; its files remain as evidence. Returns whether the observations changed.
    ///
    /// # Errors
    /// [`StateError`] when its record cannot be written.
    pub fn release(&mut self, name: &str) -> Result<bool, StateError> {
        let Some(index) = self.known.iter().position(|attempt| attempt.record.plan.attempt == name) else {
            return Ok(false);
        };
        if self.known[index].record.state == RecordState::Active {
            return Ok(false);
        }
        let mut record = self.known[index].record.clone();
        record.state = RecordState::Released;
        record.save(&self.site.state)?;
        self.known.remove(index);
        Ok(true)
    }

    /// Starts the agents of the active attempts, which are new or were left by an earlier process, as far as there are
    /// devices for them. Must be called inside a [`tokio::task::LocalSet`]. `stop_grace` is the time of their ranks
    /// between SIGTERM and SIGKILL.
    pub fn start_agents(&mut self, stop_grace: impl Fn(&AttemptPlan) -> Duration) {
        let active = self.known.iter().filter(|attempt| attempt.record.state == RecordState::Active);
        let waiting = active.filter(|attempt| !self.agents.iter().any(|agent| attempt.is(&agent.attempt)));
        let waiting: Vec<AttemptPlan> = waiting.map(|attempt| attempt.record.plan.clone()).collect();
        for plan in waiting {
            let most = self.site.machine.shares(&plan);
            let shared = |attempt: &Attempt| self.site.machine.shares(&attempt.record.plan) == most;
            let beside = |agent: &Agent| self.known.iter().any(|attempt| attempt.is(&agent.attempt) && shared(attempt));
            let used = |share: usize| self.agents.iter().any(|agent| agent.share == share);
            let free = (0..most).find(|share| !used(*share)).filter(|_| self.agents.iter().all(beside));
            let Some(share) = free else { continue };
            self.start_agent(&plan, share, stop_grace(&plan));
        }
    }

    fn start_agent(&mut self, plan: &AttemptPlan, share: usize, stop_grace: Duration) {
        let name = plan.attempt.clone();
        let site = &self.site;
        let machine = site.machine.share(plan, share);
        let mut node = Node::local(attempts::directory(&site.state, &name), site.trainer.clone());
        node.gpus.clone_from(&machine.gpus);
        node.checkpoints.clone_from(&site.checkpoints);
        node.data = site.state.data();
        node.features.clone_from(&site.features);
        node.limits.stop_grace = stop_grace;
        // The user's own value has precedence over the share of the cores.
        let own = |name: &str| site.env.iter().any(|(own, _)| own == name) || std::env::var_os(name).is_some();
        let shares = machine.environment().into_iter().filter(|(name, _)| !own(name));
        node.env = site.env.iter().cloned().chain(shares).collect();
        let plan = machine.single_agent_plan(plan);
        let (stop, stopped) = watch::channel(Stop::No);
        let (events, ended, attempt) = (self.sender.clone(), self.sender.clone(), name.clone());
        let report = move |event| drop(events.send(News { attempt: attempt.clone(), what: What::Event(event) }));
        let task = tokio::task::spawn_local(async move { pawl_agent::run(&plan, node, stopped, report).await });
        let attempt = name.clone();
        tokio::task::spawn_local(async move {
            let result = task.await.unwrap_or_else(|panic| Err(AgentError::from(std::io::Error::other(panic))));
            // The receiver is dropped only when this process is about to end.
            drop(ended.send(News { attempt, what: What::Ended(result) }));
        });
        self.agents.push(Agent { attempt: name, share, stop });
    }

    /// Whether an agent is running.
    pub fn running(&self) -> bool {
        !self.agents.is_empty()
    }

    /// The plans of the running attempts.
    pub fn current(&self) -> Vec<&AttemptPlan> {
        let plan = |agent: &Agent| self.known.iter().find(|attempt| attempt.is(&agent.attempt)).map(|a| &a.record.plan);
        self.agents.iter().filter_map(plan).collect()
    }

    /// The devices of an attempt: those of its share, or else of the first.
    fn placement(&self, attempt: &Attempt) -> String {
        let plan = &attempt.record.plan;
        let share = self.agents.iter().find(|agent| attempt.is(&agent.attempt)).map_or(0, |agent| agent.share);
        self.site.machine.share(plan, share).placement
    }

    /// Stops the ranks without ending the attempts: the next `pawl run` goes on from their results.
    pub fn interrupt(&self, how: Stop) {
        for agent in &self.agents {
            let _ = agent.stop.send(how);
        }
    }

    /// The next observation of a running attempt; pending while none is running. Cancel safe.
    pub async fn news(&mut self) -> News {
        // The channel is never closed: this struct has a sender.
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// Records an event of a running attempt.
    pub fn record_event(&mut self, name: &str, event: &Event) {
        let Some(attempt) = self.known.iter_mut().find(|attempt| attempt.is(name)) else { return };
        match event {
            Event::LaunchStarted { .. } => attempt.progress = None,
            Event::Progress(progress) => attempt.progress = Some(Progress::clone(progress)),
            Event::Warning { .. } => {}
            // A stopped launch has no result, but its checkpoint is recorded.
            Event::LaunchEnded(report) if report.outcome == Outcome::Stopped => {
                if let Some(progress) = &mut attempt.progress {
                    progress.step = progress.step.max(report.measured.steps);
                    progress.items = progress.items.max(report.measured.items);
                    progress.last_checkpoint = report.last_checkpoint.clone().or(progress.last_checkpoint.take());
                }
            }
            Event::LaunchEnded(report) => {
                // Its last progress is superseded by its report.
                attempt.progress = None;
                let result = LaunchResult::from(&**report);
                attempt.results.retain(|known| known.launch != result.launch);
                attempt.results.push(result);
            }
        }
    }

    /// Records the end of a running attempt. `interrupted`: whether [`Self::interrupt`] stopped it, so that it remains
    /// active and is resumed later.
    ///
    /// # Errors
    /// [`StateError`] when its record cannot be written, or its agent could not write to the disk.
    pub fn ended(
        &mut self,
        name: &str,
        result: Result<AttemptResult, AgentError>,
        interrupted: bool,
    ) -> Result<(), StateError> {
        self.agents.retain(|agent| agent.attempt != name);
        let state = match result {
            Ok(AttemptResult { end: AttemptEnd::Stopped, .. }) if interrupted && !self.stopping(name) => {
                return Ok(());
            }
            Ok(AttemptResult { end, launches, message }) => {
                if let Some(attempt) = self.known.iter_mut().find(|known| known.is(name)) {
                    attempt.results = launches;
                    attempt.progress = None;
                }
                match end {
                    AttemptEnd::Complete | AttemptEnd::LaunchFailed => RecordState::Completed,
                    AttemptEnd::Stopped => RecordState::Stopped,
                    AttemptEnd::LostPeer => RecordState::Lost(message),
                }
            }
            // A full or read-only disk is not a failure of the attempt: it is resumed when there is space again.
            Err(AgentError::Io(source)) if is_about_storage(&source) => {
                let path = attempts::directory(&self.site.state, name);
                return Err(StateError::Unusable { path, source });
            }
            Err(error) => RecordState::Lost(error.to_string()),
        };
        self.end(name, state)
    }

    fn stopping(&self, name: &str) -> bool {
        self.known.iter().any(|attempt| attempt.record.plan.attempt == name && attempt.stopping.is_some())
    }

    fn end(&mut self, name: &str, state: RecordState) -> Result<(), StateError> {
        let Some(attempt) = self.known.iter_mut().find(|attempt| attempt.record.plan.attempt == name) else {
            return Ok(());
        };
        attempt.record.state = state;
        attempt.record.save(&self.site.state)
    }
}

/// Whether the training of an attempt has begun. Its plan says which checkpoints count, and that was right when it was
/// made: since then, the training may have got beyond a checkpoint after which all were to be deleted, or may have
/// written its first one. The next attempt has a new plan.
fn has_trained(plan: &AttemptPlan, directory: &Path) -> bool {
    plan.launches.iter().any(|launch| launch.kind == LaunchKind::Train && directory.join(&launch.launch).exists())
}

/// Whether a measurement of an attempt has ended.
fn has_measured(plan: &AttemptPlan, finished: &[LaunchResult]) -> bool {
    let measures = |name: &str| plan.launches.iter().any(|it| it.launch == name && it.kind == LaunchKind::Measure);
    finished.iter().any(|result| result.outcome.is_evidence() && measures(&result.launch))
}

fn is_about_storage(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    let kinds =
        [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::ReadOnlyFilesystem, ErrorKind::PermissionDenied];
    kinds.contains(&error.kind())
}
