//! Launches of the real binary on the real workload: learning, ranks, resuming, stopping, refusing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_agent::{Node, Stop};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchPlan};
use pawl_contract::report::{LaunchResult, Report};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const TRAINER: &str = env!("CARGO_BIN_EXE_pawl-trainer");

/// A launch plan of the smoke-sized UPS; `changes` are laid over it.
fn plan(changes: Value) -> LaunchPlan {
    let mut plan = json!({
        "contract": 1, "job": "test", "attempt": "test-1", "launch": "one", "kind": "Train",
        "workload": {"name": "ups", "config": {"preset": "smoke"}},
        "settings": {"batchPerGpu": 2, "compile": "Graph"},
        "seed": 42, "budget": {"items": 20}, "hangTimeoutSeconds": 30.0
    });
    overlay(&mut plan, &changes);
    serde_json::from_value(plan).unwrap()
}

fn overlay(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            patch.iter().for_each(|(key, value)| overlay(base.entry(key.clone()).or_insert(Value::Null), value));
        }
        (base, patch) => *base = patch.clone(),
    }
}

/// Data are made once and shared by all tests.
fn data() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("data")
}

struct Rank {
    child: Child,
    dir: PathBuf,
}

impl Rank {
    /// Starts a single rank that keeps everything but data in `dir`.
    fn start(dir: &Path, plan: &LaunchPlan, more: &[(&str, String)]) -> Self {
        std::fs::write(dir.join("plan.json"), serde_json::to_vec(plan).unwrap()).unwrap();
        let _ = std::fs::remove_file(dir.join("report.json"));
        let child = Command::new(TRAINER)
            .env("PAWL_PLAN", dir.join("plan.json"))
            .env("PAWL_REPORT", dir.join("report.json"))
            .env("PAWL_PROGRESS", dir.join("progress.json"))
            .env("PAWL_CHECKPOINTS", dir.join("checkpoints"))
            .env("PAWL_DATA", data())
            .env("RUST_LOG", "warn")
            .envs(more.iter().map(|(name, value)| (*name, value.as_str())))
            .spawn()
            .unwrap();
        Self { child, dir: dir.to_owned() }
    }

    /// Waits for the end: exit code and report.
    fn end(mut self) -> (i32, Report) {
        let code = self.child.wait().unwrap().code().unwrap();
        let report: Report = serde_json::from_slice(&std::fs::read(self.dir.join("report.json")).unwrap()).unwrap();
        assert_eq!(code, i32::from(report.outcome.exit_code()), "{}", report.message);
        (code, report)
    }
}

fn launch(dir: &Path, changes: Value) -> Report {
    Rank::start(dir, &plan(changes), &[]).end().1
}

/// The newest checkpoint's tensors.
fn tensors(dir: &Path) -> pawl_trainer::checkpoint::Tensors {
    let store = pawl_trainer::checkpoint::Store::open(dir.join("checkpoints").to_str().unwrap()).unwrap();
    store.newest(None).unwrap().unwrap().checkpoint.tensors
}

fn losses(report: &Report) -> Vec<f64> {
    report.losses.iter().map(|point| point.loss).collect()
}

/// Checkpoints only at the end (or when asked to stop).
fn saving() -> Value {
    json!({"everySeconds": 1000.0, "keep": 3, "resume": true})
}

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

/// Runs a launch on `ranks` ranks of this machine, under the agent, with checkpoints in `dir`.
fn launch_gang(dir: &Path, ranks: u32, changes: Value) -> Report {
    let work = tempfile::tempdir().unwrap();
    let attempt = AttemptPlan {
        contract: 1,
        job: "test".into(),
        attempt: "test-1".into(),
        replicas: 1,
        ranks_per_replica: ranks,
        gpus_per_replica: 0,
        checks: None,
        command: Vec::new(),
        script: Default::default(),
        gather_seconds: None,
        launches: vec![plan(changes)],
        stop_on_failure: true,
    };
    let mut node = Node::local(work.path().to_owned(), vec![TRAINER.into()]);
    node.checkpoints = dir.join("checkpoints").display().to_string();
    node.data = data();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (_keep, stop) = tokio::sync::watch::channel(Stop::No);
    runtime.block_on(pawl_agent::run(&attempt, node, stop, |_| {})).unwrap();
    pawl_agent::finished_reports(work.path()).unwrap().remove(0)
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
fn a_preflight_proves_the_storage_of_the_training_that_follows() {
    let dir = tempfile::tempdir().unwrap();
    let check = |storage: &Path| {
        let plan = plan(json!({"kind": "Preflight", "checkpoint": saving()}));
        let storage = ("PAWL_CHECKPOINTS", storage.display().to_string());
        Rank::start(dir.path(), &plan, &[storage]).end().1
    };
    let report = check(&dir.path().join("new"));
    assert_eq!(report.outcome, Outcome::Done, "{}", report.message);
    assert_eq!(std::fs::read_dir(dir.path().join("new")).unwrap().count(), 0, "nothing is left");
    std::fs::write(dir.path().join("taken"), "a file").unwrap();
    let report = check(&dir.path().join("taken"));
    assert_eq!(report.outcome, Outcome::CheckpointUnreadable);
    let named = ["checkpoint storage /", "/taken: cannot create the directory: "];
    assert!(named.iter().all(|part| report.message.contains(part)), "{}", report.message);
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
fn numbers_that_explode_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let changes = json!({"settings": {"learningRate": "9.9", "weightDecay": "9.9"}, "budget": {"items": 400}});
    let report = launch(dir.path(), changes);
    assert_eq!(report.outcome, Outcome::NonFinite, "{}", report.message);
    assert!(report.message.contains("at step") && report.message.contains("learningRate"), "{}", report.message);
    let failure = report.failure.unwrap();
    assert!(failure.step < 60 && failure.items == 2 * failure.step && report.losses.len() == failure.step as usize);
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

#[test]
fn what_cannot_fit_is_refused_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let changes = json!({
        "kind": "Preflight", "budget": {"items": null},
        "workload": {"config": {"preset": "full"}}, "settings": {"batchPerGpu": 2000, "compile": "None"}
    });
    let report = launch(dir.path(), changes);
    assert_eq!(report.outcome, Outcome::OutOfMemory);
    assert!(report.message.contains("bytes") && report.message.contains("batch"), "{}", report.message);
    let fits = launch(dir.path(), json!({"kind": "Preflight"}));
    assert_eq!((fits.outcome, fits.measured.steps), (Outcome::Done, 0));
    assert!(fits.measured.predicted_memory_bytes.unwrap() > 1 << 20);
}

#[test]
fn what_this_trainer_cannot_do_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let settings = |settings: Value| json!({"kind": "Preflight", "settings": settings});
    for (changes, outcome, expected) in [
        (settings(json!({"precision": "tf32"})), Outcome::Unsupported, "settings.precision: tf32 needs a GPU"),
        (
            json!({"kind": "Preflight", "workload": {"name": "forex"}, "settings": {"precision": "fp8"}}),
            Outcome::Unsupported,
            "settings.precision: fp8: this workload marks no layers",
        ),
        (settings(json!({"float8Scaling": "Row"})), Outcome::Unsupported, "settings.float8Scaling: only 8-bit floats"),
        (settings(json!({"float8Gradients": "e5m2"})), Outcome::Unsupported, "settings.float8Gradients: only 8-bit"),
        (settings(json!({"sharding": "Zero1"})), Outcome::Unsupported, "settings.sharding: Zero1 needs several ranks"),
        (settings(json!({"optimizerOffload": "Cpu"})), Outcome::Unsupported, "settings.optimizerOffload: Cpu"),
        (settings(json!({"loaderPinned": true})), Outcome::Unsupported, "settings.loaderPinned: true"),
        (settings(json!({"loaderAsyncCopy": true})), Outcome::Unsupported, "settings.loaderAsyncCopy: true"),
        (settings(json!({"nccl": {"NCCL_IB_DISABLE": "0"}})), Outcome::Unsupported, "settings.nccl.NCCL_IB_DISABLE"),
        (settings(json!({"weightQuantization": "Int8"})), Outcome::Unsupported, "settings.weightQuantization"),
        (settings(json!({"ropeCache": "Cached"})), Outcome::Unsupported, "settings.ropeCache"),
        (settings(json!({"gradientClip": "0"})), Outcome::InvalidPlan, "settings.gradientClip"),
        (settings(json!({"globalBatch": 5})), Outcome::InvalidPlan, "globalBatch: 5"),
        (settings(json!({"batchPerGpu": 3})), Outcome::InvalidPlan, "batchPerGpu: 3"),
        (
            settings(json!({"compileScope": {"exclude": ["decoder", "operator/blocks.0/attn", "decode"]}})),
            Outcome::InvalidPlan,
            "compileScope.exclude: decode is not a scope of the model: choose from decoder, ",
        ),
        (json!({"workload": {"name": "upz"}}), Outcome::InvalidPlan, "upz"),
        (json!({"workload": {"config": {"presett": 1}}}), Outcome::InvalidPlan, "presett"),
        (json!({"kind": "Measure"}), Outcome::InvalidPlan, "budget.warmupSteps"),
        (json!({"contract": 9}), Outcome::InvalidPlan, "contract: 9"),
    ] {
        let plan = plan(changes);
        let dir = dir.path();
        let bad_contract = plan.contract != 1;
        let mut rank = Rank::start(dir, &plan, &[]);
        if bad_contract {
            // Before the plan is understood there is no report.
            assert_eq!(rank.child.wait().unwrap().code(), Some(21));
            continue;
        }
        let (_, report) = rank.end();
        assert_eq!(report.outcome, outcome, "{expected}: {}", report.message);
        assert!(report.message.contains(expected), "{expected}: {}", report.message);
    }
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_rank_that_is_given_a_gpu_never_trains_on_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let (code, report) = Rank::start(dir.path(), &plan(json!({})), &[("PAWL_DEVICE", "cuda:0".to_owned())]).end();
    assert_eq!((code, report.outcome, report.measured.steps), (20, Outcome::Unsupported, 0));
    assert!(report.message.contains("spec.trainer.image"), "{}", report.message);
    // Nor does it check for a GPU elsewhere what it could not run there.
    let check = plan(json!({"kind": "Preflight"}));
    let (code, report) = Rank::start(dir.path(), &check, &[("PAWL_DEVICE", "cuda".to_owned())]).end();
    assert_eq!((code, report.outcome), (20, Outcome::Unsupported));
    assert!(report.message.contains("spec.trainer.image"), "{}", report.message);
}

/// One rank without a GPU checks for all: settings that only GPUs have, and what a rank of a gang will take there.
#[test]
#[cfg(feature = "cuda")]
fn a_preflight_needs_no_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let check = |settings: Value, world: u32| {
        let plan = plan(json!({"kind": "Preflight", "settings": settings}));
        let world = world.to_string();
        let environment = [("PAWL_DEVICE", "cuda".to_owned()), ("PAWL_WORLD_SIZE", world)];
        Rank::start(dir.path(), &plan, &environment).end().1
    };
    let alone = check(json!({"precision": "bf16", "attention": "Flash"}), 1);
    assert_eq!(alone.outcome, Outcome::Done, "{}", alone.message);
    assert!(alone.measured.predicted_memory_bytes.unwrap() > 1 << 20);
    let gang = check(json!({"precision": "bf16", "attention": "Flash", "nccl": {"NCCL_MIN_NCHANNELS": "4"}}), 4);
    assert_eq!(gang.outcome, Outcome::Done, "{}", gang.message);
    let unfused = check(json!({"compile": "None"}), 1);
    assert!(unfused.measured.predicted_memory_bytes.unwrap() > alone.measured.predicted_memory_bytes.unwrap());
    let refused = check(json!({"batchPerGpu": 3}), 1);
    assert_eq!(refused.outcome, Outcome::InvalidPlan, "{}", refused.message);
    // What trains needs one.
    let (_, trains) = Rank::start(dir.path(), &plan(json!({})), &[("PAWL_DEVICE", "cuda".to_owned())]).end();
    assert!(trains.outcome == Outcome::InvalidPlan && trains.message.contains("cuda:N"), "{}", trains.message);
}

#[test]
fn storage_that_refuses_is_named_before_training() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("checkpoints"), "in the way").unwrap();
    let report = launch(dir.path(), json!({"checkpoint": saving()}));
    assert_eq!((report.outcome, report.measured.steps), (Outcome::Failed, 0));
    assert!(
        report.message.contains("checkpoint storage") && report.message.contains("directory"),
        "{}",
        report.message
    );
}

#[test]
fn a_plan_can_be_read_before_it_is_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    let plan = plan(json!({"settings": {"attention": "Flash", "precision": "bf16"}}));
    std::fs::write(&file, serde_json::to_vec(&plan).unwrap()).unwrap();
    for (dump, expected) in [("graph", "= attention"), ("kernels", "kernels"), ("memory", "arena")] {
        let output = Command::new(TRAINER).args(["plan", "--dump", dump, "--plan"]).arg(&file).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("program step") && text.contains(expected), "{dump}: {text}");
        assert!(!text.contains("normed_attention"), "only a GPU's kernels normalise heads on their way in: {text}");
    }
    let output = Command::new(TRAINER).args(["plan", "--plan", "/nowhere.json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(21));
}
