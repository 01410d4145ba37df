//! What an attempt is measured with is asked while it runs, and does not hold it up.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod gang;

use gang::{TRAINS, alone, appears, plan, record_in, run_alone};
use pawl_agent::{AttemptEnd, Event, Stop};
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use std::path::Path;
use std::process::Command;
use tempfile::tempdir;

/// An attempt in `dir` of one launch, whose command names an interpreter of Python that is this script of a shell.
fn with_interpreter(dir: &Path, interpreter: &str, script: &str) -> AttemptPlan {
    let path = dir.join("python3");
    // By another process: a program that another thread starts meanwhile would hold the file open for writing.
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod +x "$0""#;
    assert!(Command::new("sh").args(["-c", write]).arg(&path).arg(interpreter).status().unwrap().success());
    let mut plan = plan(1, 1, &["a"], script);
    plan.command[2].insert_str(0, &format!(": {}\n", path.display()));
    plan
}

#[tokio::test]
async fn an_attempt_that_ends_at_once_is_known_with_what_it_was_measured() {
    let dir = tempdir().unwrap();
    let plan = with_interpreter(dir.path(), r#"sleep 0.5; echo '{"torch": "2.8.0"}'"#, "done_well");
    let result = run_alone(&dir.path().join("node"), &plan).await;
    assert_eq!(result.end, AttemptEnd::Complete);
    let provenance = record_in(&dir.path().join("node/checkpoints")).begun.provenance.unwrap();
    assert_eq!(provenance.libraries.get("torch").map(String::as_str), Some("2.8.0"), "{provenance:?}");
}

#[tokio::test]
async fn a_stop_in_the_first_seconds_does_not_wait_for_what_it_is_measured_with() {
    let dir = tempdir().unwrap();
    let asked = dir.path().join("asked");
    let plan = with_interpreter(dir.path(), &format!("touch {}; exec sleep 600", asked.display()), TRAINS);
    let agent = alone(&dir.path().join("node"), &plan);
    agent.sees("a/up-0").await;
    appears(&asked).await;
    let events = std::sync::Arc::clone(&agent.events);
    agent.stop.send(Stop::Gracefully).unwrap();
    assert_eq!(agent.result().await.end, AttemptEnd::Stopped);
    let events = events.lock().unwrap();
    assert!(!events.iter().any(|(_, event)| matches!(event, Event::Warning { .. })), "{events:?}");
    assert_eq!(record_in(&dir.path().join("node/checkpoints")).end.unwrap().end, AttemptEnd::Stopped);
}

#[tokio::test]
async fn an_attempt_that_only_checks_settings_asks_nothing() {
    let dir = tempdir().unwrap();
    let mut plan = plan(1, 1, &["a"], "done_well");
    plan.launches[0].kind = LaunchKind::Preflight;
    run_alone(dir.path(), &plan).await;
    assert_eq!(record_in(&dir.path().join("checkpoints")).begun.provenance, None);
}
