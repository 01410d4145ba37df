//! Keeps the records of a job ([`pawl_contract::record`]): agent 0 writes what the attempt runs and measures into the
//! job's storage, as it becomes known.
//!
//! Nothing depends on them: a storage that cannot be written, or that does not answer, costs the attempt one warning,
//! and a wait at its end, [`PATIENCE`] or [`STOPPED_PATIENCE`]. A thread of their own writes them, when a launch begins
//! and when it ends.
//!
//! A write that is no longer waited for is not withdrawn: as long as the process lives, a storage that answers again
//! gets what was to be written then, also in place of something newer that another process has written since.

use crate::files::read_bounded;
use crate::node::{Event, Node};
use crate::provenance::Inquiry;
use parking_lot::Mutex;
use pawl_contract::attempt::AttemptEnd;
use pawl_contract::env;
use pawl_contract::happened::Happened;
use pawl_contract::losses::Curve;
use pawl_contract::plan::AttemptPlan;
use pawl_contract::progress::Progress;
use pawl_contract::record::{Begun, Ended, Entry, Evaluations, Launched, MAX_CURVE, MAX_STATUS, Text};
use pawl_contract::report::Report;
use pawl_launch::checkpoint::{Records, StorageError};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

/// How long the end of an attempt waits for the storage.
const PATIENCE: Duration = Duration::from_secs(8);
/// The same of an attempt that was stopped: its results are reported only then, and its pod is killed soon.
const STOPPED_PATIENCE: Duration = Duration::from_secs(1);

/// Why records are not kept.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The storage refuses them.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The storage does not answer.
    #[error(
        "checkpoint storage {storage}: no answer within {} s: check the network, the mount and its server",
        .waited.as_secs()
    )]
    Late {
        /// The storage.
        storage: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// No thread can be started.
    #[error(transparent)]
    Thread(#[from] io::Error),
}

/// What a shell that has a job's storage writes to its records.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The manifest and the status, as JSON.
    pub status: Vec<u8>,
    /// The newest attempt, if none runs any more, and what happened to the job, oldest first.
    pub events: Option<(String, Vec<Happened>)>,
}

/// The recorders of this process that are at work: storage and attempt.
static AT_WORK: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// A recorder is at work as long as it has this: longer than its attempt, where the storage does not answer in time.
struct AtWork(String, String);

impl AtWork {
    fn begin(storage: &str, attempt: &str) -> Self {
        AT_WORK.lock().push((storage.to_owned(), attempt.to_owned()));
        Self(storage.to_owned(), attempt.to_owned())
    }

    fn is_at_work(storage: &str, attempt: &str) -> bool {
        AT_WORK.lock().iter().any(|(of, name)| (of.as_str(), name.as_str()) == (storage, attempt))
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let mut all = AT_WORK.lock();
        let own = all.iter().position(|(storage, attempt)| (storage, attempt) == (&self.0, &self.1));
        own.map(|index| all.swap_remove(index));
    }
}

/// Writes to the records in the storage of a job, URL or path. The events are left out while the recorder of their
/// attempt is late: each would replace what the other writes.
///
/// # Errors
/// [`RecordsError`]. A storage that does not answer may still be written later, by then with an older status.
pub async fn keep(storage: &str, Kept { status, events }: Kept) -> Result<(), RecordsError> {
    let (sender, written) = oneshot::channel();
    let url = storage.to_owned();
    let events = events.filter(|(attempt, _)| !AtWork::is_at_work(storage, attempt));
    std::thread::Builder::new().name("records".to_owned()).spawn(move || {
        // Nobody waits any longer.
        let _ = sender.send(Records::open(&url).and_then(|records| {
            records.write_status(status)?;
            events.map_or(Ok(()), |(attempt, events)| records.add_events(&attempt, &events))
        }));
    })?;
    match tokio::time::timeout(PATIENCE, written).await {
        Ok(Ok(written)) => Ok(written?),
        Ok(Err(_)) | Err(_) => Err(RecordsError::Late { storage: storage.to_owned(), waited: PATIENCE }),
    }
}

/// Hears the events of an attempt, and keeps its record.
pub(crate) struct Recorder {
    /// `None` is the beginning of the first launch: the record begins.
    lines: Sender<Option<Entry>>,
    seen: Mutex<Seen>,
    /// Why the record is not kept, once.
    problem: Arc<Mutex<Option<RecordsError>>>,
    /// Ends with the thread.
    done: oneshot::Receiver<()>,
    /// Ends the inquiry of what is measured with.
    inquiry_ended: Arc<AtomicBool>,
    storage: String,
}

/// What was seen of the running launch; until there is one, of the last one of the plan.
struct Seen {
    launch: String,
    items: u64,
    curve: Curve,
    evaluations: Evaluations,
}

impl Seen {
    fn of(launch: &str) -> Self {
        let (curve, evaluations) = (Curve::of(MAX_CURVE), Evaluations::default());
        Self { launch: launch.to_owned(), items: 0, curve, evaluations }
    }

    fn add(&mut self, progress: &Progress) {
        if let Some(loss) = progress.loss.filter(|_| progress.items > self.items) {
            self.items = progress.items;
            self.curve.add(progress.items, loss);
        }
        if let Some(validation) = &progress.validation {
            self.evaluations.add(validation);
        }
    }

    /// The line of the launch, with what was seen of it.
    fn line(&mut self, report: &Report) -> Entry {
        let seen = std::mem::replace(self, Self::of(&report.launch));
        let Self { curve, mut evaluations, .. } = seen;
        let (curve, evaluations) = (curve.points(), evaluations.take());
        Entry::Launch(Box::new(Launched { time: now(), report: report.clone(), curve, evaluations }))
    }
}

impl Recorder {
    /// Begins the record of an attempt on the node of agent 0.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(plan: &AttemptPlan, node: &Node) -> io::Result<Self> {
        let own = node.env.iter().rev().find(|(name, _)| name == env::JOB_UID).map(|(_, value)| value.clone());
        let uid = own.or_else(|| std::env::var(env::JOB_UID).ok()).unwrap_or_default();
        let problem = Arc::new(Mutex::new(None));
        let inquiry = Inquiry::new(plan, node);
        let inquiry_ended = inquiry.ended();
        let writer = Writer {
            storage: node.checkpoints.clone(),
            begun: Begun::planned(plan, uid, now()),
            events: plan.events.clone(),
            inquiry: plan.measures().then_some(inquiry),
            status: node.status.clone(),
            records: None,
            text: None,
            waiting: Vec::new(),
        };
        let (lines, read) = channel();
        let (end, done) = oneshot::channel();
        let found = Arc::clone(&problem);
        let at_work = AtWork::begin(&node.checkpoints, &plan.attempt);
        std::thread::Builder::new().name("records".to_owned()).spawn(move || {
            writer.run(&read, &found);
            drop(at_work);
            let _ = end.send(());
        })?;
        let last = plan.launches.last().map_or("", |launch| launch.launch.as_str());
        let seen = Mutex::new(Seen::of(last));
        Ok(Self { lines, seen, problem, done, inquiry_ended, storage: node.checkpoints.clone() })
    }

    /// Records an event. Returns a warning if the record is found not to be kept.
    pub(crate) fn hear(&self, event: &Event) -> Option<Event> {
        match event {
            Event::LaunchStarted { launch, .. } => {
                *self.seen.lock() = Seen::of(launch);
                self.write(None);
            }
            Event::Progress(progress) => self.seen.lock().add(progress),
            Event::LaunchEnded(report) => {
                let line = self.seen.lock().line(report);
                self.write(Some(line));
            }
            Event::Warning { .. } => {}
        }
        let problem = self.problem.lock().take()?;
        Some(warning(&self.seen.lock().launch, &problem))
    }

    /// Ends the record, also of an attempt whose launches have all run in an earlier life. Returns a warning if it is
    /// found not to be kept.
    pub(crate) async fn finish(self, end: AttemptEnd, message: &str) -> Option<Event> {
        let launch = self.seen.lock().launch.clone();
        if launch.is_empty() {
            return None;
        }
        self.write(Some(Entry::End(Ended::new(now(), end, message))));
        let Self { lines, problem, done, inquiry_ended, storage, .. } = self;
        drop(lines);
        let stopped = end == AttemptEnd::Stopped;
        inquiry_ended.store(stopped, Ordering::Relaxed);
        let waited = if stopped { STOPPED_PATIENCE } else { PATIENCE };
        let late = tokio::time::timeout(waited, done).await.is_err();
        let found = problem.lock().take();
        let found = found.or_else(|| late.then_some(RecordsError::Late { storage, waited }));
        found.map(|problem| warning(&launch, &problem))
    }

    fn write(&self, line: Option<Entry>) {
        // The thread ends only when this is dropped, unless it has panicked.
        let _ = self.lines.send(line);
    }
}

fn warning(launch: &str, problem: &RecordsError) -> Event {
    let message = format!("the record of this attempt is not kept in the job's storage: {problem}");
    Event::Warning { launch: launch.to_owned(), message }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The thread that writes.
struct Writer {
    storage: String,
    begun: Begun,
    /// What happened to the job before.
    events: Vec<Happened>,
    /// `None` for an attempt that only checks settings: it measures nothing.
    inquiry: Option<Inquiry>,
    /// File with the manifest and the status.
    status: Option<PathBuf>,
    records: Option<Records>,
    /// `None` until what is there already was read.
    text: Option<Text>,
    /// The lines that are not in the text yet.
    waiting: Vec<Entry>,
}

impl Writer {
    /// Finds out what is measured with, then writes the lines as they come. After a failure they are written with the
    /// next one.
    fn run(mut self, lines: &Receiver<Option<Entry>>, problem: &Mutex<Option<RecordsError>>) {
        self.begun.provenance = self.inquiry.as_ref().and_then(Inquiry::answer);
        let mut reported = false;
        while let Ok(line) = lines.recv() {
            let begins = line.is_none();
            self.waiting.extend(line);
            // A launch that begins has no line of its own.
            if begins && self.text.is_some() {
                continue;
            }
            if let Err(error) = self.write()
                && !std::mem::replace(&mut reported, true)
            {
                *problem.lock() = Some(error.into());
            }
        }
    }

    fn write(&mut self) -> Result<(), StorageError> {
        let attempt = &self.begun.attempt;
        let records: &Records = match &self.records {
            Some(records) => records,
            None => self.records.insert(Records::open(&self.storage)?),
        };
        let text = match &mut self.text {
            Some(text) => text,
            None => {
                records.make_room(attempt)?;
                let status = self.status.as_ref().and_then(|path| read_bounded(path, MAX_STATUS).ok());
                status.map_or(Ok(()), |status| records.write_newer_status(status))?;
                let mut text = Text::resumed(records.read(attempt)?, self.begun.clone());
                text.add_events(&self.events);
                self.text.insert(text)
            }
        };
        self.waiting.drain(..).for_each(|entry| text.add(&entry));
        records.write(attempt, text.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_kept_once_the_recorder_of_their_attempt_is_done() {
        let directory = tempfile::tempdir().unwrap();
        let storage = directory.path().to_str().unwrap();
        let records = Records::open(storage).unwrap();
        let mut text = Text::default();
        text.add(&Entry::Attempt(Box::new(Begun::new("toy", "toy-1"))));
        records.write("toy-1", text.as_bytes().to_vec()).unwrap();
        let (reason, message) = ("Complete".to_owned(), String::new());
        let event = Happened { time: 1, warning: false, reason, message, phase: None };
        let kept = Kept { status: b"{}".to_vec(), events: Some(("toy-1".to_owned(), vec![event])) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let keep_all = || runtime.block_on(keep(storage, kept.clone())).unwrap();
        let late = AtWork::begin(storage, "toy-1");
        keep_all();
        assert_eq!(records.read("toy-1").unwrap().unwrap(), text.as_bytes());
        assert!(directory.path().join(".pawl/_records/status.json").exists());
        drop(late);
        keep_all();
        assert!(records.read("toy-1").unwrap().unwrap().len() > text.as_bytes().len());
    }
}
