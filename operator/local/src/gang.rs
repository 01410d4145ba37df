//! The attempts of a job on this machine: what the disk knows of each, and the agent that runs one of them.

use crate::machine::Machine;
use crate::state::attempts::{self, AttemptRecord, Stand};
use crate::state::{StateDir, StateError};
use jiff::Timestamp;
use pawl_agent::{AgentError, AttemptEnd, AttemptResult, Event, Node, Stop};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::AttemptPlan;
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;
use pawl_decision::observed::{AttemptFacts, AttemptState, Observed};
use std::ffi::OsString;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Everything that the agent of an attempt needs besides its plan.
#[derive(Clone, Debug)]
pub struct Site {
    /// The state directory.
    pub state: StateDir,
    /// The devices.
    pub machine: Machine,
    /// Program and arguments of the built-in trainer.
    pub trainer: Vec<OsString>,
    /// Checkpoint storage, URL or path.
    pub checkpoints: String,
    /// Environment from the manifest.
    pub env: Vec<(String, String)>,
}

/// News of the attempt that runs.
#[derive(Debug)]
pub enum News {
    /// Something happened in it.
    Event(Event),
    /// It ended.
    Ended(Result<AttemptResult, AgentError>),
}

/// The agent at work.
#[derive(Debug)]
struct Agent {
    attempt: String,
    stop: watch::Sender<Stop>,
    news: mpsc::UnboundedReceiver<Event>,
    task: JoinHandle<Result<AttemptResult, AgentError>>,
}

/// One attempt that is not released.
#[derive(Debug)]
struct Attempt {
    record: AttemptRecord,
    results: Vec<LaunchResult>,
    progress: Option<Progress>,
    /// The decision core asked for its end.
    stopping: Option<Stop>,
}

/// The attempts of a job that are not released. At most one of them runs: they share the devices.
#[derive(Debug)]
pub struct Attempts {
    site: Site,
    known: Vec<Attempt>,
    agent: Option<Agent>,
}

impl Attempts {
    /// Reads what the state directory holds.
    pub fn load(site: Site) -> Result<Self, StateError> {
        let mut known = Vec::new();
        for record in attempts::load(&site.state)? {
            let directory = attempts::directory(&site.state, &record.plan.attempt);
            let finished = pawl_agent::finished_launches(&directory).map_err(StateError::unusable(&directory))?;
            let results = match &record.stand {
                Stand::Released => continue,
                // What is not evidence is run again when the attempt is taken up.
                Stand::Active => finished.into_iter().filter(|result| result.outcome.is_evidence()).collect(),
                Stand::Completed | Stand::Stopped | Stand::Lost(_) => finished,
            };
            known.push(Attempt { record, results, progress: None, stopping: None });
        }
        Ok(Self { site, known, agent: None })
    }

    /// The facts that decisions are made on.
    pub fn observe(&self) -> Observed {
        let facts = |attempt: &Attempt| AttemptFacts {
            name: attempt.record.plan.attempt.clone(),
            plan_hash: attempt.record.plan_hash.clone(),
            state: attempt.record.stand.ending().map_or(AttemptState::Running, AttemptState::Ended),
            placement: self.site.machine.placement.clone(),
            results: attempt.results.clone(),
            progress: attempt.progress.clone(),
        };
        Observed { attempts: self.known.iter().map(facts).collect() }
    }

    /// Makes the attempt of `plan` exist, unless one of its name ever did. Returns whether the facts changed.
    pub fn start(&mut self, plan: AttemptPlan, plan_hash: String, now: Timestamp) -> Result<bool, StateError> {
        let existing = attempts::directory(&self.site.state, &plan.attempt).join(attempts::RECORD);
        if existing.exists() {
            return Ok(false);
        }
        let record = AttemptRecord { plan, plan_hash, created: now, stand: Stand::Active };
        record.save(&self.site.state)?;
        self.known.push(Attempt { record, results: Vec::new(), progress: None, stopping: None });
        Ok(true)
    }

    /// Begins to end an attempt. Returns whether the facts changed already.
    pub fn stop(&mut self, name: &str, checkpoint: bool) -> Result<bool, StateError> {
        let how = if checkpoint { Stop::Gracefully } else { Stop::Now };
        let Some(attempt) = self.known.iter_mut().find(|attempt| attempt.record.plan.attempt == name) else {
            return Ok(false);
        };
        if attempt.record.stand != Stand::Active || attempt.stopping >= Some(how) {
            return Ok(false);
        }
        attempt.stopping = Some(how);
        match &self.agent {
            Some(agent) if agent.attempt == name => {
                // The agent may have ended this very moment; its end is news soon.
                let _ = agent.stop.send(how);
                Ok(false)
            }
            // Nothing runs it: this process was started anew and has not taken it up.
            _ => self.end(name, Stand::Stopped).map(|()| true),
        }
    }

    /// Forgets an attempt that ended; its files stay as evidence. Returns whether the facts changed.
    pub fn release(&mut self, name: &str) -> Result<bool, StateError> {
        let Some(index) = self.known.iter().position(|attempt| attempt.record.plan.attempt == name) else {
            return Ok(false);
        };
        if self.known[index].record.stand == Stand::Active {
            return Ok(false);
        }
        let mut record = self.known[index].record.clone();
        record.stand = Stand::Released;
        record.save(&self.site.state)?;
        self.known.remove(index);
        Ok(true)
    }

    /// Starts the agent of the attempt that is to run and has none: a new one, or one that an earlier process left.
    /// Inside a [`tokio::task::LocalSet`] only.
    pub fn take_up(&mut self) {
        if self.agent.is_some() {
            return;
        }
        let Some(attempt) = self.known.iter().find(|attempt| attempt.record.stand == Stand::Active) else { return };
        let name = attempt.record.plan.attempt.clone();
        let site = &self.site;
        let mut node = Node::local(attempts::directory(&site.state, &name), site.trainer.clone());
        node.gpus.clone_from(&site.machine.gpus);
        node.checkpoints.clone_from(&site.checkpoints);
        node.data = site.state.data();
        node.env = site.env.iter().cloned().chain(site.machine.environment()).collect();
        let plan = site.machine.gathered(&attempt.record.plan);
        let (stop, stopped) = watch::channel(Stop::No);
        let (tell, news) = mpsc::unbounded_channel();
        let task = tokio::task::spawn_local(async move {
            // Nobody listens only when this process is about to end.
            pawl_agent::run(&plan, node, stopped, move |event| drop(tell.send(event))).await
        });
        self.agent = Some(Agent { attempt: name, stop, news, task });
    }

    /// Whether an agent is at work.
    pub fn running(&self) -> bool {
        self.agent.is_some()
    }

    /// The plan of the attempt that runs.
    pub fn current(&self) -> Option<&AttemptPlan> {
        let name = &self.agent.as_ref()?.attempt;
        self.known.iter().map(|attempt| &attempt.record.plan).find(|plan| plan.attempt == *name)
    }

    /// Asks the ranks to end without ending the attempt: the next `pawl run` takes it up again.
    pub fn interrupt(&self, how: Stop) {
        if let Some(agent) = &self.agent {
            let _ = agent.stop.send(how);
        }
    }

    /// The next news of the attempt that runs; pending for ever while none does. Safe to cancel.
    pub async fn news(&mut self) -> News {
        let Some(agent) = &mut self.agent else { return std::future::pending().await };
        if let Some(event) = agent.news.recv().await {
            return News::Event(event);
        }
        // The agent dropped its observer: it is at its end.
        let ended = (&mut agent.task).await;
        News::Ended(ended.unwrap_or_else(|panic| Err(AgentError::from(std::io::Error::other(panic)))))
    }

    /// Takes in what happened.
    pub fn heard(&mut self, event: &Event) {
        let Some(name) = self.agent.as_ref().map(|agent| agent.attempt.clone()) else { return };
        let Some(attempt) = self.known.iter_mut().find(|attempt| attempt.record.plan.attempt == name) else { return };
        match event {
            Event::LaunchStarted { .. } => attempt.progress = None,
            Event::Progress(progress) => attempt.progress = Some(progress.clone()),
            // It was cut short and is no result; but the checkpoint that it left is worth knowing of.
            Event::LaunchEnded(report) if report.outcome == Outcome::Stopped => {
                if let Some(progress) = &mut attempt.progress {
                    progress.step = progress.step.max(report.measured.steps);
                    progress.items = progress.items.max(report.measured.items);
                    progress.last_checkpoint = report.last_checkpoint.clone().or(progress.last_checkpoint.take());
                }
            }
            Event::LaunchEnded(report) => {
                // What it said last belongs to it; decisions that need it have the report.
                attempt.progress = None;
                let result = LaunchResult::from(&**report);
                attempt.results.retain(|known| known.launch != result.launch);
                attempt.results.push(result);
            }
        }
    }

    /// Takes in the end of the attempt that ran. `interrupted`: its end was asked for by [`Self::interrupt`], so it
    /// stays to be taken up.
    pub fn ended(&mut self, result: Result<AttemptResult, AgentError>, interrupted: bool) -> Result<(), StateError> {
        let Some(agent) = self.agent.take() else { return Ok(()) };
        let stand = match result {
            Ok(AttemptResult { end: AttemptEnd::Stopped, .. }) if interrupted && !self.stopping(&agent.attempt) => {
                return Ok(());
            }
            Ok(AttemptResult { end, launches, message }) => {
                if let Some(attempt) = self.known.iter_mut().find(|known| known.record.plan.attempt == agent.attempt) {
                    attempt.results = launches;
                    attempt.progress = None;
                }
                match end {
                    AttemptEnd::Complete | AttemptEnd::LaunchFailed => Stand::Completed,
                    AttemptEnd::Stopped => Stand::Stopped,
                    AttemptEnd::LostPeer => Stand::Lost(message),
                }
            }
            // A full or read-only disk is no fault of the attempt: it is taken up when there is space again.
            Err(AgentError::Io(source)) if is_about_storage(&source) => {
                let path = attempts::directory(&self.site.state, &agent.attempt);
                return Err(StateError::Unusable { path, source });
            }
            Err(error) => Stand::Lost(error.to_string()),
        };
        self.end(&agent.attempt, stand)
    }

    fn stopping(&self, name: &str) -> bool {
        self.known.iter().any(|attempt| attempt.record.plan.attempt == name && attempt.stopping.is_some())
    }

    fn end(&mut self, name: &str, stand: Stand) -> Result<(), StateError> {
        let Some(attempt) = self.known.iter_mut().find(|attempt| attempt.record.plan.attempt == name) else {
            return Ok(());
        };
        attempt.record.stand = stand;
        attempt.record.save(&self.site.state)
    }
}

fn is_about_storage(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    let kinds =
        [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::ReadOnlyFilesystem, ErrorKind::PermissionDenied];
    kinds.contains(&error.kind())
}
