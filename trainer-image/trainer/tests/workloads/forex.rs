//! The forex workload through the real binary: it learns, resumes bit for bit with its running statistics, and runs in
//! every precision and on several ranks.

use crate::results::{assert_close, losses, tensors};
use crate::{one_rank, two_ranks};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::report::Report;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

fn plan(changes: Value) -> LaunchPlan {
    let own = json!({
        "workload": {"name": "forex", "config": {
            "preset": "smoke", "data": {"bars": 2500}, "evaluation": {"windows": 40, "samples": 8, "steps": 4},
        }},
        "settings": {"batchPerGpu": 8, "evalBatch": 20, "compile": "Graph", "learningRate": "2e-3", "warmupSteps": 10},
        "budget": {"items": 32}, "hangTimeoutSeconds": 120.0,
    });
    one_rank::plan(&own, &changes)
}

/// Runs one rank that keeps everything in `dir`.
fn launch(dir: &Path, changes: Value) -> Report {
    one_rank::run(dir, &plan(changes))
}

/// Runs a gang of two ranks that keeps everything in `dir`.
fn launch_two(dir: &Path, changes: Value) -> Report {
    two_ranks::run(dir, plan(changes))
}

fn metrics(report: &Report) -> &BTreeMap<String, f64> {
    &report.measured.validation.as_ref().unwrap().metrics
}

#[test]
fn it_learns_and_evaluates_its_forecasts() {
    let dir = tempfile::tempdir().unwrap();
    let start = launch(dir.path(), json!({"checkpoint": null}));
    let report = launch(dir.path(), json!({"checkpoint": null, "budget": {"items": 960}}));
    assert_eq!((report.outcome, report.measured.steps), (Outcome::Done, 120), "{}", report.message);
    let (before, after) = (metrics(&start), metrics(&report));
    assert!(after["loss"] < 0.9 * before["loss"], "{before:?} {after:?}");
    assert!(after["velocity"] < before["velocity"] && after["reconstruction"] < before["reconstruction"], "{after:?}");
    for horizon in ["5m", "15m", "60m", "240m"] {
        let [crps, rmse] = ["crps", "rmse"].map(|name| after[&format!("{name}_{horizon}")]);
        assert!(crps > 0.0 && crps.is_finite() && rmse > 0.0 && rmse.is_finite(), "{after:?}");
    }
}

#[test]
fn a_resumed_run_is_the_run_that_was_never_interrupted() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Without decay the learning rate does not depend on the budget.
    let run = |dir: &Path, items: u64| {
        let config = json!({"config": {"schedule": {"floor": 1.0}}});
        let report = launch(dir, json!({"budget": {"items": items}, "workload": config}));
        assert_eq!((report.outcome, report.measured.items), (Outcome::Done, items), "{}", report.message);
        (losses(&report), metrics(&report).clone())
    };
    let (uninterrupted, wanted) = run(whole.path(), 48);
    let before = run(parts.path(), 24).0;
    let (after, got) = run(parts.path(), 48);
    assert_eq!((uninterrupted.len(), before.len(), after.len()), (6, 3, 3), "only the rest was trained");
    assert_eq!([before, after].concat(), uninterrupted, "bit for bit");
    assert_eq!(got, wanted, "bit for bit, the statistics of the latents included");
    let all = tensors(parts.path());
    assert!(all == tensors(whole.path()), "bit for bit");
    let scale = all.iter().find(|(name, _)| name == "latent_scale").expect("a statistic is part of the checkpoint");
    assert_ne!(scale.1.item(), 1.0);
}

#[test]
fn every_way_to_run_gives_the_same_losses() {
    let dir = tempfile::tempdir().unwrap();
    let of = |settings: Value| {
        let report = launch(dir.path(), json!({"checkpoint": null, "settings": settings}));
        assert_eq!(report.outcome, Outcome::Done, "{}", report.message);
        losses(&report)
    };
    let base = of(json!({}));
    for (settings, tolerance) in [
        (json!({"loaderWorkers": 2}), 0.0),
        (json!({"workload": {"data": {"placement": "Device"}}}), 1e-6),
        (json!({"activationCheckpointing": "Selective"}), 1e-6),
        (json!({"activationCheckpointing": "Full"}), 1e-6),
        (json!({"compile": "None"}), 1e-4),
        (json!({"optimizerKernel": "Fused"}), 1e-4),
        (json!({"precision": "bf16"}), 3e-2),
    ] {
        assert_close(&of(settings.clone()), &base, tolerance, &settings.to_string());
    }
}

/// Ranks agree on the running statistic, which is that of all their batches; a rank that accumulates updates it in
/// every micro-step instead.
#[test]
fn two_ranks_train_like_one_that_accumulates() {
    let (alone, gang) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = launch(alone.path(), json!({"budget": {"items": 64}, "settings": {"accumulationSteps": 2}}));
    let two = launch_two(gang.path(), json!({"budget": {"items": 64}}));
    assert_eq!((two.outcome, two.measured.steps), (Outcome::Done, one.measured.steps), "{}", two.message);
    for (a, b) in losses(&one).iter().zip(losses(&two)) {
        assert!((a - b).abs() < 0.01 * a, "{:?} {:?}", losses(&one), losses(&two));
    }
}

/// A phase of a ladder may ask for it: that is a reason to leave the phase out, not to fail the job.
#[test]
fn flash_attention_is_unsupported_rather_than_invalid() {
    let dir = tempfile::tempdir().unwrap();
    let report = launch(dir.path(), json!({"settings": {"attention": "Flash"}}));
    assert_eq!(report.outcome, Outcome::Unsupported, "{}", report.message);
    assert!(report.message.contains("settings.attention: Flash"), "{}", report.message);
}
