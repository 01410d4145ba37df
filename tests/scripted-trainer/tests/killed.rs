//! An attempt whose agent is killed again and again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_agent::{AttemptEnd, AttemptResult, Node, Stop, finished_reports, run};
use pawl_contract::CONTRACT_VERSION;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::AttemptPlan;
use pawl_contract::report::Report;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::watch;

const LAUNCHES: usize = 12;

fn plan() -> AttemptPlan {
    let launch = |index: usize| {
        json!({
            "contract": CONTRACT_VERSION, "job": "job", "attempt": "job-1", "launch": format!("l-{index}"),
            "kind": "Measure", "seed": index, "hangTimeoutSeconds": 30.0, "settings": {"batchPerGpu": 4},
            "budget": {"warmupSteps": 2, "windowSteps": 8},
            "workload": {"name": "scripted", "config": {
                "itemsPerSecond": 100, "noise": 0.1, "stepSeconds": 0.005,
                "faults": [{"fault": "NonFinite", "rank": 1, "atStep": 5, "launch": "l-3"}],
            }},
        })
    };
    serde_json::from_value(json!({
        "contract": CONTRACT_VERSION, "job": "job", "attempt": "job-1", "replicas": 1, "ranksPerReplica": 2,
        "gpusPerReplica": 0, "launches": (0..LAUNCHES).map(launch).collect::<Vec<_>>(), "stopOnFailure": false,
    }))
    .unwrap()
}

async fn play(dir: &Path) -> AttemptResult {
    let (_stop, stopped) = watch::channel(Stop::No);
    let node = Node::local(dir, vec![env!("CARGO_BIN_EXE_scripted-trainer").into()]);
    run(&plan(), node, stopped, |_| {}).await.unwrap()
}

fn finished(dir: &Path) -> BTreeMap<String, Report> {
    let reports = finished_reports(dir).unwrap().into_iter();
    reports.filter(|report| report.outcome.is_evidence()).map(|report| (report.launch.clone(), report)).collect()
}

/// Ranks of the attempt that live.
fn living(dir: &Path) -> usize {
    let plan = format!("PAWL_PLAN={}", dir.display());
    let environments =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| std::fs::read(entry.ok()?.path().join("environ")).ok());
    environments.filter(|of| of.split(|&byte| byte == 0).any(|variable| variable.starts_with(plan.as_bytes()))).count()
}

/// This test runs itself once more as the agent that it kills.
#[tokio::test]
async fn a_killed_agent_goes_on_where_it_was_and_repeats_nothing() {
    const DIR: &str = "PAWL_TEST_KILLED_ATTEMPT";
    if let Ok(dir) = std::env::var(DIR) {
        play(dir.as_ref()).await;
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let whole = tempfile::tempdir().unwrap();
    let expected = play(whole.path()).await;
    let mut known = BTreeMap::new();
    let mut kills = 0;
    let mut moment = 7_u64;
    loop {
        let mut agent = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_agent_goes_on_where_it_was_and_repeats_nothing"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        moment = moment.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let alive_until = Instant::now() + Duration::from_millis(20 + (moment >> 33) % 300);
        let ended = loop {
            // Whatever the moment: never more ranks than one gang has.
            assert!(living(dir.path()) <= 2);
            match agent.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if Instant::now() >= alive_until && kills < 25 => break None,
                None => std::thread::sleep(Duration::from_millis(3)),
            }
        };
        if let Some(status) = ended {
            assert!(status.success());
            break;
        }
        agent.kill().unwrap();
        agent.wait().unwrap();
        kills += 1;
        let now = finished(dir.path());
        for (launch, report) in &known {
            assert_eq!(now.get(launch), Some(report), "{launch} was lost or repeated");
        }
        known = now;
    }
    assert!(kills >= 5, "{kills} kills are too few to prove anything");
    let result = play(dir.path()).await;
    assert_eq!(result.end, AttemptEnd::Complete);
    let said = |result: &AttemptResult| -> Vec<(String, Outcome, Option<f64>)> {
        result.launches.iter().map(|l| (l.launch.clone(), l.outcome, l.measured.items_per_second)).collect()
    };
    assert_eq!(said(&result), said(&expected));
    assert_eq!(result.launches[3].outcome, Outcome::NonFinite);
    assert_eq!(living(dir.path()), 0);
}
