//! One launch of one rank, by the real program.

use pawl_contract::plan::LaunchPlan;
use pawl_contract::report::Report;
use std::path::Path;
use std::process::Command;

/// One rank that keeps everything in `dir`.
pub fn command(dir: &Path, plan: &LaunchPlan) -> Command {
    std::fs::write(dir.join("plan.json"), serde_json::to_vec(plan).unwrap()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pawl-trainer"));
    command
        .env("PAWL_PLAN", dir.join("plan.json"))
        .env("PAWL_REPORT", dir.join("report.json"))
        .env("PAWL_CHECKPOINTS", dir.join("checkpoints"))
        .env("PAWL_DATA", dir.join("data"))
        .env("RUST_LOG", "warn");
    command
}

/// Runs one rank that keeps everything in `dir`.
pub fn run(dir: &Path, plan: &LaunchPlan) -> Report {
    let status = command(dir, plan).status().unwrap();
    let report: Report = serde_json::from_slice(&std::fs::read(dir.join("report.json")).unwrap()).unwrap();
    assert_eq!(status.code().unwrap(), i32::from(report.outcome.exit_code()), "{}", report.message);
    report
}
