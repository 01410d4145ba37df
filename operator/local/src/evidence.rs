//! Reads the evidence in a state directory, for the report and the summary.

use crate::state::attempts::AttemptRecord;
use crate::state::document::Document;
use crate::state::{StateDir, StateError, attempts, events, records, write_atomic};
use crate::tuned;
use pawl_api::TrainingJob;
use pawl_contract::plan::{AttemptPlan, LaunchPlan};
use pawl_contract::provenance::Provenance;
use pawl_contract::report::Report;
use pawl_display::provenance::MeasuredWith;
use pawl_display::report;
use pawl_display::report::evidence::{Evidence, FinishedLaunch};
use pawl_display::summary::Places;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Reads the evidence in `state`.
///
/// # Errors
/// [`StateError::Absent`] when no job ran there, another [`StateError`] when its files cannot be read.
pub fn gather(state: &StateDir) -> Result<Evidence, StateError> {
    let (document, recorded) = records::read(state)?;
    let mut launches: Vec<_> = recorded.iter().flat_map(FinishedLaunch::recorded).collect();
    let mut measured_with: Vec<_> = recorded.iter().filter_map(MeasuredWith::recorded).collect();
    let storage = storage(state, &document.job);
    for record in attempts::load(state)? {
        let reports = attempts::reports(state, &record);
        measured_with.extend(of_attempt(state, &record, &reports));
        let plans: BTreeMap<&str, &LaunchPlan> =
            record.plan.launches.iter().map(|plan| (plan.launch.as_str(), plan)).collect();
        // Launches of several attempts have the same name: a training that was resumed.
        let kept = storage.as_ref().and_then(|storage| records::of_attempt(storage, &record.plan.attempt));
        for report in &reports {
            let Some(&plan) = plans.get(report.launch.as_str()) else { continue };
            let launch = FinishedLaunch::reported(&record.plan.attempt, plan, report);
            let launched = kept.iter().flat_map(|kept| &kept.launches).find(|it| it.report.launch == report.launch);
            launches.push(match launched {
                Some(launched) => launch.with_record(launched),
                None => launch,
            });
        }
    }
    let Document { job, status, .. } = document;
    // A state directory has events of its own, a storage has those in the records.
    let events = events::read(state).into_iter().chain(records::happened(state, &recorded)).collect();
    let accepted = status.effective_settings.as_ref().unwrap_or(&job.spec.settings);
    let command = tuned::command(state, &job, accepted);
    Ok(Evidence::new(job, status, events, launches).with(measured_with).with_command(command))
}

/// The storage with the records of the job in `state`, if that is a directory here. Without it, the reports of the
/// launches have the first and the newest evaluation.
fn storage(state: &StateDir, job: &TrainingJob) -> Option<StateDir> {
    let directory = match pawl_decision::storage::location(job) {
        None => state.checkpoints(),
        Some(url) => PathBuf::from(url.strip_prefix("file://")?),
    };
    Some(StateDir::found_in(&directory))
}

/// What the attempts in `state` were measured with, oldest first, as far as that is known.
///
/// # Errors
/// [`StateError`] when a record cannot be read.
pub fn measured_with(state: &StateDir) -> Result<Vec<MeasuredWith>, StateError> {
    let recorded = records::load(state)?;
    let attempts = attempts::load(state)?;
    let own = attempts.iter().filter_map(|record| of_attempt(state, record, &attempts::reports(state, record)));
    Ok(recorded.iter().filter_map(MeasuredWith::recorded).chain(own).collect())
}

/// What an attempt was measured with, as its agent and these reports of its launches say.
fn of_attempt(state: &StateDir, record: &AttemptRecord, reports: &[Report]) -> Option<MeasuredWith> {
    let AttemptPlan { attempt, launches, .. } = &record.plan;
    let collected = pawl_agent::provenance(&attempts::directory(state, attempt));
    let reported = reports.iter().filter_map(|report| report.provenance.as_ref());
    MeasuredWith::new(attempt, launches, Provenance::whole(collected.as_ref(), reported))
}

/// The plan of the launch called `launch`, as far as `state` has it: of its attempts, or of their records.
///
/// # Errors
/// [`StateError`] when a file of an attempt cannot be read.
pub fn launch_plan(state: &StateDir, launch: &str) -> Result<Option<LaunchPlan>, StateError> {
    let own = attempts::load(state)?.into_iter().flat_map(|record| record.plan.launches);
    let recorded = records::load(state)?;
    let recorded = recorded.iter().flat_map(|record| record.planned()).cloned();
    Ok(own.chain(recorded).find(|plan| plan.launch == launch))
}

/// Writes the HTML report of the job in `state` to `path`.
///
/// # Errors
/// As [`gather`], or when `path` cannot be written.
pub fn write_report(state: &StateDir, path: &Path) -> Result<(), StateError> {
    write_atomic(path, report::render(&gather(state)?).as_bytes())
}

/// Locations of the output files of the job in `state`.
pub fn places(state: &StateDir, document: &Document) -> Places {
    let storage = pawl_decision::storage::location(&document.job);
    Places {
        checkpoints: Some(storage.unwrap_or_else(|| displayed(&state.checkpoints()))),
        report: state.report().exists().then(|| displayed(&state.report())),
    }
}

/// A path for display: relative when it is under the current directory.
pub fn displayed(path: &Path) -> String {
    let relative = std::env::current_dir().ok().and_then(|here| path.strip_prefix(here).ok().map(Path::to_owned));
    relative.unwrap_or_else(|| path.to_owned()).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::attempts::RecordState;
    use pawl_contract::record::{Begun, Entry, FOLDER, Launched, Text};
    use serde_json::{Value, json};
    use std::fs;

    /// What an attempt leaves: its plan, the report of its training, and its record in the storage.
    fn attempt(state: &StateDir, number: u32, evaluated: &[u64]) {
        let name = format!("toy-{number}");
        let launch = json!({"contract": 1, "job": "toy", "attempt": name, "launch": "train-0badcafe", "kind": "Train",
            "workload": {}, "settings": {}, "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0});
        let plan = json!({"contract": 1, "job": "toy", "attempt": name, "replicas": 1, "ranksPerReplica": 1,
            "gpusPerReplica": 0, "launches": [launch], "stopOnFailure": true});
        let plan: AttemptPlan = serde_json::from_value(plan).unwrap();
        let record = AttemptRecord {
            plan: plan.clone(),
            plan_hash: String::new(),
            created: jiff::Timestamp::from_second(number.into()).unwrap(),
            trainer: None,
            state: RecordState::Released,
        };
        record.save(state).unwrap();
        let directory = attempts::directory(state, &name);
        fs::create_dir_all(directory.join("train-0badcafe")).unwrap();
        fs::write(directory.join("attempt.json"), serde_json::to_vec(&plan).unwrap()).unwrap();
        let report = json!({"contract": 1, "launch": "train-0badcafe", "kind": "Train", "rank": 0, "outcome": "Done"});
        fs::write(directory.join("train-0badcafe/report.json"), report.to_string()).unwrap();
        let evaluation = |items: &u64| json!({"items": items, "metrics": {"loss": 1.0}});
        let evaluations: Vec<Value> = evaluated.iter().map(evaluation).collect();
        let launched = json!({"time": 1, "report": report, "evaluations": evaluations});
        let launched: Launched = serde_json::from_value(launched).unwrap();
        let mut text = Text::default();
        text.add(&Entry::Attempt(Box::new(Begun::planned(&plan, String::new(), 1))));
        text.add(&Entry::Launch(Box::new(launched)));
        let records = state.checkpoints().join(FOLDER).join("attempts");
        fs::create_dir_all(&records).unwrap();
        fs::write(records.join(format!("{name}.jsonl")), text.as_bytes()).unwrap();
    }

    #[test]
    fn a_launch_has_the_evaluations_that_its_own_attempt_has_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path().join("toy")).prepare().unwrap();
        let job = json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"}}});
        Document::new(serde_json::from_value(job).unwrap()).save(&state).unwrap();
        // Stopped after 20 items, and resumed from 10.
        attempt(&state, 1, &[0, 10, 20]);
        attempt(&state, 2, &[15, 25, 35]);
        let launches = gather(&state).unwrap().launches;
        let items: Vec<Vec<u64>> = launches
            .iter()
            .map(|launch| launch.evaluations.iter().map(|evaluation| evaluation.items).collect())
            .collect();
        assert_eq!(items, [[0, 10, 20], [15, 25, 35]]);
    }
}
