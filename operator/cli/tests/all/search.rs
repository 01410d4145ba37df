//! `pawl search export` and the search in `pawl status`, from a state directory.

use crate::scene::{Scene, stderr, stdout};
use serde_json::{Value, json};
use std::fs;

/// A state directory of the job `toy` whose search has these trials.
fn searched(trials: Value) -> Scene {
    let scene = Scene::new();
    let job = json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy", "generation": 1},
        "spec": {"workload": {"name": "ups"}, "search": [
            {"name": "quick", "trials": 4, "epochs": 3, "objectives": [{"metric": "loss", "goal": "Minimize"}],
             "parameters": [{"name": "batchPerGpu", "min": "1", "max": "64"}]}]},
    });
    let search = json!([{"name": "quick", "inputHash": "x", "trials": trials,
                         "best": {"trial": 0, "values": ["0.5"], "parameters": {"batchPerGpu": "8"}}}]);
    let document = json!({"format": 1, "specHash": "", "job": job, "status": {"stage": "Searching", "search": search}});
    fs::create_dir_all(scene.state()).unwrap();
    fs::write(scene.state().join("status.json"), document.to_string()).unwrap();
    scene
}

#[test]
fn trials_are_exported_from_a_state_directory() {
    let scene = searched(json!(["C;;0.5;;;8", "O;;;;;64", "T;;;;;16"]));
    let export = |words: &[&str]| scene.output(&[&["search", "export", "--state", ".pawl/toy"], words].concat());
    let printed = export(&[]);
    assert_eq!(printed.status.code(), Some(0), "{}", stderr(&printed));
    let text = stdout(&printed);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(
        lines[0].ends_with("value.loss,parameter.batchPerGpu") && lines[2].contains("Infeasible,OutOfMemory"),
        "{text}"
    );
    let document: Value = serde_json::from_slice(&export(&["--format", "json"]).stdout).unwrap();
    assert_eq!(document["stages"][0]["trials"][0]["values"]["loss"], 0.5);
    let written = export(&["--format", "optuna", "-o", "study.log"]);
    assert_eq!((written.status.code(), stdout(&written).as_str()), (Some(0), "study.log\n"));
    let log = fs::read_to_string(scene.path().join("study.log")).unwrap();
    let again = export(&["-o", "study.log"]);
    assert_eq!(again.status.code(), Some(2), "{}", stdout(&again));
    let problem = "study.log: exists already, and nothing is overwritten: choose another file with --out";
    assert!(stderr(&again).contains(problem), "{}", stderr(&again));
    assert_eq!(fs::read_to_string(scene.path().join("study.log")).unwrap(), log);
    assert!(log.lines().next().unwrap().contains(r#""study_name":"toy/quick""#), "{log}");
}

#[test]
fn without_a_search_or_a_state_nothing_is_exported() {
    let scene = searched(json!([]));
    scene.write_job(|_| {});
    let path = scene.state().join("status.json");
    let mut document: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    document["job"]["spec"]["search"] = json!([]);
    fs::write(&path, document.to_string()).unwrap();
    let output = scene.output(&["search", "export", "job.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("\"toy\" has no search: add spec.search"), "{}", stderr(&output));
    let output = scene.output(&["search", "export", "--state", "nowhere"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn the_status_shows_the_best_trial_and_how_the_others_ended() {
    let scene = searched(json!(["C;;0.5;;;8", "O;;;;;64", "S;1;;1:9;;32", "T;;;;;16"]));
    let text = stdout(&scene.output(&["status", "--state", ".pawl/toy"]));
    for wanted in [
        "quick: 4 of 4 trials: 1 complete, 1 running (trial 3), 1 pruned, 1 infeasible (1 out of memory)",
        "quick: best so far: trial 0: loss 0.5 with batchPerGpu 8",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing from {text}");
    }
}

#[test]
fn a_trial_runs_on_in_one_launch_while_it_cannot_be_stopped() {
    let scene = Scene::new();
    scene.write_job(|job| {
        let spec = &mut job["spec"];
        spec["phases"] = json!([]);
        spec["settings"]["learningRate"] = "1e-3".into();
        spec["search"] = json!([{
            "name": "rates", "trials": 3, "epochs": 4, "sampler": "Random", "finalists": 1,
            "pruner": "Median", "pruning": {"first": 1, "warmup": 0, "least": 5},
            "objectives": [{"metric": "loss", "goal": "Minimize"}],
            "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"}],
        }]);
        spec["train"] = json!({"items": 6400});
    });
    let output = scene.output(&["run", "job.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}\n{}", stdout(&output), stderr(&output));
    // Such as search-0-0bad-t1-n1-4-0badcafe.
    let started = scene.ledger("started");
    let words = started.iter().map(|launch| launch.split('-').collect::<Vec<_>>());
    let trials = words.filter(|words| words.len() > 5 && words[3].starts_with('t') && words[4] != "check");
    let launches: Vec<String> = trials.map(|words| words[3..words.len() - 1].join("-")).collect();
    assert_eq!(
        launches,
        ["t0-n1", "t0-n2-4", "t1-n1-4", "t2-n1-4"],
        "the first launch shows that evaluations are listed"
    );
    let status = scene.status();
    for line in status["search"][0]["trials"].as_array().unwrap() {
        let line = line.as_str().unwrap();
        assert!(["C;", "1:", "2:", "3:"].iter().all(|part| line.contains(part)), "a value after each epoch: {line}");
    }
}
