//! Reads the evidence in a state directory, for the report and the summary.

use crate::state::document::Document;
use crate::state::{StateDir, StateError, attempts, events, records, write_atomic};
use pawl_contract::plan::LaunchPlan;
use pawl_display::report;
use pawl_display::report::evidence::{Evidence, FinishedLaunch};
use pawl_display::summary::Places;
use std::collections::BTreeMap;
use std::path::Path;

/// Reads the evidence in `state`.
///
/// # Errors
/// [`StateError::Absent`] when no job ran there, another [`StateError`] when its files cannot be read.
pub fn gather(state: &StateDir) -> Result<Evidence, StateError> {
    let (document, recorded) = records::read(state)?;
    let mut launches: Vec<_> = recorded.iter().flat_map(FinishedLaunch::recorded).collect();
    for record in attempts::load(state)? {
        let plans: BTreeMap<&str, &LaunchPlan> =
            record.plan.launches.iter().map(|plan| (plan.launch.as_str(), plan)).collect();
        for report in attempts::reports(state, &record) {
            if let Some(&plan) = plans.get(report.launch.as_str()) {
                launches.push(FinishedLaunch::reported(&record.plan.attempt, plan, &report));
            }
        }
    }
    let Document { job, status, .. } = document;
    Ok(Evidence::new(job, status, events::read(state), launches))
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
