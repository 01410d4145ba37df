//! What a launch gives: a model that learns, the same losses by every way to run, and what it reports beside them.

use crate::{Rank, launch, launch_gang, losses, plan, saving, tensors};
use pawl_contract::exit::Outcome;
use pawl_contract::provenance::Hashed;
use pawl_contract::report::LaunchResult;
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn the_ups_smoke_size_learns() {
    let dir = tempfile::tempdir().unwrap();
    // A quick average: without its warm-up, 82 % of the workload's own (0.999) would still be first weights after 200
    // steps.
    let changes = json!({"budget": {"items": 400}, "checkpoint": saving(), "settings": {"ema": "0.9"}});
    let report = launch(dir.path(), changes);
    assert_eq!(
        (report.outcome, report.measured.steps, report.measured.items),
        (Outcome::Done, 200, 400),
        "{}",
        report.message
    );
    let losses = losses(&report);
    assert!(losses[0] > 2.0 && losses.len() <= 64, "{losses:?}");
    let last = losses[losses.len() - 3..].iter().sum::<f64>() / 3.0;
    assert!(last < 0.5, "the peer ends at 0.317 after these 200 steps: {last}");
    let nrmse = |validation: Option<pawl_contract::measured::Validation>| validation.unwrap().metrics["nrmse"];
    let (first, end) = (nrmse(report.measured.first_validation), nrmse(report.measured.validation));
    assert!(end < 0.85 * first, "nrmse {first} -> {end}");
    let share = report.measured.initial_weights_share.expect("an average is evaluated");
    assert!(share < 0.01 && report.details.updates == Some(200), "{share}, {:?}", report.details.updates);
    let (predicted, peak) =
        (report.measured.predicted_memory_bytes.unwrap(), report.measured.peak_memory_bytes.unwrap());
    assert!(predicted.abs_diff(peak) as f64 <= 0.02 * peak as f64, "predicted {predicted}, measured {peak}");
    assert!(report.measured.items_per_second.unwrap() > 0.0 && report.measured.utilization.unwrap() > 0.1);
    assert_eq!(report.last_checkpoint.unwrap().items, 400);
    let data = report.provenance.and_then(|known| known.data).expect("they are generated");
    assert_eq!((data.hashed, data.hash.len()), (Hashed::Generator, 64));
}

#[test]
fn every_way_to_run_gives_the_same_losses() {
    let dir = tempfile::tempdir().unwrap();
    let base = losses(&launch(dir.path(), json!({})));
    for (settings, tolerance) in [
        (json!({"loaderWorkers": 2, "loaderPersistent": true}), 0.0),
        (json!({"activationCheckpointing": "Full"}), 0.0),
        (json!({"compile": "Fuse"}), 0.0),
        (json!({"compile": "None"}), 1e-4),
        (json!({"optimizerKernel": "Fused", "attention": "Flash"}), 1e-4),
        (json!({"precision": "bf16"}), 3e-2),
        (json!({"precision": "fp8"}), 6e-2),
        (json!({"precision": "fp8", "float8Scaling": "Tensor"}), 6e-2),
        (json!({"precision": "fp8", "float8Scaling": "Delayed", "float8Gradients": "e5m2"}), 6e-2),
    ] {
        let other = losses(&launch(dir.path(), json!({"settings": settings})));
        assert_eq!(other.len(), base.len());
        for (a, b) in base.iter().zip(&other) {
            assert!((a - b).abs() <= tolerance * a.abs(), "{settings}: {base:?} {other:?}");
        }
    }
}

#[test]
fn what_eight_bits_lose_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("metrics.prom");
    let report = |settings: Value, metrics: bool| {
        let environment = [("PAWL_METRICS", text.display().to_string())];
        let changes = json!({"settings": settings});
        let (_, report) = Rank::start(dir.path(), &plan(changes), &environment[..usize::from(metrics)]).end();
        assert_eq!(report.outcome, Outcome::Done, "{}", report.message);
        (report.measured.float8_overflow_share, report.measured.float8_underflow_share)
    };
    assert_eq!(report(json!({"precision": "bf16"}), false), (None, None));
    let (overflow, underflow) = report(json!({"precision": "fp8"}), true);
    assert_eq!(overflow, Some(0.0), "scales of the current values hold all numbers");
    let rows = underflow.unwrap();
    assert!((0.0..0.1).contains(&rows), "{rows}");
    let metrics = std::fs::read_to_string(&text).unwrap();
    assert!(metrics.contains("pawl_train_float8_overflow_ratio 0\n"), "{metrics}");
    assert!(metrics.contains("pawl_train_float8_underflow_ratio "), "{metrics}");
    let (_, whole) = report(json!({"precision": "fp8", "float8Scaling": "Tensor"}), false);
    assert!(whole.unwrap() > rows, "{whole:?} with one scale, {rows} with one a row");
}

#[test]
fn two_ranks_give_the_losses_of_one_that_accumulates() {
    let alone = tempfile::tempdir().unwrap();
    let changes = json!({"settings": {"accumulationSteps": 2}, "budget": {"items": 40}, "checkpoint": saving()});
    let one = launch(alone.path(), changes);
    let gang = tempfile::tempdir().unwrap();
    let two = launch_gang(gang.path(), 2, json!({"budget": {"items": 40}, "checkpoint": saving()}));
    assert_eq!((two.outcome, two.measured.steps), (Outcome::Done, one.measured.steps), "{}", two.message);
    assert_eq!(losses(&two), losses(&one), "bit for bit");
    assert!(tensors(gang.path()) == tensors(alone.path()), "bit for bit");
    assert!(two.measured.collective_wait_share.unwrap() > 0.0);
}

#[test]
fn a_measurement_of_slow_steps_ends_by_time_on_all_ranks() {
    let budget = |seconds: f64| {
        let limit = json!({"seconds": seconds, "warmupSteps": 5, "windowSteps": 13});
        json!({"items": null, "warmupSteps": 40, "windowSteps": 160, "windowLimit": limit})
    };
    let measure = |ranks: u32, seconds: f64| {
        let dir = tempfile::tempdir().unwrap();
        let report = launch_gang(dir.path(), ranks, json!({"kind": "Measure", "budget": budget(seconds)}));
        assert_eq!(report.outcome, Outcome::Done, "{}", report.message);
        (report.measured.steps, LaunchResult::from(&report).curve)
    };
    for ranks in [1, 2] {
        // No step lasts as long: the least numbers of steps decide, up to windows that follow one that is not steady.
        let (few, curve) = measure(ranks, 1e-6);
        assert!((5 + 13..=5 + 5 * 13 + 6).contains(&few), "{few} steps on {ranks} ranks");
        let (all, complete) = measure(ranks, 3600.0);
        assert!(all >= 200, "{all} steps on {ranks} ranks");
        // The first quarter is of 48 of 200 steps.
        assert_eq!((curve.len(), complete.len()), (few as usize / 48, 4), "{few} steps on {ranks} ranks");
        assert!(curve.iter().zip(&complete).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs()), "{curve:?} {complete:?}");
    }
}

#[test]
fn what_a_rank_does_beside_training_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let changes = json!({"budget": {"items": 20, "evalEveryItems": 4}, "checkpoint": saving()});
    let mut rank = Rank::start(dir.path(), &plan(changes), &[]);
    let mut seen: Vec<(String, u64)> = Vec::new();
    while rank.child.try_wait().unwrap().is_none() {
        let text = std::fs::read(dir.path().join("progress.json")).unwrap_or_default();
        if let Ok(progress) = serde_json::from_slice::<Value>(&text) {
            let phase = progress["phase"].as_str().unwrap_or_default().to_owned();
            let heartbeat = progress["heartbeat"].as_u64().unwrap_or_default();
            if seen.last().is_none_or(|(last, _)| *last != phase) {
                seen.push((phase, heartbeat));
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(rank.end().0, 0);
    for phase in ["Compiling", "Validating", "Training"] {
        assert!(seen.iter().any(|(known, _)| known == phase), "{phase}: {seen:?}");
    }
    assert!(seen.is_sorted_by_key(|(_, heartbeat)| *heartbeat) && seen.last().unwrap().1 > 0, "{seen:?}");
}

#[test]
fn training_stops_early_by_the_metric_that_the_plan_names() {
    let dir = tempfile::tempdir().unwrap();
    let stop = |better: &str| {
        let rule = json!({"metric": "mae", "better": better, "patience": 2, "minDelta": 0.0});
        let budget = json!({"items": 200, "evalEveryItems": 20, "earlyStopping": rule});
        launch(dir.path(), json!({"budget": budget, "settings": {"ema": "0.5"}}))
    };
    assert_eq!(stop("Larger").measured.items, 60, "nothing gets better after the first evaluation");
    assert!(stop("Smaller").measured.items > 60);
}

#[test]
fn a_trial_in_one_launch_lists_the_values_of_launches_one_after_another() {
    let search = |items: u64, bounds: Value| {
        let evaluations = json!({"every": 6, "metric": "nrmse", "better": "Smaller", "bounds": bounds});
        let budget = json!({"items": items, "horizonItems": 22, "evaluations": evaluations});
        json!({"kind": "Search", "budget": budget, "checkpoint": saving()})
    };
    let apart = tempfile::tempdir().unwrap();
    let reports = [6, 12, 18, 22].map(|items| launch(apart.path(), search(items, json!([]))));
    let together = tempfile::tempdir().unwrap();
    let whole = launch(together.path(), search(22, json!([])));
    assert_eq!(whole.evaluations.iter().map(|(items, _)| *items).collect::<Vec<_>>(), [6, 12, 18, 22]);
    for (report, (items, value)) in reports.iter().zip(&whole.evaluations) {
        let alone = report.measured.metric("nrmse").copied().unwrap();
        assert!((value.unwrap() / alone - 1.0).abs() < 1e-5, "after {items}: {value:?} instead of {alone}");
    }
    assert_eq!(reports[3].evaluations.len(), 4, "the checkpoint has those before it");

    // An error is above zero: the trial is stopped at the first bound.
    let stopped = tempfile::tempdir().unwrap();
    let report = launch(stopped.path(), search(22, json!([[12, 0.0], [18, 0.0]])));
    assert_eq!((report.outcome, report.measured.items, report.evaluations.len()), (Outcome::Done, 12, 2));
    assert_eq!(report.last_checkpoint.unwrap().items, 12);
}
