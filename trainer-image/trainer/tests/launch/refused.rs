//! What a launch refuses, and what its preflight finds before.

use crate::{Rank, TRAINER, launch, plan, saving};
use pawl_contract::exit::Outcome;
use pawl_trainer::RefusalKind;
use pawl_trainer::device::Place;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

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
        (
            json!({"kind": "Preflight", "workload": {"name": "forex", "config": {"data": {
                "source": "Parquet", "directory": "/none/bars"}}}}),
            Outcome::InvalidPlan,
            "workload.config.data.directory: /none/bars cannot be read: No such file or directory",
        ),
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
fn what_needs_no_device_is_refused_without_a_launch() {
    let check = |changes: Value| pawl_trainer::check(&plan(changes), 1, Place::Cpu);
    let mut elsewhere = plan(json!({"workload": {"name": "slm"}}));
    elsewhere.workload.config = serde_json::from_value(json!({"size": "tiny", "weights": "/none/model"})).unwrap();
    let refusal = pawl_trainer::check(&elsewhere, 1, Place::Cpu).unwrap_err();
    assert_eq!((refusal.kind, refusal.problem.field.as_str()), (RefusalKind::Unread, "workload.config.weights"));
    let patch = json!({"settings": {"workload": {"operator": {"dept": 1}}}});
    for (changes, kind, field, expected) in [
        (json!({"workload": {"name": "upss"}}), RefusalKind::Invalid, "workload.name", "did you mean ups?"),
        (patch, RefusalKind::Invalid, "workload.config.operator.dept", "did you mean depth?"),
        (json!({"settings": {"globalBatch": 5}}), RefusalKind::Invalid, "settings.globalBatch", "5 "),
        (json!({"settings": {"precision": "tf32"}}), RefusalKind::Unsupported, "", "settings.precision: tf32"),
        (
            json!({"settings": {"compileScope": {"exclude": ["decode"]}}}),
            RefusalKind::Invalid,
            "",
            "compileScope.exclude: decode is not a scope of the model",
        ),
        (
            json!({"workload": {"name": "forex"}, "settings": {"attention": "Flash"}}),
            RefusalKind::Unsupported,
            "settings.attention",
            "Flash has no use here",
        ),
    ] {
        let refusal = check(changes.clone()).unwrap_err();
        assert_eq!((refusal.kind, refusal.problem.field.as_str()), (kind, field), "{changes}: {refusal:?}");
        assert!(refusal.problem.text().contains(expected), "{changes}: {refusal:?}");
    }
    let metrics = check(json!({})).unwrap();
    assert!(metrics.contains(&"loss".to_owned()) && metrics.contains(&"nrmse".to_owned()), "{metrics:?}");
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
