//! Reads the evidence in a state directory, for the report and the summary.

use crate::state::attempts::AttemptRecord;
use crate::state::document::Document;
use crate::state::{StateDir, StateError, attempts, events, records, write_atomic};
use crate::tuned;
use pawl_api::TrainingJob;
use pawl_contract::plan::{AttemptPlan, LaunchPlan};
use pawl_contract::provenance::Provenance;
use pawl_contract::record::Launched;
use pawl_contract::report::Report;
use pawl_display::provenance::MeasuredWith;
use pawl_display::report;
use pawl_display::report::evidence::{Evidence, FinishedLaunch};
use pawl_display::summary::Places;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Reads the evidence in `state`.
///
/// # Errors
/// [`StateError::Absent`] when no job ran there, another [`StateError`] when its files cannot be read.
pub fn gather(state: &StateDir) -> Result<Evidence, StateError> {
    let (document, recorded) = records::read(state)?;
    let mut launches: Vec<_> = recorded.iter().flat_map(FinishedLaunch::recorded).collect();
    let mut measured_with: Vec<_> = recorded.iter().filter_map(MeasuredWith::recorded).collect();
    let kept = kept(state, &document.job);
    for record in attempts::load(state)? {
        let reports = attempts::reports(state, &record);
        measured_with.extend(of_attempt(state, &record, &reports));
        let plans: BTreeMap<&str, &LaunchPlan> =
            record.plan.launches.iter().map(|plan| (plan.launch.as_str(), plan)).collect();
        for report in &reports {
            if let Some(&plan) = plans.get(report.launch.as_str()) {
                let launch = FinishedLaunch::reported(&record.plan.attempt, plan, report);
                launches.push(match kept.get(&report.launch) {
                    Some(launched) => launch.with_record(launched),
                    None => launch,
                });
            }
        }
    }
    let Document { job, status, .. } = document;
    // A state directory has events of its own, a storage has those in the records.
    let events = events::read(state).into_iter().chain(records::happened(state, &recorded)).collect();
    let accepted = status.effective_settings.as_ref().unwrap_or(&job.spec.settings);
    let command = tuned::command(state, &job, accepted);
    Ok(Evidence::new(job, status, events, launches).with(measured_with).with_command(command))
}

/// What the records in the job's storage have of launches that ran here, by the names of these. Nothing of a storage
/// that is no directory here or cannot be read: the reports of the launches have the first and the newest evaluation.
fn kept(state: &StateDir, job: &TrainingJob) -> HashMap<String, Launched> {
    let storage = match pawl_decision::storage::location(job) {
        None => Some(state.checkpoints()),
        Some(url) => url.strip_prefix("file://").map(PathBuf::from),
    };
    let recorded = storage.and_then(|storage| records::load(&StateDir::found_in(&storage)).ok()).unwrap_or_default();
    let launches = recorded.into_iter().flat_map(|record| record.launches);
    launches.map(|launched| (launched.report.launch.clone(), launched)).collect()
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
