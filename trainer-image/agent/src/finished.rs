//! Reads the reports of finished launches from an attempt's directory.

use crate::files::{MAX_ATTEMPT, MAX_REPORT, read_bounded};
use pawl_contract::plan::AttemptPlan;
use pawl_contract::report::{LaunchResult, Report};
use std::io;
use std::path::Path;

/// Name of the attempt's plan.
pub(crate) const ATTEMPT: &str = "attempt.json";
/// Name of a launch's report.
pub(crate) const REPORT: &str = "report.json";

/// The reports of the finished launches of an attempt, in the order of its plan. Empty when there is no directory.
///
/// # Errors
/// The attempt's plan exists and cannot be read. A report that cannot be read counts as missing: the launch runs again.
pub fn finished_reports(work_dir: &Path) -> io::Result<Vec<Report>> {
    let plan = match read_bounded(&work_dir.join(ATTEMPT), MAX_ATTEMPT) {
        Ok(content) => serde_json::from_slice::<AttemptPlan>(&content)
            .map_err(|e| io::Error::other(format!("{}: {e}", work_dir.join(ATTEMPT).display())))?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io::Error::new(e.kind(), format!("{}: {e}", work_dir.join(ATTEMPT).display()))),
    };
    Ok(plan.launches.iter().filter_map(|launch| report(work_dir, &launch.launch)).collect())
}

/// As [`finished_reports`], in the compact form that decisions use.
///
/// # Errors
/// As [`finished_reports`].
pub fn finished_launches(work_dir: &Path) -> io::Result<Vec<LaunchResult>> {
    Ok(finished_reports(work_dir)?.iter().map(LaunchResult::from).collect())
}

/// The report of one launch, when it has ended.
pub(crate) fn report(work_dir: &Path, launch: &str) -> Option<Report> {
    let content = read_bounded(&work_dir.join(launch).join(REPORT), MAX_REPORT).ok()?;
    serde_json::from_slice::<Report>(&content).ok().filter(|report| report.launch == launch)
}
