//! The local shell: observe, decide, carry out the decision by the [`pawl_decision::protocol`] of all shells, wait.

use crate::display::{Display, Style};
use crate::evidence;
use crate::gang::{Attempts, News, Site};
use crate::interrupt::{Interrupts, Signal};
use crate::machine::{Machine, MachineError};
use crate::state::document::Document;
use crate::state::events::{self, EventLog};
use crate::state::{Lock, StateDir, StateError};
use jiff::Timestamp;
use pawl_agent::Stop;
use pawl_api::status::{PhaseState, Stage};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::env;
use pawl_decision::action::{Action, Event, EventKind};
use pawl_decision::protocol::{self, CarriedOut};
use std::ffi::OsString;
use std::time::Duration;

/// The status is written at once when it says something new, and so often when only the training went on.
const PROGRESS_WRITE: Duration = Duration::from_secs(1);

/// How a job is run on this machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// The state directory.
    pub state: StateDir,
    /// Names of the GPUs to use; `None`: the first ones that are visible.
    pub gpus: Option<Vec<String>>,
    /// Program and arguments of the built-in trainer.
    pub trainer: Vec<OsString>,
    /// How progress is shown.
    pub style: Style,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The job is complete, and every gate holds.
    Complete,
    /// The job is complete, but a gate does not hold.
    Degraded,
    /// The job waits for a person: the manifest suspends it, or a gate was missed and it says to pause.
    Suspended,
    /// The job failed.
    Failed,
    /// A signal ended the run. Run again, the job goes on.
    Interrupted(Signal),
}

/// Why a job could not be run, or run on. Nothing that was finished is lost.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The machine does not fit the manifest.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The manifest asks for what only a cluster has.
    #[error("spec.train.checkpoint.storage: {0:?} is a volume of a cluster: use file:///dir here, or leave it out")]
    ClusterStorage(String),
    /// Trouble with the state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// The runtime or the signal handlers could not be set up.
    #[error("cannot start: {0}")]
    Setup(#[from] std::io::Error),
}

/// Runs `job` until it ends, is suspended, or is interrupted. Returns how it ended, and the document as it was left.
///
/// # Errors
/// [`RunError`]; when the state cannot be written, the ranks are stopped first.
pub fn run(job: TrainingJob, options: Options) -> Result<(Verdict, Document), RunError> {
    let shell = open(job, options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, shell.run())
}

/// The shell of `job` with what its state directory holds; nothing runs yet.
fn open(job: TrainingJob, options: Options) -> Result<Shell, RunError> {
    let machine = Machine::allot(&job, options.gpus.as_deref())?;
    let state = options.state.prepare()?;
    let lock = state.lock()?;
    let document = opened(&state, job)?;
    let site = Site {
        checkpoints: checkpoints(&state, &document.job)?,
        env: environment(&document.job),
        trainer: options.trainer,
        machine,
        state: state.clone(),
    };
    document.save(&state)?;
    let attempts = Attempts::load(site)?;
    let events = EventLog::open(&state)?;
    let display = Display::new(options.style, &document.job);
    Ok(Shell { state, document, attempts, events, display, written: None, _lock: lock })
}

/// The document of the job: the one of earlier runs with this manifest, or a new one.
fn opened(state: &StateDir, job: TrainingJob) -> Result<Document, StateError> {
    let name = job.metadata.name.clone().unwrap_or_default();
    let Some(mut document) = Document::load(state)? else {
        let attempts = state.attempts();
        let orphaned = std::fs::read_dir(&attempts).is_ok_and(|mut entries| entries.next().is_some());
        if orphaned {
            return Err(StateError::Missing { path: state.status(), attempts, remove: state.root().to_owned() });
        }
        return Ok(Document::new(job));
    };
    if document.name() != name {
        return Err(StateError::OtherJob { path: state.status(), found: document.name().to_owned(), wanted: name });
    }
    document.adopt(job);
    Ok(document)
}

/// Where checkpoints go.
fn checkpoints(state: &StateDir, job: &TrainingJob) -> Result<String, RunError> {
    let train = &job.spec.train;
    let named = [train.checkpoint.storage.as_ref(), train.resume_from.as_ref().map(|from| &from.storage)];
    if let Some(storage) = named.into_iter().flatten().find(|storage| storage.starts_with("pvc://")) {
        return Err(RunError::ClusterStorage(storage.clone()));
    }
    let own = || state.checkpoints().to_string_lossy().into_owned();
    Ok(pawl_decision::storage::location(job).unwrap_or_else(own))
}

/// The job's identity, and plain variables of the pod template; those that refer to objects of a cluster have no value here.
fn environment(job: &TrainingJob) -> Vec<(String, String)> {
    let meta = &job.metadata;
    let identity = [
        (env::JOB_UID, meta.uid.clone()),
        (env::JOB_GENERATION, meta.generation.map(|generation| generation.to_string())),
    ];
    let identity = identity.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let variables = job.spec.trainer.pod_template.env.iter();
    let variables = variables.filter_map(|variable| Some((variable.name.clone(), variable.value.clone()?)));
    identity.chain(variables).collect()
}

struct Shell {
    state: StateDir,
    document: Document,
    attempts: Attempts,
    events: EventLog,
    display: Display,
    /// What the disk holds, and since when.
    written: Option<(TrainingJobStatus, std::time::Instant)>,
    _lock: Lock,
}

impl Shell {
    async fn run(mut self) -> Result<(Verdict, Document), RunError> {
        let mut interrupts = Interrupts::listen()?;
        let outcome = match self.drive(&mut interrupts).await {
            Ok(Some(verdict)) => Ok(verdict),
            Ok(None) => self.wind_down(&mut interrupts).await,
            Err(error) => {
                self.give_up(&mut interrupts).await;
                Err(error)
            }
        };
        self.display.close();
        let verdict = outcome?;
        evidence::write_report(&self.state, &self.state.report())?;
        Ok((verdict, self.document))
    }

    /// Decides and acts until the job is at rest; `None` when a signal came first.
    async fn drive(&mut self, interrupts: &mut Interrupts) -> Result<Option<Verdict>, RunError> {
        loop {
            let (requeue_after, moved) = self.step().await?;
            self.attempts.take_up();
            if moved {
                // A decision may call for the next one at once; signals are heard in between.
                if interrupts.pending() {
                    return Ok(None);
                }
                continue;
            }
            if !self.attempts.running()
                && let Some(verdict) = at_rest(&self.document.status)
            {
                self.save()?;
                return Ok(Some(verdict));
            }
            let wait = requeue_after.unwrap_or(Duration::from_secs(3600)).max(Duration::from_millis(10));
            let wait = if self.unsaved() { wait.min(PROGRESS_WRITE) } else { wait };
            tokio::select! {
                biased;
                _ = interrupts.next() => return Ok(None),
                news = self.attempts.news() => self.take_in(news, false)?,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Decides once and carries it out. Returns when to decide again at the latest, and whether the status or an attempt
    /// changed: then it is to be decided again at once.
    async fn step(&mut self) -> Result<(Option<Duration>, bool), RunError> {
        let observed = self.attempts.observe();
        let Document { job, status, .. } = &self.document;
        let decision = pawl_decision::decide(job, status, &observed, Timestamp::now());
        let changed = decision.status != *status;
        let judged = verdicts(status);
        let CarriedOut { acted, requeue_after } = decision.carry_out(self).await?;
        if verdicts(&self.document.status) != judged {
            // A run that is killed later leaves the evidence so far.
            evidence::write_report(&self.state, &self.state.report())?;
        }
        self.display.show(&self.document.status, self.attempts.current());
        Ok((requeue_after, changed || acted))
    }

    fn tell(&mut self, event: Event) -> Result<(), StateError> {
        let record = events::record(event, Timestamp::now());
        self.events.append(&record)?;
        self.display.event(&record);
        Ok(())
    }

    /// Takes in what the agent has to say.
    fn take_in(&mut self, news: News, interrupted: bool) -> Result<(), StateError> {
        match news {
            News::Event(event) => {
                self.attempts.heard(&event);
                self.display.heard(&event);
                Ok(())
            }
            News::Ended(result) => self.attempts.ended(result, interrupted),
        }
    }

    /// After a signal: checkpoint, take in what was still said, write it all down. A second signal kills at once.
    async fn wind_down(&mut self, interrupts: &mut Interrupts) -> Result<Verdict, RunError> {
        let mut signal = interrupts.received().unwrap_or(Signal::Interrupt);
        if self.attempts.running() {
            self.display.note("stopping: the ranks write a checkpoint; once more to kill them at once");
        }
        self.attempts.interrupt(Stop::Gracefully);
        while self.attempts.running() {
            tokio::select! {
                biased;
                again = interrupts.next() => {
                    signal = again;
                    self.attempts.interrupt(Stop::Now);
                }
                news = self.attempts.news() => self.take_in(news, true)?,
            }
        }
        self.step().await?;
        self.save()?;
        self.tell(Event {
            kind: EventKind::Normal,
            reason: "Interrupted".to_owned(),
            message: format!("stopped by {signal}; the same command goes on from here"),
            phase: None,
        })?;
        Ok(Verdict::Interrupted(signal))
    }

    /// The state cannot be written: no rank may run on unseen. What they can still save, they save.
    async fn give_up(&mut self, interrupts: &mut Interrupts) {
        self.attempts.interrupt(Stop::Gracefully);
        while self.attempts.running() {
            tokio::select! {
                biased;
                _ = interrupts.next() => self.attempts.interrupt(Stop::Now),
                news = self.attempts.news() => {
                    // Its end may be as impossible to write as the status was: then it is taken up next time.
                    let _ = self.take_in(news, true);
                }
            }
        }
    }

    fn unsaved(&self) -> bool {
        self.written.as_ref().is_none_or(|(status, _)| *status != self.document.status)
    }

    /// Whether the status is to be written now rather than with the next ones. `urgent`: there are actions or events.
    fn worth_writing(&self, urgent: bool) -> bool {
        let Some((written, since)) = &self.written else { return true };
        if *written == self.document.status {
            return false;
        }
        urgent
            || since.elapsed() >= PROGRESS_WRITE
            || written.clone().without_progress() != self.document.status.clone().without_progress()
    }

    fn save(&mut self) -> Result<(), StateError> {
        if self.unsaved() {
            self.document.save(&self.state)?;
            self.written = Some((self.document.status.clone(), std::time::Instant::now()));
        }
        Ok(())
    }
}

impl protocol::Shell for Shell {
    type Error = StateError;

    async fn write(&mut self, status: TrainingJobStatus, urgent: bool) -> Result<(), StateError> {
        self.document.status = status;
        if self.worth_writing(urgent) { self.save() } else { Ok(()) }
    }

    async fn act(&mut self, action: Action) -> Result<bool, StateError> {
        match action {
            Action::Start { plan, plan_hash } => self.attempts.start(plan, plan_hash, Timestamp::now()),
            Action::Stop { attempt, checkpoint, cause: _ } => self.attempts.stop(&attempt, checkpoint),
            Action::Release { attempt } => self.attempts.release(&attempt),
        }
    }

    async fn emit(&mut self, event: Event) -> Result<(), StateError> {
        self.tell(event)
    }
}

/// What was judged for good: the phases by their index, and the bundle.
fn verdicts(status: &TrainingJobStatus) -> Vec<(usize, PhaseState)> {
    let bundle = status.bundle.iter().map(|bundle| bundle.state);
    let states = status.phases.iter().map(|phase| phase.state).chain(bundle);
    states.enumerate().filter(|(_, state)| state.is_final()).collect()
}

/// How the job rests, if nothing more will happen by itself.
fn at_rest(status: &TrainingJobStatus) -> Option<Verdict> {
    let degraded = || status.conditions.iter().any(|known| known.type_ == "Degraded" && known.status == "True");
    match status.stage {
        Stage::Complete if degraded() => Some(Verdict::Degraded),
        Stage::Complete => Some(Verdict::Complete),
        Stage::Failed => Some(Verdict::Failed),
        Stage::Suspended => Some(Verdict::Suspended),
        Stage::Pending | Stage::Preflight | Stage::Optimizing | Stage::Searching | Stage::Training => None,
    }
}

#[cfg(test)]
mod tests;
