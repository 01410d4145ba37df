//! Several jobs: their list.

use crate::columns::lay_out;
use crate::numbers::factor;
use crate::payback::Saved;
use crate::plain::plain;
use crate::provenance::MeasuredWith;
use crate::verdict::is_ended;
use pawl_api::status::PhaseState;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::provenance::{Provenance, redacted};
use std::collections::BTreeMap;

/// A job, its status, and where that is kept.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The job.
    pub job: &'a TrainingJob,
    /// Its status.
    pub status: &'a TrainingJobStatus,
    /// Such as its state directory.
    pub place: &'a str,
    /// What its attempts were measured with, oldest first, where jobs are compared and that is known.
    pub measured_with: &'a [MeasuredWith],
    /// Whether nothing works on it any more, although it has not ended.
    pub stopped: bool,
}

impl Entry<'_> {
    /// What its newest attempt was measured with.
    pub(crate) fn provenance(&self) -> Option<&Provenance> {
        self.measured_with.last().map(|newest| &newest.provenance)
    }

    /// The name or the command of its workload.
    pub(crate) fn workload(&self) -> String {
        let workload = &self.job.spec.workload;
        let command = || redacted(&[&workload.command[..], &workload.args[..]].concat());
        plain(&workload.name.clone().unwrap_or_else(command))
    }

    /// Whether nothing more becomes known of it.
    pub(crate) const fn is_ended(&self) -> bool {
        is_ended(self.status.stage)
    }

    /// Name of the job.
    pub(crate) fn name(&self) -> String {
        self.job.metadata.name.clone().unwrap_or_default()
    }
}

/// The names of jobs, each with its place where several have it: `toy (runs/toy)`.
pub(crate) fn names(entries: &[Entry<'_>]) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for entry in entries {
        *counts.entry(entry.name()).or_default() += 1;
    }
    let named = entries.iter().map(|entry| match entry.name() {
        name if counts.get(&name) > Some(&1) => format!("{name} ({})", entry.place),
        name => name,
    });
    named.map(|name| plain(&name)).collect()
}

/// A line for each job. Lines are truncated to `width` columns if given.
pub fn list(entries: &[Entry<'_>], width: Option<usize>) -> String {
    let head = ["JOB", "STAGE", "ACCEPTED", "SPEEDUP", "NET SAVED", "PROGRESS", "STATE"].map(str::to_owned);
    let row = |(entry, name): (&Entry<'_>, String)| {
        let status = &plain(entry.status);
        let accepted = status.phases.iter().filter(|phase| phase.state == PhaseState::Accepted).count();
        [
            name,
            stage(entry),
            format!("{accepted} of {}", status.phases.len()),
            status.speedup.as_ref().map(|speedup| factor(speedup.value())).unwrap_or_default(),
            net_saved(entry).unwrap_or_default(),
            status.progress.clone(),
            entry.place.to_owned(),
        ]
    };
    let rows: Vec<_> = std::iter::once(head).chain(entries.iter().zip(names(entries)).map(row)).collect();
    lay_out(&rows, width)
}

/// The stage, and whether the job stopped in it.
fn stage(entry: &Entry<'_>) -> String {
    let stage = entry.status.stage;
    if entry.stopped { format!("{stage}, stopped") } else { stage.to_string() }
}

/// The savings compared with training with the baseline, after what judging cost: as on the page of the list, in fewer
/// words.
fn net_saved(entry: &Entry<'_>) -> Option<String> {
    Some(match Saved::new(entry.job, entry.status)? {
        saved @ Saved::Percent(_) => saved.word(),
        Saved::NotYet => "not yet".to_owned(),
        Saved::Never => "nothing".to_owned(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::compared::compare;
    use serde_json::{Value, json};

    pub(crate) fn job(name: &str, status: Value) -> (TrainingJob, TrainingJobStatus) {
        let job = json!({"metadata": {"name": name}, "spec": {"workload": {"name": "ups"}}});
        (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap())
    }

    pub(crate) fn entry((job, status): &(TrainingJob, TrainingJobStatus)) -> Entry<'_> {
        Entry { job, status, place: ".pawl/toy", measured_with: &[], stopped: false }
    }

    #[test]
    fn a_job_is_a_line() {
        let phases = json!([{"name": "a", "state": "Accepted"}, {"name": "b", "state": "RolledBack"}]);
        let toy = job(
            "toy",
            json!({"stage": "Complete", "phases": phases, "speedup": "1.5", "progress": "100%",
            "cost": {"savedPercent": "-12.3"}}),
        );
        let text = list(&[entry(&toy)], None);
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["toy", "Complete", "1", "of", "2", "1.50×", "nothing", "100%", ".pawl/toy"]);
        let training = job("toy", json!({"stage": "Training", "cost": {"savedPercent": "-12.3"}}));
        assert!(list(&[entry(&training)], None).contains(" not yet "), "it may still be paid back");
        let stopped = Entry { stopped: true, ..entry(&toy) };
        assert!(list(&[stopped], None).contains("Complete, stopped"));
        assert!(list(&[entry(&toy)], Some(20)).lines().all(|line| console::measure_text_width(line) <= 20));
    }

    #[test]
    fn jobs_of_the_same_name_are_told_apart_by_their_place() {
        let (toy, other) = (job("toy", json!({})), job("other", json!({})));
        let again = Entry { place: "runs/toy", ..entry(&toy) };
        let text = list(&[entry(&toy), again, entry(&other)], None);
        let begins = |line: usize, with: &str| text.lines().nth(line).unwrap().starts_with(with);
        assert!(begins(1, "toy (.pawl/toy) ") && begins(2, "toy (runs/toy) ") && begins(3, "other  "), "{text}");
        let compared = compare(entry(&toy), again, None);
        assert!(compared.lines().next().unwrap().contains("toy (.pawl/toy)  toy (runs/toy)"), "{compared}");
    }
}
