//! One launch of one rank, by the real program.

use pawl_contract::plan::LaunchPlan;
use pawl_contract::report::Report;
use pawl_workloads::layered::overlay;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// The plan of a training with checkpoints: a workload's own fields, and over them the changes of a test.
pub fn plan(own: &Value, changes: &Value) -> LaunchPlan {
    let mut plan = json!({
        "contract": 1, "job": "test", "attempt": "test-1", "launch": "one", "kind": "Train", "seed": 42,
        "checkpoint": {"everySeconds": 1000.0, "keep": 9, "resume": true},
    });
    overlay(&mut plan, own);
    overlay(&mut plan, changes);
    serde_json::from_value(plan).unwrap()
}

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
