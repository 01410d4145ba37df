//! Launches of the built-in workloads at smoke size, on the CPU of this machine. Each runs once, whatever asks for it.

use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::{LaunchResult, Report};
use pawl_contract::settings::Settings;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

/// A workload at smoke size.
pub struct Smoke {
    pub workload: &'static str,
    pub config: Value,
    pub settings: Value,
    /// Items of a launch of the quality gates: enough to learn several times what the gates allow.
    pub items: u64,
}

/// The smoke size of the workload of an example with this name.
pub fn of(workload: &str) -> Smoke {
    let smoke = |workload, config, settings, items| Smoke { workload, config, settings, items };
    match workload {
        "ups" => smoke("ups", json!({"preset": "smoke"}), json!({"batchPerGpu": 2, "ema": "0.9"}), 400),
        "forex" => {
            let settings = json!({"batchPerGpu": 16, "evalBatch": 64, "learningRate": "3e-3", "warmupSteps": 20});
            smoke("forex", json!({"preset": "smoke"}), settings, 3200)
        }
        "vision-bdh" => {
            let config = json!({"preset": "smoke", "data": {"training": 1024, "validation": 1024, "test": 256}});
            smoke("vision-bdh", config, json!({"batchPerGpu": 16, "learningRate": "1e-3", "warmupSteps": 20}), 2048)
        }
        "slm" => {
            let config = json!({"size": "tiny", "method": "Full", "evaluation": {"windows": 32}});
            smoke("slm", config, json!({"batchPerGpu": 8, "learningRate": "1e-3", "warmupSteps": 10}), 400)
        }
        "atft-gat-fan" => {
            let settings = json!({"batchPerGpu": 128, "evalBatch": 640, "learningRate": "2e-3"});
            smoke("atft-gat-fan", json!({"preset": "smoke"}), settings, 12_800)
        }
        other => panic!("workload {other} has no smoke size here: add one"),
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Run {
    pub kind: LaunchKind,
    /// On top of those of the smoke size.
    pub settings: Value,
    pub seed: u64,
}

/// The report of a launch: of this run or of an earlier one of this process.
pub fn report(smoke: &Smoke, run: &Run) -> Report {
    static KNOWN: Mutex<BTreeMap<String, Report>> = Mutex::new(BTreeMap::new());
    let base: Settings = serde_json::from_value(smoke.settings.clone()).unwrap();
    let compiled = Settings { compile: Some(pawl_contract::settings::Compile::Graph), ..base };
    let settings = compiled.with(&serde_json::from_value(run.settings.clone()).unwrap());
    let budget = match run.kind {
        LaunchKind::Measure => json!({"warmupSteps": 2, "windowSteps": 4}),
        _ => json!({"items": smoke.items}),
    };
    let plan = json!({
        "contract": 1, "job": "gates", "attempt": "gates-1", "launch": "smoke", "kind": run.kind,
        "workload": {"name": smoke.workload, "config": smoke.config}, "settings": settings, "seed": run.seed,
        "budget": budget, "hangTimeoutSeconds": 60.0,
    });
    let mut known = KNOWN.lock().unwrap();
    known.entry(plan.to_string()).or_insert_with(|| launch(&plan)).clone()
}

/// Runs the launch of `plan`.
fn launch(plan: &Value) -> Report {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("plan.json"), plan.to_string()).unwrap();
    let start = Instant::now();
    let mut trainer = Command::new(env!("CARGO_BIN_EXE_pawl"));
    trainer.arg("trainer").env("PAWL_PLAN", at("plan.json")).env("PAWL_REPORT", at("report.json"));
    trainer.env("PAWL_PROGRESS", at("progress.json")).env("PAWL_DATA", data()).env("RUST_LOG", "error");
    assert!(trainer.status().unwrap().success(), "{plan}");
    let report: Report = serde_json::from_slice(&std::fs::read(at("report.json")).unwrap()).unwrap();
    assert_eq!(report.outcome, Outcome::Done, "{plan}: {}", report.message);
    println!(
        "{} {} {} seed {}: {:.1} s",
        plan["workload"]["name"],
        plan["kind"],
        plan["settings"],
        plan["seed"],
        start.elapsed().as_secs_f64()
    );
    report
}

/// Data are made once.
fn data() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("gates-data")
}

/// What the decision core gets to know of a report, for the launch that it has planned.
pub fn result(report: &Report, plan: &LaunchPlan) -> LaunchResult {
    LaunchResult { launch: plan.launch.clone(), ..LaunchResult::from(report) }
}
