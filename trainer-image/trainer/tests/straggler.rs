//! A gang with one slow rank, and a gang that is slow as a whole, by the real programs.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use pawl_agent::{Event, Node, Stop};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::AttemptPlan;
use pawl_contract::progress::Progress;
use pawl_contract::report::Report;
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex};

const TRAINER: &str = env!("CARGO_BIN_EXE_pawl-trainer");

/// A gang of two ranks that trains until `enough` holds. The ranks for which the shell condition `slow` holds are
/// frozen for most of the time, as a device that throttles. Returns the report, the last progress and the metrics of
/// rank 0.
fn gang(
    dir: &Path,
    (slow, stopped, running): (&str, f64, f64),
    enough: impl Fn(&Progress) -> bool + Send + Sync + 'static,
) -> (Report, Progress, String) {
    let launch = json!({
        "contract": 1, "job": "test", "attempt": "test-1", "launch": "one", "kind": "Train", "seed": 42,
        "workload": {"name": "slm", "config": {"size": "tiny", "data": {"tokens": 100_000}, "evaluation": {"windows": 8}}},
        "settings": {"batchPerGpu": 1, "compile": "Graph", "learningRate": "1e-4"},
        "budget": {"items": 1u64 << 40, "evalEveryItems": 1u64 << 40}, "hangTimeoutSeconds": 60.0,
        "checkpoint": {"everySeconds": 1000.0, "keep": 1, "resume": true}
    });
    let attempt = json!({
        "contract": 1, "job": "test", "attempt": "test-1", "replicas": 1, "ranksPerReplica": 2, "gpusPerReplica": 0,
        "launches": [launch], "stopOnFailure": true
    });
    let attempt: AttemptPlan = serde_json::from_value(attempt).unwrap();
    let script = format!(
        "{TRAINER} & rank=$!; trap 'kill -CONT $rank; kill $rank; wait $rank; exit $?' TERM; \
         if {slow}; then while kill -STOP $rank 2>/dev/null; do sleep {stopped}; kill -CONT $rank; \
         sleep {running}; done; fi; wait $rank"
    );
    let mut node = Node::local(dir.join("work"), ["sh", "-c", &script].map(Into::into).into());
    node.checkpoints = dir.join("checkpoints").display().to_string();
    node.data = dir.join("data");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (request, stop) = tokio::sync::watch::channel(Stop::No);
    let seen = Arc::new(Mutex::new(None));
    let (last, work) = (Arc::clone(&seen), dir.join("work"));
    let listen = move |event: Event| {
        if let Event::Progress(progress) = event
            && enough(&progress)
        {
            // The metrics of a launch end with it.
            let metrics = std::fs::read_to_string(work.join("one/metrics.prom")).unwrap_or_default();
            last.lock().unwrap().get_or_insert((*progress, metrics));
            let _ = request.send(Stop::Gracefully);
        }
    };
    runtime.block_on(pawl_agent::run(&attempt, node, stop, listen)).unwrap();
    let report = pawl_agent::finished_reports(&dir.join("work")).unwrap().remove(0);
    let (progress, metrics) = seen.lock().unwrap().take().unwrap();
    (report, progress, metrics)
}

/// Seconds in which a rank did not wait for others.
fn busy(metrics: &str, rank: u32) -> f64 {
    let series = format!("pawl_train_busy_seconds_total{{rank=\"{rank}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap()
}

#[test]
fn a_slow_rank_is_named_because_the_others_wait_for_it() {
    let dir = tempfile::tempdir().unwrap();
    // Windows after it may name no rank, as the launch is stopping.
    let (report, seen, metrics) =
        gang(dir.path(), ("[ $PAWL_RANK = 1 ]", 0.2, 0.05), |now| now.straggler.is_some() || now.windows > 50);
    assert_eq!(report.outcome, Outcome::Stopped, "{}", report.message);
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let found = seen.straggler.unwrap();
    assert!(found.starts_with(&format!("rank 1 on node {node} takes ")), "{found}");
    let (fast, slow) = (busy(&metrics, 0), busy(&metrics, 1));
    assert!(slow > 1.3 * fast, "rank 0 {fast} s, rank 1 {slow} s");
    // Rank 0 measures the time in which it waits.
    assert!(report.measured.collective_wait_share.unwrap() > 0.3, "{:?}", report.measured);
}

#[test]
fn a_gang_that_is_slow_as_a_whole_has_no_straggler() {
    let dir = tempfile::tempdir().unwrap();
    // In a single window, whatever else runs on this machine may have held one of the ranks up.
    let steady = |now: &Progress| now.windows >= 2 && (now.straggler.is_none() || now.windows > 5);
    let (report, seen, _) = gang(dir.path(), ("true", 0.02, 0.02), steady);
    assert_eq!(report.outcome, Outcome::Stopped, "{}", report.message);
    assert_eq!(seen.straggler, None);
}
