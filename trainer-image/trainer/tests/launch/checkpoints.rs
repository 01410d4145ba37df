//! What a launch saves and resumes.

use crate::{Rank, launch, launch_gang, losses, plan, saving, tensors};
use pawl_contract::exit::Outcome;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[test]
fn a_resumed_run_is_the_run_that_was_never_interrupted() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    launch(whole.path(), json!({"budget": {"items": 40}, "checkpoint": saving()}));
    launch(parts.path(), json!({"budget": {"items": 20}, "checkpoint": saving()}));
    let report = launch(parts.path(), json!({"budget": {"items": 40}, "checkpoint": saving()}));
    assert_eq!(
        (report.outcome, report.measured.steps, report.measured.items),
        (Outcome::Done, 20, 40),
        "{}",
        report.message
    );
    assert!(tensors(parts.path()) == tensors(whole.path()), "bit for bit");

    // Other settings, same run: layouts are no part of a checkpoint.
    let settings = json!({"optimizerKernel": "Fused", "compile": "None"});
    let changes = json!({"budget": {"items": 44}, "checkpoint": saving(), "settings": settings});
    assert_eq!(launch(parts.path(), changes).outcome, Outcome::Done);

    // Another job's checkpoints are refused, and so is another model's.
    let report = launch(parts.path(), json!({"budget": {"items": 60}, "checkpoint": saving(), "seed": 43}));
    assert_eq!(report.outcome, Outcome::CheckpointUnreadable);
    let other = "was trained with another workload, configuration or seed";
    assert!(report.message.contains(other), "{}", report.message);
    let wider = json!({"operator": {"hidden": 32}});
    let report =
        launch(parts.path(), json!({"budget": {"items": 60}, "checkpoint": saving(), "workload": {"config": wider}}));
    assert_eq!(report.outcome, Outcome::CheckpointUnreadable);
    assert!(report.message.contains(other), "{}", report.message);
}

#[test]
fn a_checkpoint_that_is_expected_and_missing_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let expected = json!({"name": "00000002-step-10-by-1.1", "step": 10, "items": 20});
    let policy = json!({"everySeconds": 1000.0, "keep": 3, "resume": true, "expected": expected});
    let report = launch(dir.path(), json!({"checkpoint": policy}));
    assert_eq!((report.outcome, report.measured.steps), (Outcome::CheckpointUnreadable, 0));
    let named = ["00000002-step-10-by-1.1", "20 items", "contains no complete checkpoint", "restore"];
    assert!(named.iter().all(|part| report.message.contains(part)), "{}", report.message);
    launch(dir.path(), json!({"checkpoint": saving()}));
    let report = launch(dir.path(), json!({"budget": {"items": 24}, "checkpoint": policy}));
    assert_eq!((report.outcome, report.measured.steps), (Outcome::Done, 12), "{}", report.message);
}

#[test]
fn a_job_starts_from_the_checkpoint_of_another_job_only_when_its_plan_names_it() {
    let (base, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = launch(base.path(), json!({"budget": {"items": 40}, "checkpoint": saving()}));
    let before = tensors(base.path());
    let from = |weights_only: bool| {
        let storage = base.path().join("checkpoints");
        json!({"everySeconds": 1000.0, "keep": 3, "resume": true,
               "resumeFrom": {"storage": storage, "weightsOnly": weights_only}})
    };
    // It continues at the position of the other job, with another seed and other settings.
    let changes = |weights_only: bool, items: u64| json!({"seed": 7, "budget": {"items": items}, "settings": {"compile": "Fuse"}, "checkpoint": from(weights_only)});
    let report = launch(own.path(), changes(false, 44));
    assert_eq!((report.outcome, report.measured.steps), (Outcome::Done, 22), "{}", report.message);
    // Its own checkpoint comes before the other job's.
    let report = launch(own.path(), changes(true, 48));
    assert_eq!((report.outcome, report.measured.steps), (Outcome::Done, 24), "{}", report.message);
    // Only the weights: the first step already has a loss of trained weights.
    let fresh = tempfile::tempdir().unwrap();
    let report = launch(fresh.path(), changes(true, 20));
    assert_eq!((report.outcome, report.measured.steps), (Outcome::Done, 10), "{}", report.message);
    assert!(losses(&report)[0] < 0.9 * losses(&first)[0], "{:?} {:?}", losses(&report), losses(&first));
    assert!(tensors(base.path()) == before, "the other job's checkpoints are unchanged");

    let empty = tempfile::tempdir().unwrap();
    let nowhere = json!({"everySeconds": 1000.0, "keep": 3, "resume": true,
                         "resumeFrom": {"storage": empty.path().join("none")}});
    let report = launch(empty.path(), json!({"checkpoint": nowhere}));
    assert_eq!(report.outcome, Outcome::InvalidPlan);
    assert!(report.message.contains("train.resumeFrom.storage"), "{}", report.message);
}

#[test]
fn a_gang_that_was_frozen_and_superseded_stops_when_it_wakes() {
    use rustix::process::{Pid, Signal, kill_process};
    let (dir, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let often = json!({"everySeconds": 0.0, "keep": 2, "resume": true});
    let old = Rank::start(dir.path(), &plan(json!({"budget": {"items": 100_000}, "checkpoint": often})), &[]);
    let store = || pawl_trainer::checkpoint::Store::open(dir.path().join("checkpoints").to_str().unwrap()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while store().newest(None).unwrap().is_none_or(|found| found.reference.step < 3) {
        assert!(Instant::now() < deadline, "no checkpoint was written");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = Pid::from_raw(old.child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let frozen = store().newest(None).unwrap().unwrap().reference.step;
    let changes = json!({"attempt": "test-2", "budget": {"items": 2 * frozen + 20}, "checkpoint": often});
    let storage = [("PAWL_CHECKPOINTS", dir.path().join("checkpoints").display().to_string())];
    let (_, report) = Rank::start(new.path(), &plan(changes), &storage).end();
    assert_eq!(report.outcome, Outcome::Done, "{}", report.message);
    kill_process(pid, Signal::CONT).unwrap();
    let (_, superseded) = old.end();
    assert_eq!(superseded.outcome, Outcome::Stopped);
    assert!(superseded.message.contains("superseded"), "{}", superseded.message);
    let newest = store().newest(None).unwrap().unwrap().reference;
    assert_eq!(Some(newest), report.last_checkpoint, "the new gang's model is untouched");
}

#[test]
fn the_best_checkpoint_is_kept_and_reported_by_the_metric_that_the_plan_names() {
    let dir = tempfile::tempdir().unwrap();
    let changes = |best: Value| {
        json!({"budget": {"items": 80, "evalEveryItems": 20}, "settings": {"ema": "0.5"},
               "checkpoint": {"everySeconds": 1000.0, "keep": 1, "resume": true, "best": best}})
    };
    // The error falls while it learns: where larger is better, the first evaluation is the best.
    let report = launch(dir.path(), changes(json!({"metric": "mae", "better": "Larger"})));
    let best = report.best_checkpoint.expect("is reported");
    assert_eq!((best.checkpoint.items, best.metric.as_str()), (20, "mae"), "{}", report.message);
    assert_eq!(report.last_checkpoint.unwrap().items, 80);
    assert!(best.value > report.measured.validation.unwrap().metrics["mae"]);
    let store = pawl_trainer::checkpoint::Store::open(dir.path().join("checkpoints").to_str().unwrap()).unwrap();
    assert_eq!(store.best().unwrap().unwrap().reference, best.checkpoint);
    assert_eq!(store.newest(None).unwrap().unwrap().reference.items, 80);

    let dir = tempfile::tempdir().unwrap();
    let report = launch(dir.path(), changes(json!({"metric": "accuracy", "better": "Larger"})));
    assert_eq!(report.outcome, Outcome::InvalidPlan);
    let named = ["train.checkpoint.best.metric: accuracy is not", "workload ups", "nrmse"];
    assert!(named.iter().all(|part| report.message.contains(part)), "{}", report.message);
}

#[test]
fn a_training_moves_from_sharded_ranks_to_others_and_to_one() {
    let whole = tempfile::tempdir().unwrap();
    let budget = |items: u64| json!({"items": items, "horizonItems": 96, "evalEveryItems": 12});
    let settings = |ranks: u64, sharding: &str| json!({"accumulationSteps": 12 / 2 / ranks, "sharding": sharding});
    let changes = |items, ranks, sharding| json!({"settings": settings(ranks, sharding), "budget": budget(items), "checkpoint": saving()});
    let expected = launch(whole.path(), changes(96, 1, "None"));
    assert_eq!(expected.outcome, Outcome::Done, "{}", expected.message);

    let moved = tempfile::tempdir().unwrap();
    let mut curve = Vec::new();
    for (items, ranks, sharding) in
        [(24, 2, "Full"), (48, 3, "Zero2"), (72, 2, "Zero1"), (84, 2, "None"), (96, 1, "None")]
    {
        let report = match ranks {
            1 => launch(moved.path(), changes(items, 1, sharding)),
            ranks => launch_gang(moved.path(), ranks as u32, changes(items, ranks, sharding)),
        };
        assert_eq!((report.outcome, report.measured.items), (Outcome::Done, items), "{sharding}: {}", report.message);
        let (predicted, peak) =
            (report.measured.predicted_memory_bytes.unwrap(), report.measured.peak_memory_bytes.unwrap());
        assert!(predicted.abs_diff(peak) as f64 <= 0.02 * peak as f64, "{sharding}: {predicted}, measured {peak}");
        curve.extend(losses(&report));
    }
    let expected_losses = losses(&expected);
    assert_eq!(curve.len(), expected_losses.len());
    for (step, (mine, theirs)) in curve.iter().zip(&expected_losses).enumerate() {
        assert!((mine - theirs).abs() < 1e-3 * theirs, "step {step}: {curve:?} beside {expected_losses:?}");
    }
    let names = |dir| tensors(dir).into_iter().map(|(name, array)| (name, array.shape().clone())).collect::<Vec<_>>();
    assert_eq!(names(moved.path()), names(whole.path()), "a checkpoint does not depend on the layout");
}

#[test]
fn a_run_that_improves_at_every_evaluation_does_not_write_a_checkpoint_after_each() {
    let dir = tempfile::tempdir().unwrap();
    // 60 evaluations; the loss falls at nearly all of them.
    let changes = json!({"budget": {"items": 120, "evalEveryItems": 2}, "settings": {"ema": "0.5"},
                         "checkpoint": {"everySeconds": 1000.0, "keep": 1, "resume": true}});
    let report = launch(dir.path(), changes);
    assert_eq!(report.outcome, Outcome::Done, "{}", report.message);
    let best = report.best_checkpoint.expect("is reported");
    let last = report.last_checkpoint.expect("is reported");
    let generation: u32 = last.name.split('-').next().unwrap().parse().unwrap();
    // The last one, and one in 30 s.
    let most = 2 + (report.measured.wall_seconds.unwrap() / 30.0) as u32;
    assert!(generation <= most, "{generation} checkpoints were written");
    let store = pawl_trainer::checkpoint::Store::open(dir.path().join("checkpoints").to_str().unwrap()).unwrap();
    assert_eq!(store.best().unwrap().unwrap().reference, best.checkpoint, "it is durable at the end");
    assert!(report.stop_seconds.unwrap() > 0.0);
}

#[test]
fn a_stop_request_saves_and_says_so_and_what_is_counted_is_true() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("metrics.prom");
    let endless = json!({"budget": {"items": 1_000_000}, "checkpoint": saving()});
    let rank = Rank::start(dir.path(), &plan(endless), &[("PAWL_METRICS", text.display().to_string())]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let value = |name: &str| {
        let metrics = std::fs::read_to_string(&text).unwrap_or_default();
        metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok()).unwrap_or(0.0)
    };
    for name in
        ["pawl_train_step_seconds_count", "pawl_gpu_memory_bytes{kind=\"peak\"}", "pawl_train_utilization_ratio"]
    {
        while value(name) == 0.0 {
            assert!(Instant::now() < deadline, "{name} stays 0");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let pid = rustix::process::Pid::from_child(&rank.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let (code, report) = rank.end();
    assert_eq!(code, 30);
    let saved = report.last_checkpoint.expect("a checkpoint");
    assert_eq!((saved.step, saved.items), (report.measured.steps, report.measured.items));
    assert!(report.message.contains("after a checkpoint"), "{}", report.message);
    let progress: Value = serde_json::from_slice(&std::fs::read(dir.path().join("progress.json")).unwrap()).unwrap();
    assert_eq!(progress["lastCheckpoint"]["step"], saved.step);
}

#[test]
fn what_was_saved_while_a_training_diverged_is_deleted_before_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let good = launch(dir.path(), json!({"budget": {"items": 80}, "checkpoint": saving()})).last_checkpoint.unwrap();
    let settings = json!({"learningRate": "9.9"});
    // A checkpoint after every step, as far as the one before it is written.
    let policy = json!({"everySeconds": 0.0, "keep": 100, "resume": true});
    let diverging = json!({"settings": settings, "budget": {"items": 400}, "checkpoint": policy});
    let report = launch(dir.path(), diverging);
    assert!(report.outcome.is_divergence(), "{}: {}", report.outcome, report.message);
    let healthy = report.failure.unwrap();
    let saved = || -> Vec<u64> {
        let names = std::fs::read_dir(dir.path().join("checkpoints")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter_map(|name| name.split_once("-step-")?.1.split_once("-by-")?.0.parse().ok()).collect()
    };
    assert!(saved().contains(&good.step));
    assert!(saved().iter().all(|step| *step <= healthy.step), "{:?} after {}", saved(), healthy.step);
    assert!(report.last_checkpoint.is_none_or(|last| last.items <= healthy.items));
}
