//! Launches of the real binary on the real workload: learning, ranks, resuming, stopping, refusing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoints;
mod learning;
mod refused;

use pawl_agent::{Node, Stop};
use pawl_contract::plan::{AttemptPlan, LaunchPlan};
use pawl_contract::report::Report;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

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
        events: Vec::new(),
    };
    let mut node = Node::local(work.path().to_owned(), vec![TRAINER.into()]);
    node.checkpoints = dir.join("checkpoints").display().to_string();
    node.data = data();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (_keep, stop) = tokio::sync::watch::channel(Stop::No);
    runtime.block_on(pawl_agent::run(&attempt, node, stop, |_| {})).unwrap();
    pawl_agent::finished_reports(work.path()).unwrap().remove(0)
}
