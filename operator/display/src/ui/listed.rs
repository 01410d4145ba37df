//! What the list shows of a job.

use super::awaited::Awaited;
use super::facts::Facts;
use crate::jobs::Entry;
use crate::payback::Saved;
use crate::verdict::{Tone, tone};
use jiff::Timestamp;
use pawl_api::status::Stage;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A job in the list. Its clones share what grows with the job, so that thousands of them can be kept in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// What addresses it: its name or, where several jobs have that name, `NAME@PLACE`.
    pub key: String,
    /// Its name.
    pub name: String,
    /// Its state directory, its storage, or its namespace.
    pub place: String,
    /// Its stage.
    pub stage: Stage,
    /// Whether nothing works on it any more, although it has not ended.
    pub stopped: bool,
    /// Its progress, such as `phase 3/8`.
    pub progress: String,
    /// Number of its phases.
    pub phases: usize,
    /// Of these: accepted.
    pub accepted: usize,
    /// Of these: rolled back, or being rolled back.
    pub rolled_back: usize,
    /// Its speedup over the baseline, a ratio.
    pub speedup: Option<f64>,
    /// Whether device time was saved compared with training with the baseline, after what judging cost.
    pub saved: Option<Saved>,
    /// That in percent, negative where judging cost more: by it, jobs are sorted.
    pub saved_percent: Option<f64>,
    /// When it started.
    pub started: Option<Timestamp>,
    /// When its status was last written.
    pub changed: Option<Timestamp>,
    /// What it shows after a time although nothing is written.
    pub awaited: Awaited,
    /// What it adds to the sums over jobs.
    pub facts: Arc<Facts>,
}

impl Listed {
    /// The job `entry`, whose status was written at `changed`, and is written for as long as the job is worked on.
    pub fn new(entry: Entry<'_>, changed: Option<Timestamp>) -> Self {
        let status = entry.status;
        let count = |wanted: Tone| status.phases.iter().filter(|phase| tone(phase.state) == wanted).count();
        let saved = status.cost.as_ref().and_then(|cost| cost.saved_percent.as_ref());
        Self {
            key: entry.name(),
            name: entry.name(),
            place: entry.place.to_owned(),
            stage: status.stage,
            stopped: entry.stopped,
            progress: status.progress.clone(),
            phases: status.phases.len(),
            accepted: count(Tone::Good),
            rolled_back: count(Tone::Bad),
            speedup: status.speedup.as_ref().map(|speedup| speedup.value()),
            saved: Saved::new(entry.job, status),
            saved_percent: saved.map(|percent| percent.value()),
            started: status.start_time.as_deref().and_then(|time| time.parse().ok()),
            changed,
            awaited: Awaited::new(status, entry.stopped, changed),
            facts: Arc::new(Facts::new(entry)),
        }
    }

    /// As [`Self::new`], for a job in a storage, which has the status of its beginning and of its end.
    pub fn recorded(entry: Entry<'_>, changed: Option<Timestamp>) -> Self {
        Self { awaited: Awaited::new(entry.status, entry.stopped, None), ..Self::new(entry, changed) }
    }
}

/// Gives jobs of the same name different keys.
pub fn distinguish<'a>(jobs: impl Iterator<Item = &'a mut Listed>) {
    let jobs: Vec<&mut Listed> = jobs.collect();
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for job in &jobs {
        *names.entry(job.name.clone()).or_default() += 1;
    }
    for job in jobs {
        let is_unique = names.get(&job.name) == Some(&1);
        job.key = if is_unique { job.name.clone() } else { format!("{}@{}", job.name, job.place) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_api::{TrainingJob, TrainingJobStatus};
    use serde_json::json;

    #[test]
    fn jobs_of_the_same_name_are_told_apart_by_their_place() {
        let job = |name: &str| -> TrainingJob {
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"workload": {"name": "ups"}}})).unwrap()
        };
        let phase = |name: &str, state: &str| json!({"name": name, "state": state});
        let status: TrainingJobStatus = serde_json::from_value(json!({
            "stage": "Complete", "speedup": "1.5", "startTime": "2026-01-02T03:04:05Z",
            "phases": [phase("a", "Accepted"), phase("b", "RolledBack"), phase("c", "Error")],
        }))
        .unwrap();
        let (toy, other) = (job("toy"), job("other"));
        let entries = [(&toy, "a/toy"), (&toy, "b/toy"), (&other, "a/other")];
        let entry = |job, place| Entry { job, status: &status, place, measured_with: &[], stopped: false };
        let mut jobs = entries.map(|(job, place)| Listed::new(entry(job, place), None));
        distinguish(jobs.iter_mut());
        assert_eq!(jobs.each_ref().map(|job| job.key.as_str()), ["toy@a/toy", "toy@b/toy", "other"]);
        let first = &jobs[0];
        assert_eq!((first.phases, first.accepted, first.rolled_back, first.speedup), (3, 1, 1, Some(1.5)));
        assert_eq!(first.started.map(|time| time.to_string()).as_deref(), Some("2026-01-02T03:04:05Z"));
    }
}
