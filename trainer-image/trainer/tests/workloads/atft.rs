//! The workload atft-gat-fan through the real binary, on Parquet files: steps that are not finite are skipped and
//! counted, and three in a row end the launch.

use crate::{one_rank, two_ranks};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::report::Report;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Stocks of a date, and training dates.
const CHUNK: u64 = 20;
const DATES: u64 = 29;

/// The plan of an epoch on the panel in `directory`.
fn plan(directory: &Path, changes: &Value) -> LaunchPlan {
    let own = json!({
        "workload": {"name": "atft-gat-fan", "config": {"preset": "smoke", "data": {
            "source": "Parquet", "directory": directory.to_string_lossy(), "marketFeatures": ["f03"],
            "stocks": 28, "chunk": CHUNK, "days": 170, "features": 4,
        }}},
        "settings": {"batchPerGpu": CHUNK, "compile": "Graph", "learningRate": "1e-3"},
        "budget": {"items": CHUNK * DATES}, "hangTimeoutSeconds": 120.0, "checkpoint": null,
    });
    one_rank::plan(&own, changes)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/tests/fixtures/atft/panel").join(name)
}

/// A copy of the panel in which the returns of one training date overflow when they are added: the loss of that date is
/// not finite.
fn panel_with_one_overflow(directory: &Path) -> PathBuf {
    let panel = directory.join("panel");
    for file in ["year=2023/part-0", "year=2023/part-1", "year=2023/part-2", "year=2023/part-3", "year=2024/part-0"] {
        let to = panel.join(file).with_extension("parquet");
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        let from = if file == "year=2023/part-2" { "overflow" } else { &format!("table/{file}") };
        std::fs::copy(fixture(&format!("{from}.parquet")), to).unwrap();
    }
    panel
}

fn check(report: &Report, skipped: u64) {
    assert_eq!((report.outcome, report.measured.steps), (Outcome::Done, DATES), "{}", report.message);
    assert_eq!(report.details.skipped_updates, skipped);
    assert_eq!(report.losses.len() as u64, DATES - skipped, "the loss of a skipped step is not recorded");
    assert!(report.losses.iter().all(|point| point.loss.is_finite()));
    let metrics = &report.measured.validation.as_ref().unwrap().metrics;
    assert!(metrics.values().all(|value| value.is_finite()) && metrics.contains_key("rankic_1d"), "{metrics:?}");
}

#[test]
fn an_epoch_of_files_skips_the_step_that_is_not_finite() {
    let dir = tempfile::tempdir().unwrap();
    check(&one_rank::run(dir.path(), &plan(&fixture("table"), &json!({}))), 0);
    let panel = panel_with_one_overflow(dir.path());
    for precision in ["fp32", "bf16"] {
        let plan = plan(&panel, &json!({"settings": {"precision": precision}}));
        let (progress, metrics) = (dir.path().join("progress.json"), dir.path().join("metrics.prom"));
        let mut rank = one_rank::command(dir.path(), &plan);
        let status = rank.env("PAWL_PROGRESS", &progress).env("PAWL_METRICS", &metrics).status().unwrap();
        let report = std::fs::read(dir.path().join("report.json")).unwrap();
        check(&serde_json::from_slice(&report).unwrap(), 1);
        assert!(status.success());
        let progress: Value = serde_json::from_slice(&std::fs::read(progress).unwrap()).unwrap();
        assert_eq!(progress["skippedUpdates"], 1, "{progress}");
        let metrics = std::fs::read_to_string(metrics).unwrap();
        assert!(metrics.contains("pawl_train_skipped_updates_total 1\n"), "{metrics}");
    }
}

/// With half precision, the step is skipped by the loss scale, which other steps may be as well.
#[test]
fn a_loss_that_is_not_finite_is_skipped_in_half_precision_too() {
    let dir = tempfile::tempdir().unwrap();
    let panel = panel_with_one_overflow(dir.path());
    let report = one_rank::run(dir.path(), &plan(&panel, &json!({"settings": {"precision": "fp16"}})));
    assert_eq!(report.outcome, Outcome::Done, "{}", report.message);
    assert!(report.details.skipped_updates >= 1 && report.losses.len() as u64 == DATES - 1);
}

#[test]
fn ranks_skip_the_same_step() {
    let dir = tempfile::tempdir().unwrap();
    let panel = panel_with_one_overflow(dir.path());
    // Two dates per step: 15 steps train on all 29 dates and on one of them again.
    let report = two_ranks::run(dir.path(), plan(&panel, &json!({"budget": {"items": 2 * CHUNK * 15}})));
    assert_eq!((report.outcome, report.measured.steps), (Outcome::Done, 15), "{}", report.message);
    let skipped = report.details.skipped_updates;
    assert!((1..=2).contains(&skipped) && report.losses.len() as u64 == 15 - skipped, "{skipped}");
}

/// Every step trains on all dates, and so on the one whose loss is not finite.
#[test]
fn three_steps_in_a_row_that_are_not_finite_end_the_launch() {
    let dir = tempfile::tempdir().unwrap();
    let panel = panel_with_one_overflow(dir.path());
    let all = CHUNK * DATES;
    for accumulation in [1, DATES] {
        let settings =
            json!({"batchPerGpu": all / accumulation, "evalBatch": CHUNK, "accumulationSteps": accumulation});
        let plan = plan(&panel, &json!({"settings": settings, "budget": {"items": 10 * all}}));
        let report = one_rank::run(dir.path(), &plan);
        assert_eq!(report.outcome, Outcome::NonFinite, "{}", report.message);
        assert_eq!((report.measured.steps, report.details.skipped_updates, report.losses.len()), (2, 3, 0));
        for part in ["the training loss is NaN at step 3", "the last of 3 steps in a row", "settings.learningRate"] {
            assert!(report.message.contains(part), "{part:?} in: {}", report.message);
        }
        assert!(!report.message.contains("first tensor"), "the weights are as before: {}", report.message);
    }
}
