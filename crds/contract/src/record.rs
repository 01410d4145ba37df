//! The records of a job: what it was and what it measured, kept beside its checkpoints, where they outlive its pods and
//! its object.
//!
//! ```text
//! <storage of the job>/.pawl/_records/
//!   status.json              the manifest and the status, as of the newest attempt that trains, or of the end
//!   attempts/<name>.jsonl    one attempt: a line of JSON when it begins, one for each launch and each event, one when
//!                            it ends
//! ```
//!
//! The folder is hidden: scripts look for checkpoints beside it. No job has its name, which is that of a directory of
//! `pawl run` in `.pawl`. The text of an attempt only grows, and is bounded
//! ([`MAX_RECORD`]); all of them together are bounded as well ([`MAX_RECORDS`], [`surplus`]). A line that cannot be
//! read, as the last one of a writer that was killed, is skipped, and so are fields and kinds of lines of later
//! versions.
//!
//! ```
//! use pawl_contract::attempt::AttemptEnd;
//! use pawl_contract::record::{Begun, Ended, Entry, Record, Text};
//!
//! let mut text = Text::default();
//! text.add(&Entry::Attempt(Box::new(Begun::new("toy", "toy-1"))));
//! text.add(&Entry::End(Ended { time: 60, end: AttemptEnd::Complete, message: String::new() }));
//! let read = Record::read(text.as_bytes())?;
//! assert_eq!((read.begun.attempt.as_str(), read.end.is_some()), ("toy-1", true));
//! # Ok::<(), pawl_contract::record::RecordError>(())
//! ```

mod bounds;
#[cfg(test)]
mod tests;
mod text;

pub use bounds::{Evaluations, Stored, surplus};
pub use text::Text;

use crate::attempt::AttemptEnd;
use crate::happened::Happened;
use crate::measured::Validation;
use crate::plan::{AttemptPlan, LaunchKind, LaunchPlan};
use crate::provenance::{self, Provenance};
use crate::report::{LossPoint, Report, truncated};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The format of the record of an attempt that this version writes.
pub const RECORD_FORMAT: u32 = 1;
/// The folder of the records in the storage of a job.
pub const FOLDER: &str = ".pawl/_records";
/// Name of the manifest and the status in [`FOLDER`], and of the file by which an agent gets them, beside its plan.
pub const STATUS: &str = "status.json";
/// The folder of the attempts in [`FOLDER`].
pub const ATTEMPTS: &str = "attempts";
/// Extension of the files of attempts.
pub const EXTENSION: &str = "jsonl";
/// Maximum size of the record of an attempt, bytes.
pub const MAX_RECORD: usize = 4 << 20;
/// Longest description of the end of an attempt, bytes.
pub const MAX_MESSAGE: usize = 512;
/// Maximum size of all records of a job, bytes.
pub const MAX_RECORDS: u64 = 64 << 20;
/// Maximum size of the manifest and the status, bytes.
pub const MAX_STATUS: u64 = 1 << 20;
/// Maximum points of the curve of a launch.
pub const MAX_CURVE: usize = 2_000;
/// Maximum evaluations of a launch.
pub const MAX_EVALUATIONS: usize = 500;
/// Maximum events that are added to a record at once.
pub const MAX_EVENTS: usize = 500;
/// Longest plan that is kept with an attempt, bytes.
const MAX_PLAN: usize = 1 << 20;

/// A line of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Entry {
    /// The attempt began, or begins again after its agent was started again.
    Attempt(Box<Begun>),
    /// A launch has ended.
    Launch(Box<Launched>),
    /// Something happened to the job.
    Event(Happened),
    /// The attempt has ended.
    End(Ended),
}

/// The beginning of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Begun {
    /// Format of the record.
    pub format: u32,
    /// Name of the job.
    pub job: String,
    /// Unique identifier of the job; empty when it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Name of the attempt.
    pub attempt: String,
    /// Seconds since 1970.
    #[serde(default)]
    pub time: u64,
    /// What it runs; absent when it is very long, and when it is what the attempt ran before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<AttemptPlan>,
    /// What it is measured with, as its agent has collected it; absent in records of earlier versions.
    #[serde(default, deserialize_with = "provenance::lenient", skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

impl Begun {
    /// The attempt `attempt` of `job`, of which nothing else is known.
    pub fn new(job: &str, attempt: &str) -> Self {
        let (job, attempt) = (job.to_owned(), attempt.to_owned());
        Self { format: RECORD_FORMAT, job, uid: String::new(), attempt, time: 0, plan: None, provenance: None }
    }

    /// The attempt of `plan`, of the job with this unique identifier, that begins at `time`, seconds since 1970.
    pub fn planned(plan: &AttemptPlan, uid: String, time: u64) -> Self {
        // They have lines of their own.
        let plan = AttemptPlan { events: Vec::new(), ..plan.clone() };
        let fits = serde_json::to_vec(&plan).is_ok_and(|text| text.len() <= MAX_PLAN);
        let new = Self::new(&plan.job, &plan.attempt);
        Self { uid, time, plan: fits.then_some(plan), ..new }
    }

    /// Whether `other` is the same attempt of the same job, whatever it runs.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.job, &self.uid, &self.attempt) == (&other.job, &other.uid, &other.attempt)
    }
}

/// A launch that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Launched {
    /// Seconds since 1970.
    #[serde(default)]
    pub time: u64,
    /// Its report.
    pub report: Report,
    /// The training loss as it was reported while the launch ran: at most [`MAX_CURVE`] points.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<LossPoint>,
    /// The evaluations as they were reported while the launch ran: at most [`MAX_EVALUATIONS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<Validation>,
}

impl Launched {
    /// This part of a launch with what is left of an `earlier` one: a launch that was stopped resumes from a
    /// checkpoint, and what came after that is gone.
    fn after(mut self, mut earlier: Self) -> Self {
        let resumed = self.curve.first().map(|point| point.items);
        let resumed = resumed.into_iter().chain(self.evaluations.first().map(|evaluation| evaluation.items)).min();
        let resumed = resumed.unwrap_or(u64::MAX);
        earlier.curve.retain(|point| point.items < resumed);
        earlier.evaluations.retain(|evaluation| evaluation.items < resumed);
        earlier.curve.append(&mut self.curve);
        earlier.evaluations.append(&mut self.evaluations);
        Self { curve: earlier.curve, evaluations: earlier.evaluations, ..self }
    }
}

/// The end of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// Seconds since 1970.
    #[serde(default)]
    pub time: u64,
    /// Reason of the end.
    pub end: AttemptEnd,
    /// Human-readable description; empty on success.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Ended {
    /// The end of an attempt at `time`, seconds since 1970. Of `message`, [`MAX_MESSAGE`] bytes are kept.
    pub fn new(time: u64, end: AttemptEnd, message: &str) -> Self {
        Self { time, end, message: truncated(message, MAX_MESSAGE).to_owned() }
    }
}

/// What a record contains.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The attempt, as it began first, with the newest provenance.
    pub begun: Begun,
    /// What it ran when it was resumed with another plan, oldest first.
    pub later_plans: Vec<AttemptPlan>,
    /// Its launches in the order of their ends, each once. The curve and the evaluations of one that was resumed are
    /// those of all its parts.
    pub launches: Vec<Launched>,
    /// What happened to the job before the attempt began and, with `pawl run`, until the run ended.
    pub happened: Vec<Happened>,
    /// How it ended; `None` while it runs, and when its agent was killed.
    pub end: Option<Ended>,
}

/// The attempts that a job had begun by the text of its [`STATUS`]; 0 when it does not say so.
///
/// ```
/// assert_eq!(pawl_contract::record::attempts_of(br#"{"format": 1, "status": {"attempts": 7}}"#), 7);
/// ```
pub fn attempts_of(status: &[u8]) -> u64 {
    #[derive(Deserialize)]
    struct Document {
        #[serde(default)]
        status: Status,
    }
    #[derive(Default, Deserialize)]
    struct Status {
        #[serde(default)]
        attempts: u64,
    }
    serde_json::from_slice::<Document>(status).map_or(0, |document| document.status.attempts)
}

/// Error: a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// It does not begin with an attempt.
    NoAttempt,
    /// It is of a later format.
    Newer {
        /// Its format.
        found: u32,
    },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAttempt => f.write_str("is no record of an attempt: its first line says no attempt"),
            Self::Newer { found } => {
                write!(f, "format {found}: this version reads up to {RECORD_FORMAT}: update pawl to read it")
            }
        }
    }
}

impl std::error::Error for RecordError {}

impl Record {
    /// Reads the text of a record. Of a launch that ran again, the last report counts. Lines that are not known are
    /// skipped.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn read(text: &[u8]) -> Result<Self, RecordError> {
        let lines = text.split(|byte| *byte == b'\n');
        let mut entries = lines.filter_map(|line| serde_json::from_slice::<Entry>(line).ok());
        let Some(Entry::Attempt(begun)) = entries.next() else { return Err(RecordError::NoAttempt) };
        if begun.format > RECORD_FORMAT {
            return Err(RecordError::Newer { found: begun.format });
        }
        let (later_plans, launches, happened) = (Vec::new(), Vec::new(), Vec::new());
        let mut record = Self { begun: *begun, later_plans, launches, happened, end: None };
        for entry in entries {
            match entry {
                // Its agent was started again: it has not ended.
                Entry::Attempt(again) => {
                    record.end = None;
                    record.later_plans.extend(again.plan);
                    record.begun.provenance = again.provenance.or(record.begun.provenance);
                }
                Entry::Launch(launch) => record.add(*launch),
                Entry::Event(event) => record.happened.push(event),
                Entry::End(end) => record.end = Some(end),
            }
        }
        Ok(record)
    }

    fn add(&mut self, launch: Launched) {
        let earlier = self.launches.iter().position(|known| known.report.launch == launch.report.launch);
        let earlier = earlier.map(|index| self.launches.remove(index));
        self.launches.push(match earlier {
            Some(earlier) => launch.after(earlier),
            None => launch,
        });
    }

    /// The newest plan that is known.
    pub fn plan(&self) -> Option<&AttemptPlan> {
        self.later_plans.last().or(self.begun.plan.as_ref())
    }

    /// What it was measured with, as its agent and its launches report it; `None` in records of earlier versions.
    pub fn provenance(&self) -> Option<Provenance> {
        let reported = self.launches.iter().filter_map(|launch| launch.report.provenance.as_ref());
        Provenance::whole(self.begun.provenance.as_ref(), reported)
    }

    /// All that it was to run, of the newest plan first.
    pub fn planned(&self) -> impl Iterator<Item = &LaunchPlan> {
        self.later_plans.iter().rev().chain(&self.begun.plan).flat_map(|plan| &plan.launches)
    }

    /// Whether the attempt trains the model.
    pub fn trains(&self) -> bool {
        self.planned().any(|launch| launch.kind == LaunchKind::Train)
    }
}
