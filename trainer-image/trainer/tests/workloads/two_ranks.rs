//! One launch of a gang of two ranks on one node, by the real programs.

use pawl_agent::{Node, Stop};
use pawl_contract::plan::{AttemptPlan, LaunchPlan};
use pawl_contract::report::Report;
use std::path::Path;

/// Runs two ranks that keep everything in `dir`, and returns the report of the first.
pub fn run(dir: &Path, plan: LaunchPlan) -> Report {
    let attempt = AttemptPlan {
        contract: 1,
        job: "test".into(),
        attempt: "test-1".into(),
        replicas: 1,
        ranks_per_replica: 2,
        script: Default::default(),
        gather_seconds: None,
        gpus_per_replica: 0,
        checks: None,
        command: Vec::new(),
        launches: vec![plan],
        stop_on_failure: true,
        events: Vec::new(),
    };
    let mut node = Node::local(dir.join("work"), vec![env!("CARGO_BIN_EXE_pawl-trainer").into()]);
    node.checkpoints = dir.join("checkpoints").display().to_string();
    node.data = dir.join("data");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (_keep, stop) = tokio::sync::watch::channel(Stop::No);
    runtime.block_on(pawl_agent::run(&attempt, node, stop, |_| {})).unwrap();
    pawl_agent::finished_reports(&dir.join("work")).unwrap().remove(0)
}
