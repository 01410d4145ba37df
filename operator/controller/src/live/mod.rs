//! Polls the agents of running gangs: agent 0 of each, a few at a time, with deadlines.
//!
//! The controller registers running gangs ([`Live::watch`]) and reads their newest answer ([`Live::latest`]); this
//! module polls, and requests a reconcile only when an answer matters: at once when a launch ended, at most every
//! [`Pace::progress_every`] when a training progressed.
//!
//! A gang is polled once per [`Pace::ask_every`], at an offset that is a hash of the job's name: a thousand gangs that
//! started together are polled one after another, always at the same offset. Each poll opens a connection: a thousand
//! idle ones would cost more than a thousand new ones in five seconds. Invalid answers are counted and dropped; the
//! pods' facts show when a gang is gone.

mod ask;
mod pace;

#[cfg(test)]
mod tests;

use crate::jobs::{Gang, Jobs};
use crate::key::Key;
use crate::metrics::{LiveOutcome, Metrics};
use pace::slot;
use pawl_contract::live::Attempt;
use pawl_contract::pod;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{self, Instant};

/// Gangs that are due within this time are polled together: a thousand of them wake the process 50 times a second, not
/// 200.
const GRAIN: Duration = Duration::from_millis(20);

/// Intervals and limits of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Poll interval of a gang.
    pub ask_every: Duration,
    /// Minimum interval between reconciles requested because of progress alone.
    pub progress_every: Duration,
    /// Timeout from connecting to the end of the answer.
    pub deadline: Duration,
    /// Maximum number of concurrent polls.
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
            port: pod::AGENT_HTTP_PORT,
        }
    }
}

/// Polls agent 0 of every running gang. Clones share the answers.
#[derive(Clone)]
pub struct Live {
    jobs: Jobs,
    pace: Pace,
    metrics: Metrics,
    news: mpsc::UnboundedSender<Key>,
    changed: Arc<tokio::sync::Notify>,
}

impl Live {
    /// Polls no gang yet. The receiver yields the jobs to reconcile.
    pub fn new(jobs: Jobs, pace: Pace, metrics: Metrics) -> (Self, mpsc::UnboundedReceiver<Key>) {
        let (news, receiver) = mpsc::unbounded_channel();
        (Self { jobs, pace, metrics, news, changed: Arc::default() }, receiver)
    }

    /// Polls agent 0 of this attempt from now on. A repeated call changes nothing; another address replaces the
    /// previous one.
    pub fn watch(&self, key: &Key, attempt: &str, address: IpAddr) {
        let new = self.jobs.entry(key, |state| {
            if state.gangs.iter().any(|gang| gang.attempt == attempt && gang.address == address) {
                return false;
            }
            state.gangs.retain(|gang| gang.attempt != attempt);
            let due = Instant::now() + slot(key, self.pace.ask_every);
            state.gangs.push(Gang { attempt: attempt.to_owned(), address, due, answer: None, reported: None });
            true
        });
        if new {
            self.changed.notify_one();
        }
    }

    /// Polls only those gangs of this job whose attempt is to be kept.
    pub fn retain(&self, key: &Key, keep: impl Fn(&str) -> bool) {
        self.jobs.change(key, |state| state.gangs.retain(|gang| keep(&gang.attempt)));
    }

    /// The newest answer of this attempt.
    pub fn latest(&self, key: &Key, attempt: &str) -> Option<Arc<Attempt>> {
        let jobs = self.jobs.lock();
        jobs.get(key)?.gangs.iter().find(|gang| gang.attempt == attempt)?.answer.clone()
    }

    /// Polls for as long as this future is polled.
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
            let next = self.jobs.lock().values().flat_map(|state| &state.gangs).map(|gang| gang.due).min();
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

    /// The gangs that are due; each is due again one interval later, never twice for the same slot.
    fn due(&self, now: Instant) -> Vec<Question> {
        let mut questions = Vec::new();
        let mut jobs = self.jobs.lock();
        let gangs = jobs.iter_mut().flat_map(|(key, state)| state.gangs.iter_mut().map(move |gang| (key, gang)));
        for (key, gang) in gangs.filter(|(_, gang)| gang.due <= now) {
            while gang.due <= now {
                gang.due += self.pace.ask_every;
            }
            questions.push(Question { key: key.clone(), attempt: gang.attempt.clone(), address: gang.address });
        }
        questions
    }

    /// Takes in an answer of agent 0 of a running gang, as if it had been asked now.
    pub fn hear(&self, key: &Key, answer: Attempt) {
        self.answered(key.clone(), answer, Instant::now());
    }

    async fn ask(&self, question: Question) {
        let address = SocketAddr::new(question.address, self.pace.port);
        let answer = match time::timeout(self.pace.deadline, ask::attempt(address)).await {
            Ok(Ok(answer)) if answer.attempt == question.attempt => Ok(answer),
            Ok(Ok(_)) => Err(LiveOutcome::Invalid),
            Ok(Err(outcome)) => Err(outcome),
            Err(_) => Err(LiveOutcome::Timeout),
        };
        match answer {
            Ok(answer) => {
                self.metrics.live(LiveOutcome::Ok);
                self.answered(question.key, answer, Instant::now());
            }
            Err(outcome) => {
                self.metrics.live(outcome);
                let Key { namespace, name: job } = &question.key;
                tracing::debug!(namespace, job, attempt = question.attempt, %address, ?outcome, "agent 0 gave no answer");
            }
        }
    }

    /// Keeps an answer, and has the job reconciled when it matters.
    fn answered(&self, key: Key, answer: Attempt, now: Instant) {
        let matters = self.jobs.change(&key, |state| {
            let Some(gang) = state.gangs.iter_mut().find(|gang| gang.attempt == answer.attempt) else { return false };
            gang.answered(answer, now, self.pace.progress_every)
        });
        if matters == Some(true) {
            // The receiver is gone once the controller has stopped.
            let _ = self.news.send(key);
        }
    }
}

/// A gang to poll.
struct Question {
    key: Key,
    attempt: String,
    address: IpAddr,
}
