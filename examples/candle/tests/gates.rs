//! Every gate of every manifest of the example can pass and can fail: a run of each kind is trained with the gates and
//! the seeds of the manifest, by the program at smoke size on the CPU of this machine, and judged by the decision core.
//!
//! The speed of a measurement is planted: it decides nothing here, and on a busy machine a short window isn't steady.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../../operator/cli/tests/gates/decided.rs"]
mod decided;

use pawl_api::TrainingJob;
use pawl_api::status::PhaseState;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::{LaunchResult, Report};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Items of a quality launch of the manifest for GPUs, with the network of the CPU's: enough to learn four times what
/// its gate allows.
const SMOKE_ITEMS: u64 = 4096;

fn manifests() -> Vec<PathBuf> {
    let files = std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|it| it == "yaml")).collect();
    found.sort();
    found
}

/// The job of a manifest at smoke size, with a phase that learns as well as the baseline, and one that learns nothing.
fn planted(manifest: &Path) -> TrainingJob {
    let text = std::fs::read_to_string(manifest).unwrap();
    let mut job = pawl_manifest::parse(&text, &manifest.display().to_string()).unwrap();
    let spec = &mut job.spec;
    if spec.trainer.gpus_per_replica > 0 {
        spec.workload.config.insert("hidden".to_owned(), json!(64));
        spec.trainer.gpus_per_replica = 0;
        spec.settings.batch_per_gpu = Some(64);
        spec.settings.global_batch = Some(64);
        spec.analysis.quality_items = Some(SMOKE_ITEMS);
    }
    let phase = |name: &str, settings: Value| {
        serde_json::from_value(json!({"name": name, "minSpeedup": "0.1", "numerics": "Changed", "settings": settings}))
            .unwrap()
    };
    spec.phases = vec![
        phase("passes", json!({"workload": {"arithmetic": "f64"}})),
        phase("fails", json!({"learningRate": "1e-9"})),
    ];
    job
}

/// What a launch reports: of a measurement the planted speed, otherwise what the program does.
fn launched(plan: &LaunchPlan) -> LaunchResult {
    if plan.kind == LaunchKind::Measure { measured(plan) } else { ran(plan) }
}

fn measured(plan: &LaunchPlan) -> LaunchResult {
    let steps = plan.budget.warmup_steps.unwrap() + plan.budget.window_steps.unwrap();
    let items = steps * u64::from(plan.settings.batch_per_gpu.unwrap());
    let result = json!({
        "launch": plan.launch, "outcome": "Done", "steps": steps, "items": items, "itemsPerSecond": 1000.0, "loss": 1.0,
    });
    serde_json::from_value(result).unwrap()
}

fn ran(plan: &LaunchPlan) -> LaunchResult {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("plan.json"), serde_json::to_vec(plan).unwrap()).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_pawl-example-candle"));
    program.env("PAWL_PLAN", at("plan.json")).env("PAWL_REPORT", at("report.json"));
    program.env("PAWL_PROGRESS", at("progress.json")).env("PAWL_CHECKPOINTS", at("checkpoints"));
    program.env("RUST_LOG", "warn").env("RAYON_NUM_THREADS", "1");
    assert!(program.status().unwrap().success(), "{plan:?}");
    let report: Report = serde_json::from_slice(&std::fs::read(at("report.json")).unwrap()).unwrap();
    assert_eq!(report.outcome, Outcome::Done, "{}", report.message);
    LaunchResult { launch: plan.launch.clone(), ..LaunchResult::from(&report) }
}

#[test]
fn every_gate_of_every_manifest_passes_and_fails() {
    let manifests = manifests();
    assert!(!manifests.is_empty());
    for manifest in manifests {
        let job = planted(&manifest);
        let gates = serde_json::to_value(&job.spec.gates).unwrap();
        let names: Vec<&str> = gates.as_object().unwrap().keys().map(String::as_str).collect();
        let manifest = manifest.display();
        assert_eq!(
            names,
            ["validationLossDelta"],
            "{manifest}: plant a run that passes and one that fails for each new gate"
        );
        let status = decided::judged(&job, &launched);
        let (_, text) = decided::verdict(&status);
        println!("{manifest}: {text}");
        let [passes, fails] = &status.phases[..] else { panic!("{manifest}: {text}") };
        assert_eq!(passes.state, PhaseState::Accepted, "{manifest}: {text}");
        assert_eq!(
            (fails.state, fails.reason.as_str()),
            (PhaseState::RolledBack, "QualityBelowThreshold"),
            "{manifest}: {text}"
        );
        assert!(names.iter().all(|gate| fails.message.contains(gate)), "{manifest}: {text}");
        assert_eq!(status.bundle.as_ref().unwrap().reason, "GoalMet", "{manifest}: {text}");
    }
}
