//! The local shell: observe, decide, carry out the decision by the [`pawl_decision::protocol`] of all shells, wait.

use crate::display::{Display, Style};
use crate::evidence;
use crate::gang::{Attempts, News, Site, What};
use crate::interrupt::{Interrupts, Signal};
use crate::machine::{Machine, MachineError};
use crate::state::attempts;
use crate::state::document::Document;
use crate::state::events::{self, EventLog};
use crate::state::{Lock, StateDir, StateError};
use crate::tracking::{TrackError, Trackers};
use jiff::Timestamp;
use pawl_agent::{Kept, Stop};
use pawl_api::status::{PhaseState, Stage};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::attempt::AttemptName;
use pawl_contract::env;
use pawl_contract::happened::Happened;
use pawl_contract::template::expand;
use pawl_decision::action::{Action, Event, EventKind};
use pawl_decision::observed::Observed;
use pawl_decision::protocol::{self, CarriedOut};
use pawl_display::event::EventRecord;
use std::ffi::OsString;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Interval of status writes that contain only progress; other changes are written immediately.
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
    /// Optional features of this build, for the records.
    pub features: Vec<&'static str>,
    /// How progress is shown.
    pub style: Style,
    /// Longest time of the run; then it ends as by SIGTERM.
    pub limit: Option<Duration>,
}

/// Outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The job is complete, and every gate passed.
    Complete,
    /// The job is complete, but a gate failed.
    Degraded,
    /// The job is suspended: by the manifest, or because a gate failed and `rollback.onGoalMissed` is Pause.
    Suspended,
    /// The job failed.
    Failed,
    /// A signal, or its deadline, ended the run; the next run resumes the job.
    Interrupted(Signal),
}

/// Error of running a job. Finished launches are never lost.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The machine does not meet the requirements of the manifest.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The manifest uses storage that is available in clusters only.
    #[error("spec.train.checkpoint.storage: \"{0}\" requires a cluster: use file:///dir, or remove the field")]
    ClusterStorage(String),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The runtime or the signal handlers could not be set up.
    #[error("cannot start: {0}")]
    Setup(#[from] std::io::Error),
}

/// Runs `job` until it ends, is suspended, or is interrupted. Returns the outcome, and the final document.
///
/// # Errors
/// [`RunError`]; when the state cannot be written, the ranks are stopped first.
pub fn run(job: TrainingJob, options: Options) -> Result<(RunOutcome, Document), RunError> {
    let shell = open(job, options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, shell.run())
}

/// Opens the state directory of `job`. Starts no launch.
fn open(job: TrainingJob, options: Options) -> Result<Shell, RunError> {
    let machine = Machine::allocate(&job, options.gpus.as_deref())?;
    let state = options.state.prepare()?;
    let lock = state.lock()?;
    let document = opened(&state, job)?;
    let trackers = trackers(&document.job);
    let site = Site {
        checkpoints: checkpoints(&state, &document.job)?,
        env: environment(&document.job, &|name| std::env::var(name).ok()),
        trainer: options.trainer,
        features: options.features,
        machine,
        state: state.clone(),
    };
    document.save(&state)?;
    let storage = site.checkpoints.clone();
    let attempts = Attempts::load(site)?;
    let events = EventLog::open(&state)?;
    let display = Display::new(options.style, &document.job);
    let (limit, keeps_status) = (options.limit, true);
    let mut shell = Shell {
        state,
        document,
        attempts,
        events,
        display,
        limit,
        storage,
        keeps_status,
        trackers: None,
        logging: None,
        written: None,
        _lock: lock,
    };
    match trackers {
        Ok(trackers) => shell.trackers = Some(Rc::new(trackers)),
        Err(TrackError::Unnamed | TrackError::Disabled) => {}
        Err(error) => shell.untracked(&error, ""),
    }
    Ok(shell)
}

/// The document of the job: that of earlier runs with this manifest, or a new one.
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
    let changed = document.adopt(job);
    if !changed {
        // Whoever starts a failed job again has mended something that is not in the manifest.
        pawl_decision::retry(&mut document.status);
    }
    Ok(document)
}

/// The checkpoint storage, URL or path.
pub(crate) fn checkpoints(state: &StateDir, job: &TrainingJob) -> Result<String, RunError> {
    let train = &job.spec.train;
    let named = [train.checkpoint.storage.as_ref(), train.resume_from.as_ref().map(|from| &from.storage)];
    if let Some(storage) = named.into_iter().flatten().find(|storage| storage.starts_with("pvc://")) {
        return Err(RunError::ClusterStorage(storage.clone()));
    }
    let own = || state.checkpoints().to_string_lossy().into_owned();
    Ok(pawl_decision::storage::location(job).unwrap_or_else(own))
}

/// The identity of the job, and the environment variables of the pod template with a literal value; references to
/// objects of a cluster are ignored. `outer` is the environment of this process.
pub(crate) fn environment(job: &TrainingJob, outer: &dyn Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    let meta = &job.metadata;
    let identity = [
        (env::JOB_UID, meta.uid.clone()),
        (env::JOB_GENERATION, meta.generation.map(|generation| generation.to_string())),
    ];
    let identity = identity.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let mut all: Vec<(String, String)> = identity.collect();
    for variable in &job.spec.trainer.pod_template.env {
        let Some(value) = &variable.value else { continue };
        let known = |name: &str| all.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        // The agent replaces placeholders, and the variables beside them, in each launch.
        let value = expand(value, &|name| known(name).or_else(|| outer(name)));
        all.push((variable.name.clone(), value));
    }
    all
}

/// The trackers of a job: those that the variables of its manifest name, or else those of this process.
///
/// # Errors
/// As [`Trackers::named`].
pub fn trackers(job: &TrainingJob) -> Result<Trackers, TrackError> {
    let outer = |name: &str| std::env::var(name).ok();
    let variables = environment(job, &outer);
    let own = |name: &str| variables.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    Trackers::named(|name| own(name).or_else(|| outer(name)))
}

/// The remedy when a tracker fails.
const LATER: &str = "; `pawl track` logs it later";

struct Shell {
    state: StateDir,
    document: Document,
    attempts: Attempts,
    events: EventLog,
    display: Display,
    limit: Option<Duration>,
    /// The job's storage, URL or path.
    storage: String,
    /// Whether the status is copied to the storage: until that has failed.
    keeps_status: bool,
    /// Where the job is logged: each until it has failed.
    trackers: Option<Rc<Trackers>>,
    /// What is being logged there.
    logging: Option<JoinHandle<Result<(), TrackError>>>,
    /// The status on disk, and the time of its write.
    written: Option<(TrainingJobStatus, std::time::Instant)>,
    _lock: Lock,
}

impl Shell {
    async fn run(mut self) -> Result<(RunOutcome, Document), RunError> {
        let mut interrupts = Interrupts::listen()?.within(self.limit);
        let trained = self.has_trained().then_some(self.document.status.attempts);
        let ended = match self.drive(&mut interrupts).await {
            Ok(Some(outcome)) => Ok(outcome),
            Ok(None) => self.wind_down(&mut interrupts).await,
            Err(error) => {
                self.stop_after_error(&mut interrupts).await;
                Err(error)
            }
        };
        if trained == Some(self.document.status.attempts) {
            self.display.note("already trained: nothing to do");
        }
        if ended.is_ok() {
            let events = self.events_so_far();
            self.keep(Some(events), &mut interrupts).await;
            tokio::select! {
                biased;
                _ = interrupts.next() => {}
                () = self.track_whole() => {}
            }
        }
        self.display.close();
        let outcome = ended?;
        evidence::write_report(&self.state, &self.state.report())?;
        Ok((outcome, self.document))
    }

    /// What happened to the job, for the record of its newest attempt, which runs no more.
    fn events_so_far(&self) -> (String, Vec<Happened>) {
        let attempt = AttemptName { job: self.document.name(), number: self.document.status.attempts };
        (attempt.to_string(), events::read(&self.state).iter().map(EventRecord::happened).collect())
    }

    /// Copies the manifest, the status and these events to the records in the job's storage, which are read without
    /// this directory. Returns whether a signal was received, which ends the wait for the storage.
    async fn keep(&mut self, events: Option<(String, Vec<Happened>)>, interrupts: &mut Interrupts) -> bool {
        if !self.keeps_status {
            return false;
        }
        let Document { job, status, .. } = &self.document;
        let kept = Kept { status: pawl_decision::record::document(job, status).into_bytes(), events };
        let kept = tokio::select! {
            biased;
            _ = interrupts.next() => return true,
            kept = pawl_agent::keep(&self.storage, kept) => kept,
        };
        if let Err(error) = kept {
            self.keeps_status = false;
            self.display.note(&format!("the status is not kept in the job's storage: {error}"));
        }
        false
    }

    /// Logs what is new of the job to its trackers. Nothing waits for that, and it does not fail the job. While it
    /// lasts, nothing else is logged: the next call does that.
    async fn track(&mut self) {
        if self.logging.as_ref().is_some_and(|logging| !logging.is_finished()) {
            return;
        }
        self.logged().await;
        let Some(trackers) = self.trackers.clone() else { return };
        match evidence::gather(&self.state) {
            Ok(evidence) => {
                let runs = pawl_display::track::runs(&evidence);
                self.logging = Some(tokio::task::spawn_local(async move { trackers.log(&runs).await }));
            }
            Err(error) => {
                self.trackers = None;
                self.untracked(&error, LATER);
            }
        }
    }

    /// Waits until what is being logged is, if it is.
    async fn logged(&mut self) {
        let Some(logging) = &mut self.logging else { return };
        let ended = logging.await;
        self.logging = None;
        if let Ok(Err(error)) = ended {
            let others = self.trackers.take().and_then(|trackers| trackers.without(&error));
            self.trackers = others.map(Rc::new);
            self.untracked(&error, LATER);
        }
    }

    /// Logs the whole job at its end, and waits for that.
    async fn track_whole(&mut self) {
        self.logged().await;
        self.track().await;
        self.logged().await;
    }

    fn untracked(&mut self, error: &dyn fmt::Display, remedy: &str) {
        self.display.note(&format!("the job is not tracked: {error}{remedy}"));
    }

    /// Whether the job, as its manifest is now, has trained to its end.
    fn has_trained(&self) -> bool {
        let Document { job, status, .. } = &self.document;
        let known = status.observed_generation == job.metadata.generation;
        let trained = status.training.as_ref().is_some_and(|training| !training.completed.is_empty());
        known && trained && status.stage == Stage::Complete
    }

    /// Decides and acts until the job is complete, failed or suspended; `None` when a signal was received first.
    async fn drive(&mut self, interrupts: &mut Interrupts) -> Result<Option<RunOutcome>, RunError> {
        loop {
            let final_before = final_states(&self.document.status);
            let (requeue_after, moved) = self.step().await?;
            let Document { job, status, .. } = &self.document;
            self.attempts.start_agents(|plan| pawl_decision::stop_grace(&job.spec, Some(status), plan));
            let judged = final_states(&self.document.status) != final_before;
            if judged {
                if self.keep(None, interrupts).await {
                    return Ok(None);
                }
                self.track().await;
            }
            if moved {
                // A decision may require the next one immediately; signals are checked in between.
                if interrupts.pending() {
                    return Ok(None);
                }
                continue;
            }
            if !self.attempts.running()
                && let Some(outcome) = outcome(&self.document.status)
            {
                self.save()?;
                return Ok(Some(outcome));
            }
            let wait = requeue_after.unwrap_or(Duration::from_secs(3600)).max(Duration::from_millis(10));
            let wait = if self.unsaved() { wait.min(PROGRESS_WRITE) } else { wait };
            tokio::select! {
                biased;
                _ = interrupts.next() => return Ok(None),
                news = self.attempts.news() => self.process(news, false)?,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Decides once and carries the decision out. Returns the maximum time until the next decision, and whether the
    /// status or an attempt changed, which requires the next decision immediately.
    async fn step(&mut self) -> Result<(Option<Duration>, bool), RunError> {
        let Document { job, status, .. } = &self.document;
        // A finished job whose script was edited has the model of the old one.
        let done = status.stage == Stage::Complete && !self.attempts.running();
        let build = if done { self.attempts.build(&job.spec.workload) } else { String::new() };
        let observed = Observed { build, ..self.attempts.observe() };
        let decision = pawl_decision::decide(job, status, &observed, Timestamp::now());
        let changed = decision.status != *status;
        let final_before = final_states(status);
        let CarriedOut { acted, requeue_after } = decision.carry_out(self).await?;
        if final_states(&self.document.status) != final_before {
            // If the run is killed later, the report contains the evidence so far.
            evidence::write_report(&self.state, &self.state.report())?;
        }
        if acted {
            attempts::prune(&self.state, &self.document.status)?;
        }
        self.display.show(&self.document.status, &self.attempts.current());
        Ok((requeue_after, changed || acted))
    }

    fn emit_event(&mut self, event: Event) -> Result<(), StateError> {
        let record = events::record(event, Timestamp::now());
        self.events.append(&record)?;
        self.display.event(&record);
        Ok(())
    }

    /// Records an observation of a running attempt.
    fn process(&mut self, News { attempt, what }: News, interrupted: bool) -> Result<(), StateError> {
        match what {
            What::Event(event) => {
                self.attempts.record_event(&attempt, &event);
                self.display.record_event(&event);
                Ok(())
            }
            What::Ended(result) => self.attempts.ended(&attempt, result, interrupted),
        }
    }

    /// After a signal: stops the ranks with a checkpoint, and records their last events. A second signal kills them.
    async fn wind_down(&mut self, interrupts: &mut Interrupts) -> Result<RunOutcome, RunError> {
        let mut signal = interrupts.received().unwrap_or(Signal::Interrupt);
        if self.attempts.running() && signal != Signal::Deadline {
            self.display
                .note("stopping: the ranks may write a checkpoint first; repeat the signal to kill them immediately");
        }
        self.attempts.interrupt(Stop::Gracefully);
        while self.attempts.running() {
            tokio::select! {
                biased;
                again = interrupts.next() => {
                    if again.is_urgent_when_repeated() {
                        signal = again;
                        self.attempts.interrupt(Stop::Now);
                    }
                }
                news = self.attempts.news() => self.process(news, true)?,
            }
        }
        self.step().await?;
        self.save()?;
        self.emit_event(Event {
            kind: EventKind::Normal,
            reason: "Interrupted".to_owned(),
            message: format!("stopped by {signal}; the same command resumes the job"),
            phase: None,
        })?;
        Ok(RunOutcome::Interrupted(signal))
    }

    /// After an error of the state directory: stops the ranks with a checkpoint, because their progress cannot be
    /// recorded.
    async fn stop_after_error(&mut self, interrupts: &mut Interrupts) {
        self.attempts.interrupt(Stop::Gracefully);
        while self.attempts.running() {
            tokio::select! {
                biased;
                again = interrupts.next() => {
                    if again.is_urgent_when_repeated() {
                        self.attempts.interrupt(Stop::Now);
                    }
                }
                news = self.attempts.news() => {
                    // If its end cannot be written either, the next run resumes the attempt.
                    let _ = self.process(news, true);
                }
            }
        }
    }

    fn unsaved(&self) -> bool {
        self.written.as_ref().is_none_or(|(status, _)| *status != self.document.status)
    }

    /// Whether to write the status now rather than later. `urgent`: there are actions or events.
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
        self.emit_event(event)
    }
}

/// The final states of the phases, by index, and of the bundle.
fn final_states(status: &TrainingJobStatus) -> Vec<(usize, PhaseState)> {
    let bundle = status.bundle.iter().map(|bundle| bundle.state);
    let states = status.phases.iter().map(|phase| phase.state).chain(bundle);
    states.enumerate().filter(|(_, state)| state.is_final()).collect()
}

/// The outcome of the run, if the job is complete, failed or suspended.
fn outcome(status: &TrainingJobStatus) -> Option<RunOutcome> {
    let degraded = || status.conditions.iter().any(|known| known.type_ == "Degraded" && known.status == "True");
    match status.stage {
        Stage::Complete if degraded() => Some(RunOutcome::Degraded),
        Stage::Complete => Some(RunOutcome::Complete),
        Stage::Failed => Some(RunOutcome::Failed),
        Stage::Suspended => Some(RunOutcome::Suspended),
        Stage::Pending | Stage::Preflight | Stage::Optimizing | Stage::Searching | Stage::Training => None,
    }
}

#[cfg(test)]
mod tests;
