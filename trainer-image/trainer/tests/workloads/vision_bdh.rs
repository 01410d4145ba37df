//! Vision-BDH through the real binary: it learns, the best checkpoint is tested, it resumes bit for bit, and N ranks
//! are one rank that accumulates.

use crate::results::{assert_close, losses, tensors};
use crate::{one_rank, two_ranks};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::report::Report;
use pawl_trainer::checkpoint::Store;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

fn plan(changes: Value) -> LaunchPlan {
    let own = json!({
        "workload": {"name": "vision-bdh", "config": {"preset": "smoke"}},
        "settings": {
            "batchPerGpu": 8, "evalBatch": 32, "compile": "Graph", "parameterLayout": "Linear", "ropeCache": "Cached",
            "learningRate": "2e-3", "warmupSteps": 10,
        },
        "budget": {"items": 32}, "hangTimeoutSeconds": 60.0,
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

/// Starts a rank, and kills it once it has written a checkpoint of a step.
fn kill_after_checkpoint(dir: &Path, plan: &LaunchPlan) {
    std::fs::create_dir_all(dir.join("checkpoints")).unwrap();
    let mut rank = one_rank::command(dir, plan).spawn().unwrap();
    let store = Store::open(dir.join("checkpoints").to_str().unwrap()).unwrap();
    let saved = || store.newest(None).ok().flatten().is_some_and(|found| found.checkpoint.position.step > 0);
    while !saved() {
        assert!(rank.try_wait().unwrap().is_none(), "it ended before it was killed");
        std::thread::sleep(Duration::from_millis(1));
    }
    rank.kill().unwrap();
    assert_eq!(rank.wait().unwrap().code(), None, "killed by a signal");
}

fn metrics(report: &Report) -> &BTreeMap<String, f64> {
    &report.measured.validation.as_ref().unwrap().metrics
}

/// A training long enough to learn, evaluated every 160 items.
fn learning(better: &str) -> Value {
    json!({"budget": {"items": 1600, "evalEveryItems": 160}, "checkpoint": {"best": {"metric": "loss", "better": better}}})
}

#[test]
fn it_learns_and_the_best_checkpoint_is_tested() {
    let dir = tempfile::tempdir().unwrap();
    let report = launch(dir.path(), learning("Smaller"));
    assert_eq!((report.outcome, report.measured.steps), (Outcome::Done, 200), "{}", report.message);
    let of = metrics(&report);
    assert!(of["accuracy"] > 0.8 && of["testAccuracy"] > 0.8, "{of:?}");

    // Where the largest loss counts as the best, weights from near the beginning are tested.
    let dir = tempfile::tempdir().unwrap();
    let worst = launch(dir.path(), learning("Larger"));
    assert_eq!(metrics(&worst)["loss"], of["loss"], "bit for bit");
    assert!(worst.best_checkpoint.unwrap().checkpoint.items < 800);
    assert!(metrics(&report)["testLoss"] + 0.5 < worst.measured.validation.unwrap().metrics["testLoss"], "{of:?}");
}

#[test]
fn the_report_has_epochs_updates_and_memory_by_kind() {
    let dir = tempfile::tempdir().unwrap();
    let changes = json!({"budget": {"items": 48}, "workload": {"config": {"data": {"training": 24}}},
                         "settings": {"accumulationSteps": 2}});
    let report = launch(dir.path(), changes);
    let details = report.details;
    assert_eq!((report.outcome, details.skipped_updates), (Outcome::Done, 0), "{}", report.message);
    let memory = details.memory.unwrap();
    let weights = 4 * 61_306;
    assert_eq!((memory.parameters, memory.gradients), (weights, weights));
    assert!((2 * weights..2 * weights + 1024).contains(&memory.optimizer), "two moments and counters: {memory:?}");
    let sum: u64 = memory.kinds().into_iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(Some(sum), report.measured.predicted_memory_bytes);
    let wall = report.measured.wall_seconds.unwrap();
    for (name, seconds) in [("compile", details.compile_seconds), ("epoch", details.epoch_seconds)] {
        assert!(seconds.is_some_and(|seconds| seconds > 0.0 && seconds < wall), "{name}: {seconds:?} of {wall} s");
    }
    // The third of three updates: two tenths of the warm-up.
    let rate = details.learning_rate.unwrap();
    assert!((rate - 2.0 / 10.0 * 2e-3).abs() < 1e-9 && details.gradient_norm.unwrap() > 0.0, "{rate}");
    let short = launch(tempfile::tempdir().unwrap().path(), json!({"budget": {"items": 16}})).details;
    assert_eq!((short.epoch_seconds, short.memory.unwrap().gradients), (None, 0), "no complete epoch, no accumulation");
}

#[test]
fn a_resumed_run_is_the_run_that_was_never_interrupted() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = |dir: &Path, items: u64| {
        let report = launch(dir, json!({"budget": {"items": items}}));
        assert_eq!((report.outcome, report.measured.items), (Outcome::Done, items), "{}", report.message);
        losses(&report)
    };
    let uninterrupted = run(whole.path(), 48);
    // Within an epoch and the warm-up: until then, the learning rate does not depend on the budget.
    let before = run(parts.path(), 24);
    let after = run(parts.path(), 48);
    assert_eq!((uninterrupted.len(), before.len(), after.len()), (6, 3, 3), "only the rest was trained");
    assert_eq!([before, after].concat(), uninterrupted, "bit for bit");
    assert!(tensors(parts.path()) == tensors(whole.path()), "bit for bit");
}

#[test]
fn a_run_that_was_killed_within_an_epoch_ends_as_one_that_was_not() {
    // Dropout, crops and the order of images depend on the position only. One epoch, so the crash is within it.
    let changes = json!({
        "budget": {"items": 1280}, "settings": {"loaderWorkers": 2, "deterministic": true},
        "workload": {"config": {"data": {"training": 1280}}}, "checkpoint": {"everySeconds": 0.01},
    });
    let (whole, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let uninterrupted = launch(whole.path(), changes.clone());
    kill_after_checkpoint(killed.path(), &plan(changes.clone()));
    let resumed = launch(killed.path(), changes);
    assert_eq!((resumed.outcome, resumed.measured.steps), (Outcome::Done, 160), "{}", resumed.message);
    assert_eq!(metrics(&resumed), metrics(&uninterrupted), "bit for bit");
    assert!(tensors(killed.path()) == tensors(whole.path()), "bit for bit");
}

#[test]
fn every_way_to_run_gives_the_same_losses() {
    let dir = tempfile::tempdir().unwrap();
    let of = |settings: Value| losses(&launch(dir.path(), json!({"checkpoint": null, "settings": settings})));
    let base = of(json!({}));
    for (settings, tolerance) in [
        (json!({"loaderWorkers": 2}), 0.0),
        (json!({"activationCheckpointing": "Selective"}), 0.0),
        (json!({"activationCheckpointing": "Full"}), 0.0),
        (json!({"compile": "None"}), 1e-4),
        (json!({"optimizerKernel": "Fused", "ropeCache": "PerStep", "memoryFormat": "ChannelsLast"}), 1e-4),
        (json!({"parameterLayout": "Raw"}), 1e-4),
        (json!({"workload": {"data": {"augmentOn": "Device"}}}), 1e-4),
        (json!({"workload": {"data": {"placement": "Device"}}}), 1e-4),
        (
            json!({"workload": {"data": {"placement": "Device"}}, "compile": "None", "memoryFormat": "ChannelsLast"}),
            1e-4,
        ),
        (json!({"precision": "bf16"}), 3e-2),
    ] {
        assert_close(&of(settings.clone()), &base, tolerance, &settings.to_string());
    }
}

#[test]
fn images_on_the_device_are_evaluated_alike_and_are_not_in_checkpoints() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let run = |dir: &Path, placement: &str| {
        // Without augmentation nothing is interpolated: the same numbers.
        let data = json!({"placement": placement, "augmentation": "None", "validation": 40});
        launch(dir, json!({"workload": {"config": {"data": data}}}))
    };
    let [host, device] = [("Host", &dirs[0]), ("Device", &dirs[1])].map(|(place, dir)| run(dir.path(), place));
    assert_eq!((host.outcome, device.outcome), (Outcome::Done, Outcome::Done), "{} {}", host.message, device.message);
    for (a, b) in losses(&host).into_iter().zip(losses(&device)) {
        assert!((a - b).abs() < 1e-5 * a, "{a} {b}");
    }
    assert_eq!(metrics(&host)["testAccuracy"], metrics(&device)["testAccuracy"]);
    assert_eq!(metrics(&host)["accuracy"], metrics(&device)["accuracy"]);
    let bytes = |report: &Report| report.details.memory.unwrap().data;
    assert_eq!((bytes(&host), bytes(&device)), (0, 3072 * (256 + 40 + 64)));
    let names = |dir: &Path| tensors(dir).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(dirs[0].path()), names(dirs[1].path()));
}

#[test]
fn images_that_do_not_fit_on_the_device_are_refused_with_a_remedy() {
    let data = json!({"training": 10_000_000, "validation": 10_000_000, "test": 10_000_000, "placement": "Device"});
    let changes = json!({"kind": "Preflight", "budget": {"items": null}, "workload": {"config": {"data": data}}});
    let report = launch(tempfile::tempdir().unwrap().path(), changes);
    assert_eq!(report.outcome, Outcome::OutOfMemory, "{}", report.message);
    for part in ["92160000000 bytes of it are the data set", "data.placement: Host"] {
        assert!(report.message.contains(part), "{}", report.message);
    }
}

#[test]
fn two_ranks_give_the_losses_of_one_that_accumulates() {
    let (alone, gang) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let changes = json!({"budget": {"items": 64}});
    let one = launch(alone.path(), json!({"budget": {"items": 64}, "settings": {"accumulationSteps": 2}}));
    let two = launch_two(gang.path(), changes);
    assert_eq!((two.outcome, two.measured.steps), (Outcome::Done, one.measured.steps), "{}", two.message);
    assert_eq!(losses(&two), losses(&one), "bit for bit");
    assert!(tensors(gang.path()) == tensors(alone.path()), "bit for bit");
    for name in ["accuracy", "testAccuracy"] {
        assert_eq!(metrics(&one)[name], metrics(&two)[name], "{name}");
    }
}
