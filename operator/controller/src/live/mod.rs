//! What running gangs say of themselves: agent 0 of each is asked, a few at a time, within deadlines.
//!
//! The controller says which gangs run ([`Live::watch`]) and reads their newest answer ([`Live::latest`]); this module
//! asks, and names a job to be reconciled only when its answer matters: at once when a launch ended, at most every
//! [`Pace::progress_every`] when a training got on.
//!
//! A gang is asked once per [`Pace::ask_every`], at an offset that is a hash of the job's name: a thousand gangs that
//! started together are asked one after another, not together, and the same each time. A connection serves one
//! question: a thousand idle ones would cost more than a thousand new ones in five seconds. What cannot be read is
//! counted and forgotten; the pods' own facts say when a gang is gone.

mod ask;
mod pace;

#[cfg(test)]
mod tests;

use crate::metrics::{LiveOutcome, Metrics};
use crate::names;
use kube::runtime::reflector::ObjectRef;
use pace::slot;
use pawl_api::TrainingJob;
use pawl_contract::live::Attempt;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Progress;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{self, Instant};

/// Gangs that are due within this time are asked together: a thousand of them wake the process 50 times a second, not 200.
const GRAIN: Duration = Duration::from_millis(20);

/// How often and how long agents are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time between two questions to one gang.
    pub ask_every: Duration,
    /// A job is named because of mere progress no more often than this.
    pub progress_every: Duration,
    /// Longest time from the connection to the end of the answer.
    pub deadline: Duration,
    /// Questions under way at a time.
    pub concurrency: usize,
    /// Port of agent 0.
    pub port: u16,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            ask_every: Duration::from_secs(5),
            progress_every: Duration::from_secs(15),
            deadline: Duration::from_secs(2),
            concurrency: 16,
            port: names::HTTP_PORT,
        }
    }
}

/// Namespace and name of a job.
type Key = (String, String);

/// A gang that runs.
struct Gang {
    attempt: String,
    address: IpAddr,
    due: Instant,
    answer: Option<Arc<Attempt>>,
    /// When the job was named last, and with what.
    told: Option<(Instant, Told)>,
}

/// What the controller was notified of.
#[derive(Clone, PartialEq)]
struct Told {
    results: usize,
    progress: Option<Progress>,
}

impl Told {
    /// Only a training's progress is of interest before its end.
    fn of(attempt: &Attempt) -> Self {
        let progress = attempt.progress.as_ref().filter(|progress| progress.kind == LaunchKind::Train);
        Self { results: attempt.results.len(), progress: progress.cloned() }
    }
}

/// The gangs that are asked, and their newest answers. Clones share them.
#[derive(Clone)]
pub struct Live {
    gangs: Arc<Mutex<BTreeMap<Key, Gang>>>,
    pace: Pace,
    metrics: Metrics,
    jobs: mpsc::UnboundedSender<ObjectRef<TrainingJob>>,
    changed: Arc<tokio::sync::Notify>,
}

impl Live {
    /// Asks nobody yet. The receiver names the jobs to reconcile.
    pub fn new(pace: Pace, metrics: Metrics) -> (Self, mpsc::UnboundedReceiver<ObjectRef<TrainingJob>>) {
        let (jobs, receiver) = mpsc::unbounded_channel();
        let changed = Arc::new(tokio::sync::Notify::new());
        (Self { gangs: Arc::default(), pace, metrics, jobs, changed }, receiver)
    }

    /// Asks agent 0 of this attempt from now on. Saying it again changes nothing; another attempt or address replaces
    /// the one before.
    pub fn watch(&self, namespace: &str, job: &str, attempt: &str, address: IpAddr) {
        let key = (namespace.to_owned(), job.to_owned());
        let mut gangs = self.gangs();
        if gangs.get(&key).is_some_and(|gang| gang.attempt == attempt && gang.address == address) {
            return;
        }
        let due = Instant::now() + slot(&key, self.pace.ask_every);
        gangs.insert(key, Gang { attempt: attempt.to_owned(), address, due, answer: None, told: None });
        drop(gangs);
        self.changed.notify_one();
    }

    /// Asks this job's gang no more.
    pub fn forget(&self, namespace: &str, job: &str) {
        self.gangs().remove(&(namespace.to_owned(), job.to_owned()));
    }

    /// Asks nobody any more: this replica leads no more.
    pub fn forget_all(&self) {
        self.gangs().clear();
    }

    /// The newest answer of this attempt.
    pub fn latest(&self, namespace: &str, job: &str, attempt: &str) -> Option<Arc<Attempt>> {
        let gangs = self.gangs();
        let gang = gangs.get(&(namespace.to_owned(), job.to_owned()))?;
        gang.answer.clone().filter(|_| gang.attempt == attempt)
    }

    /// Asks, for as long as it is polled.
    pub async fn run(&self) {
        let free = Arc::new(Semaphore::new(self.pace.concurrency));
        let mut asking = JoinSet::new();
        loop {
            while asking.try_join_next().is_some() {}
            let now = Instant::now();
            for question in self.due(now) {
                // The semaphore is never closed.
                let Ok(permit) = free.clone().acquire_owned().await else { return };
                let live = self.clone();
                asking.spawn(async move {
                    live.ask(question).await;
                    drop(permit);
                });
            }
            let next = self.gangs().values().map(|gang| gang.due).min();
            let pause = async {
                match next {
                    Some(next) => time::sleep_until(next.max(now + GRAIN)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = pause => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// The gangs that are due; each is due again one interval after it was due, never twice for the same slot.
    fn due(&self, now: Instant) -> Vec<Question> {
        let mut questions = Vec::new();
        for (key, gang) in self.gangs().iter_mut().filter(|(_, gang)| gang.due <= now) {
            while gang.due <= now {
                gang.due += self.pace.ask_every;
            }
            questions.push(Question { key: key.clone(), attempt: gang.attempt.clone(), address: gang.address });
        }
        questions
    }

    async fn ask(&self, question: Question) {
        let address = SocketAddr::new(question.address, self.pace.port);
        let answer = match time::timeout(self.pace.deadline, ask::attempt(address)).await {
            Ok(Ok(answer)) if answer.attempt == question.attempt => Ok(answer),
            Ok(Ok(_)) => Err(LiveOutcome::Invalid),
            Ok(Err(outcome)) => Err(outcome),
            Err(_) => Err(LiveOutcome::Timeout),
        };
        let (namespace, job) = &question.key;
        match answer {
            Ok(answer) => {
                self.metrics.live(LiveOutcome::Ok);
                self.answered(&question, answer, Instant::now());
            }
            Err(outcome) => {
                self.metrics.live(outcome);
                tracing::debug!(namespace, job, attempt = question.attempt, %address, ?outcome, "agent 0 gave no answer");
            }
        }
    }

    /// Keeps an answer, and names the job when it matters.
    fn answered(&self, question: &Question, answer: Attempt, now: Instant) {
        let mut gangs = self.gangs();
        let Some(gang) = gangs.get_mut(&question.key).filter(|gang| gang.attempt == question.attempt) else { return };
        let new = Told::of(&answer);
        gang.answer = Some(Arc::new(answer));
        let matters = match &gang.told {
            None => new.results > 0 || new.progress.is_some(),
            Some((_, told)) if told.results != new.results => true,
            Some((when, told)) => *told != new && now.duration_since(*when) >= self.pace.progress_every,
        };
        if matters {
            gang.told = Some((now, new));
            let (namespace, job) = &question.key;
            // Nobody listens when the controller has stopped.
            let _ = self.jobs.send(ObjectRef::new(job).within(namespace));
        }
    }

    fn gangs(&self) -> MutexGuard<'_, BTreeMap<Key, Gang>> {
        self.gangs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whom to ask.
struct Question {
    key: Key,
    attempt: String,
    address: IpAddr,
}
