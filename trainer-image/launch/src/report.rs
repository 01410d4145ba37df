//! The report of a launch: writing it, and the least that every one contains.

use pawl_contract::exit::Outcome;
use pawl_contract::measured::Measured;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::report::Report;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Writes `report` as JSON, durably: it survives a power failure.
///
/// # Errors
/// When the file cannot be replaced.
pub fn write(path: &Path, report: &Report) -> io::Result<()> {
    pawl_durable::write(path, &serde_json::to_vec_pretty(report)?)
}

/// A report that contains only the end of a launch.
pub fn bare(plan: &LaunchPlan, rank: u32, outcome: Outcome, message: String, wall: Duration) -> Report {
    let wall_seconds = Some(wall.as_secs_f64());
    let measured = Measured { wall_seconds, ..Measured::default() };
    Report { message, measured, ..Report::bare(plan, rank, outcome) }
}
