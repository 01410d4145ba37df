//! The language model through the real binary: it learns, resumes bit for bit, and N ranks are one rank that
//! accumulates.

use crate::results::{assert_close, losses, tensors};
use crate::{one_rank, two_ranks};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::report::Report;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

const TRAINER: &str = env!("CARGO_BIN_EXE_pawl-trainer");

fn plan(changes: Value) -> LaunchPlan {
    let own = json!({
        "workload": {"name": "slm", "config": {"size": "tiny", "data": {"tokens": 100_000}, "evaluation": {"windows": 8}}},
        "settings": {"batchPerGpu": 4, "compile": "Graph", "learningRate": "1e-3"},
        "budget": {"items": 80}, "hangTimeoutSeconds": 60.0,
    });
    one_rank::plan(&own, &changes)
}

/// Runs one rank that keeps everything in `dir`.
fn launch(dir: &Path, changes: Value) -> Report {
    one_rank::run(dir, &plan(changes))
}

/// What `export` says that writes what the plan in `dir` trained to `to`.
fn export(dir: &Path, to: &Path) -> Output {
    let mut command = Command::new(TRAINER);
    command.args(["export", "--plan"]).arg(dir.join("plan.json"));
    command.arg("--checkpoints").arg(dir.join("checkpoints")).arg("--to").arg(to).output().unwrap()
}

#[test]
fn it_learns_and_the_checkpoint_holds_what_learns() {
    let dir = tempfile::tempdir().unwrap();
    let report = launch(dir.path(), json!({"budget": {"items": 400}}));
    assert_eq!((report.outcome, report.measured.steps), (Outcome::Done, 100), "{}", report.message);
    let loss = |validation: Option<pawl_contract::measured::Validation>| validation.unwrap().metrics["loss"];
    let (first, last) = (loss(report.measured.first_validation), loss(report.measured.validation));
    assert!((first - 512f64.ln()).abs() < 0.05 && last < 5.9, "{first} -> {last}");

    let dir = tempfile::tempdir().unwrap();
    let report = launch(dir.path(), json!({"workload": {"config": {"method": "Lora"}}, "budget": {"items": 8}}));
    assert_eq!(report.outcome, Outcome::Done, "{}", report.message);
    let saved = tensors(dir.path());
    assert!(saved.iter().all(|(name, _)| name.contains("lora_") || name.starts_with("adamw.step")), "adapters only");
    let adapters: usize =
        saved.iter().filter(|(name, _)| name.starts_with("base_model.")).map(|(_, a)| a.shape().elements()).sum();
    assert_eq!(adapters, 622_592);
}

/// Exported and read again as weights to start from, the model is the one that was trained, adapters merged.
#[test]
fn an_exported_model_is_the_one_that_was_trained() {
    for method in ["Full", "Lora"] {
        let dir = tempfile::tempdir().unwrap();
        let report = launch(dir.path(), json!({"workload": {"config": {"method": method}}, "budget": {"items": 40}}));
        let to = dir.path().join("model");
        let exported = export(dir.path(), &to);
        assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
        let config: Value = serde_json::from_slice(&std::fs::read(to.join("config.json")).unwrap()).unwrap();
        assert_eq!((&config["hidden_size"], &config["tie_word_embeddings"]), (&json!(128), &json!(true)));
        let again = tempfile::tempdir().unwrap();
        let changes = json!({"workload": {"config": {"weights": to}}, "budget": {"items": 4}});
        let loss = |of: &Option<pawl_contract::measured::Validation>| of.as_ref().unwrap().metrics["loss"];
        let (trained, read) =
            (loss(&report.measured.validation), loss(&launch(again.path(), changes).measured.first_validation));
        assert!((trained - read).abs() < 1e-4 * trained, "{method}: {trained} {read}");
    }
}

/// Adapters fit only the weights that they were trained beside, which are drawn from the seed.
#[test]
fn the_checkpoint_of_another_seed_is_not_exported() {
    let dir = tempfile::tempdir().unwrap();
    let lora = json!({"workload": {"config": {"method": "Lora"}}, "budget": {"items": 4}});
    launch(dir.path(), lora.clone());
    let mut other = plan(lora);
    other.seed = 43;
    std::fs::write(dir.path().join("plan.json"), serde_json::to_vec(&other).unwrap()).unwrap();
    let to = dir.path().join("model");
    let refused = export(dir.path(), &to);
    assert_eq!(refused.status.code(), Some(i32::from(Outcome::InvalidPlan.exit_code())));
    let says = String::from_utf8_lossy(&refused.stderr);
    assert!(says.contains("another seed (42, not 43)"), "{says}");
    assert!(!to.exists());
}

#[test]
fn a_resumed_run_is_the_run_that_was_never_interrupted() {
    for method in ["Full", "Lora"] {
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let of = |every: f64| json!({"workload": {"config": {"method": method}}, "budget": {"items": 24}, "checkpoint": {"everySeconds": every}});
        launch(whole.path(), of(1000.0));
        // A checkpoint after every step; the later ones are then taken away, as if the machine had died.
        launch(parts.path(), of(0.0));
        let resumed = json!({"workload": {"config": {"method": method}}, "budget": {"items": 24}, "checkpoint": {"resumeNotAfterItems": 12}});
        let report = launch(parts.path(), resumed);
        assert_eq!((report.outcome, report.measured.items), (Outcome::Done, 24), "{}", report.message);
        assert!(losses(&report).len() <= 6 && tensors(parts.path()) == tensors(whole.path()), "{method}: bit for bit");
    }
}

#[test]
fn every_way_to_run_gives_the_same_losses() {
    let dir = tempfile::tempdir().unwrap();
    let lora = json!({"workload": {"config": {"method": "Lora"}}, "budget": {"items": 24}, "checkpoint": null});
    let of = |settings: Value| {
        let mut changes = lora.clone();
        changes["settings"] = settings;
        losses(&launch(dir.path(), changes))
    };
    let base = of(json!({}));
    for (settings, tolerance) in [
        (json!({"loaderWorkers": 2}), 0.0),
        (json!({"activationCheckpointing": "Selective"}), 0.0),
        (json!({"activationCheckpointing": "Full"}), 0.0),
        (json!({"compile": "None"}), 1e-4),
        (json!({"optimizerKernel": "Fused", "attention": "Flash", "ropeCache": "Cached"}), 1e-4),
        (json!({"precision": "bf16"}), 1e-2),
        (json!({"precision": "fp16"}), 1e-2),
        (json!({"weightQuantization": "Int8"}), 1e-2),
    ] {
        assert_close(&of(settings.clone()), &base, tolerance, &settings.to_string());
    }
}

#[test]
fn two_ranks_give_the_losses_of_one_that_accumulates() {
    let dialogues = json!({
        "workload": {"config": {"data": {"source": "Dialogues", "layout": "Padded"}}},
        "budget": {"items": 16},
    });
    for changes in [json!({"budget": {"items": 40}}), dialogues] {
        let alone = tempfile::tempdir().unwrap();
        let mut accumulating = changes.clone();
        accumulating["settings"] = json!({"accumulationSteps": 2});
        let one = launch(alone.path(), accumulating);
        let gang = tempfile::tempdir().unwrap();
        let two = launch_two(gang.path(), changes);
        assert_eq!((two.outcome, two.measured.steps), (Outcome::Done, one.measured.steps), "{}", two.message);
        assert_eq!(losses(&two), losses(&one), "bit for bit");
        assert!(tensors(gang.path()) == tensors(alone.path()), "bit for bit");
        let metrics = |report: &Report| report.measured.validation.as_ref().unwrap().metrics.clone();
        let names: Vec<_> =
            metrics(&two).into_keys().filter(|name| metrics(&one)[name] == metrics(&two)[name]).collect();
        let counted = names.iter().filter(|name| name.starts_with("top") || *name == "macroF1").count();
        assert_eq!(counted, if metrics(&one).contains_key("top1") { 4 } else { 0 }, "{names:?} are equal");
    }
}

/// Runs a gang of two ranks that keeps everything in `dir`.
fn launch_two(dir: &Path, changes: Value) -> Report {
    two_ranks::run(dir, plan(changes))
}
