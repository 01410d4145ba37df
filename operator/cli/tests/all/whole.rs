//! Undisturbed runs.

use crate::scene::{Scene, stderr, stdout};
use serde_json::{Value, json};

#[test]
fn a_run_in_a_pipe_judges_trains_and_shows_the_evidence() {
    let scene = Scene::new();
    scene.write_job(|_| {});
    let output = scene.output(&["run", "job.yaml"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", stderr(&output));
    assert!(!text.contains('\u{1b}') && !text.contains('\r'), "escapes in a pipe:\n{text}");
    let line = |start: &str| text.lines().rfind(|line| line.starts_with(start)).unwrap_or_default();
    assert!(line("graph ").contains("✓ accepted") && line("graph ").contains("1.5"), "{text}");
    assert!(line("slow ").contains("rolled back"), "{text}");
    assert!(line("batch ").contains("accepted (fallback 1)"), "{text}");
    assert!(text.contains("compile: Graph (was default)") && text.contains("batchPerGpu: 16 (was 8)"), "{text}");
    assert!(
        text.contains("checkpoint .pawl/toy/checkpoints/") && text.contains("report     .pawl/toy/report.html"),
        "{text}"
    );
    assert!(scene.state().join("report.html").exists());

    // A completed job: another run starts nothing and prints the same result.
    let started = scene.ledger("started").len();
    let again = scene.output(&["run", "job.yaml"]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    assert_eq!(scene.ledger("started").len(), started, "a job that was complete started something");
    assert_eq!(scene.ledger("repeated"), [""; 0]);

    let status = scene.output(&["status", "job.yaml"]);
    assert!(stdout(&status).contains("accepted (fallback 1)"), "{}", stdout(&status));
    let replayed = scene.output(&["replay", "job.yaml"]);
    assert!(stdout(&replayed).ends_with("\nEach verdict is the recorded one.\n"), "{}", stdout(&replayed));
    let page = scene.output(&["report", "--state", ".pawl/toy", "-o", "-"]);
    assert!(stdout(&page).starts_with("<!DOCTYPE html>"), "{}", stderr(&page));
}

#[test]
fn a_training_that_pays_for_no_verdict_is_done_with_the_baseline_and_says_so() {
    let scene = Scene::new();
    scene.write_job(|job| {
        job["spec"]["analysis"].as_object_mut().unwrap().remove("budgetPercent");
        job["spec"]["train"]["items"] = json!(6400);
    });
    let output = scene.output(&["run", "job.yaml"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", stderr(&output));
    assert!(text.contains("No phase was judged: the default of analysis.budgetPercent does not pay for it"), "{text}");
    assert!(text.contains("budgetPercent: Unlimited"), "{text}");
    let status = scene.status();
    let reasons: Vec<_> = status["phases"].as_array().unwrap().iter().map(|phase| &phase["reason"]).collect();
    assert_eq!(reasons, ["BudgetSpent"; 3]);
    assert_eq!(status["stage"], "Complete");
}

#[test]
fn json_is_one_document_and_equals_the_state() {
    let scene = Scene::new();
    scene.write_job(|job| job["spec"]["phases"] = json!([]));
    let output = scene.output(&["run", "job.yaml", "--output", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["status"], scene.status());
    assert_eq!(document["job"], "toy");
    for path in ["state", "status", "events", "report", "checkpoint"] {
        let path = document["paths"][path].as_str().unwrap();
        assert!(std::path::Path::new(path).exists(), "{path}");
    }
    assert!(!output.stderr.is_empty(), "progress goes to standard error");
    let quiet = scene.output(&["run", "job.yaml", "--output", "yaml", "--quiet"]);
    assert!(quiet.stderr.is_empty(), "{}", stderr(&quiet));
    assert!(stdout(&quiet).contains("stage: Complete"), "{}", stdout(&quiet));
}

#[test]
fn recorded_launches_are_judged_by_other_gates_and_none_is_run() {
    let scene = Scene::new();
    let graph = json!([{"name": "graph", "settings": {"compile": "Graph"}}]);
    scene.write_job(|job| job["spec"]["phases"] = graph.clone());
    assert_eq!(scene.output(&["run", "job.yaml"]).status.code(), Some(0));
    let started = scene.ledger("started").len();
    scene.write_job(|job| {
        job["spec"]["phases"] = graph.clone();
        job["spec"]["phases"][0]["minSpeedup"] = json!("3");
    });
    let output = scene.output(&["replay", "--state", ".pawl/toy", "--gates", "job.yaml"]);
    let text = stdout(&output);
    assert!(text.contains("graph: RolledBack (SpeedBelowThreshold); recorded: Accepted ("), "{text}");
    let output = scene.output(&["replay", "--state", ".pawl/toy", "--gates", "job.yaml", "--output", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [graph, ..] = &document["verdicts"].as_array().unwrap()[..] else { panic!("{document}") };
    assert_eq!((&graph["recorded"]["state"], &graph["replayed"]["state"]), (&json!("Accepted"), &json!("RolledBack")));
    assert!(output.stderr.is_empty() && document.get("differs").is_none(), "{}", stderr(&output));
    scene.write_job(|job| job["metadata"]["name"] = json!("other"));
    let output = scene.output(&["replay", "--state", ".pawl/toy", "--gates", "job.yaml", "--output", "json"]);
    let warning = stderr(&output);
    assert!(warning.starts_with("warning: these are the records of job toy ("), "{warning}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["differs"], json!(["metadata.name: \"other\", recorded: \"toy\""]));
    assert_eq!(scene.ledger("started").len(), started, "a launch was run");
    assert_eq!(scene.status()["phases"][0]["state"], "Accepted", "the record is as it was");
}

#[test]
fn a_missed_gate_and_a_failed_job_have_their_own_exit_codes() {
    let scene = Scene::new();
    scene.write_job(|job| {
        job["spec"]["phases"] = json!([{"name": "graph", "settings": {"compile": "Graph"}}]);
        job["spec"]["gates"] = json!({"overallSpeedup": "5"});
    });
    let output = scene.output(&["run", "job.yaml"]);
    assert_eq!(output.status.code(), Some(3), "{}\n{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("Degraded"), "{}", stdout(&output));

    let scene = Scene::new();
    scene.write_job(|job| {
        job["spec"]["phases"] = json!([]);
        job["spec"]["workload"]["config"]["faults"] = json!([{"fault": "InvalidPlan"}]);
    });
    let output = scene.output(&["run", "job.yaml"]);
    assert_eq!(output.status.code(), Some(1), "{}\n{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("Failed"), "{}", stdout(&output));

    let scene = Scene::new();
    scene.write_job(|job| job["spec"]["suspend"] = json!(true));
    let output = scene.output(&["run", "job.yaml"]);
    assert_eq!(output.status.code(), Some(3), "{}\n{}", stdout(&output), stderr(&output));
    assert_eq!(scene.ledger("started"), [""; 0]);
}

#[test]
fn a_changed_manifest_is_a_new_generation_and_repeats_only_affected_evaluations() {
    let scene = Scene::new();
    scene.write_job(|job| job["spec"]["phases"].as_array_mut().unwrap().truncate(1));
    assert_eq!(scene.output(&["run", "job.yaml"]).status.code(), Some(0));
    let before = scene.ledger("started");
    scene.write_job(|job| job["spec"]["phases"].as_array_mut().unwrap().truncate(2));
    let output = scene.output(&["run", "job.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(scene.status()["observedGeneration"], 2);
    let after = &scene.ledger("started")[before.len()..];
    assert!(after.iter().any(|launch| launch.starts_with("slow-")), "{after:?}");
    assert!(!after.iter().any(|launch| launch.starts_with("graph-")), "measured again: {after:?}");
}
