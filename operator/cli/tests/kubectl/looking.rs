//! status, report, logs, completion.

use crate::api::{Answer, Api, JOBS, job, list, one_job};
use crate::program::Program;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn status_is_the_table_of_pawl_run_and_a_document_for_programs() {
    let api = one_job();
    let program = Program::new(&api);
    for (name, words) in [("kubectl-pawl", &["status", "toy"][..]), ("pawl", &["kubectl", "status", "tj/toy"])] {
        let printed = program.run(name, words);
        assert_eq!(printed.code, Some(0), "{}", printed.err);
        let line = |start: &str| printed.out.lines().find(|line| line.starts_with(start)).unwrap_or_default();
        assert!(line("compile").contains("✓ accepted") && line("compile").contains("[1.40, 1.60]"), "{}", printed.out);
        assert!(line("slow").contains("↩ rolled back"), "{}", printed.out);
        assert!(line("training").contains("50 steps, 400 items"), "{}", printed.out);
        assert_eq!(printed.err, "");
    }
    let json: Value = serde_json::from_str(&program.pawl(&["status", "toy", "-o", "json"]).out).unwrap();
    assert_eq!((&json["job"], &json["namespace"]), (&json!("toy"), &json!("team")));
    assert_eq!(json["status"]["phases"][0]["speedup"]["lower"], "1.4");
    assert!(program.pawl(&["status", "toy", "--output", "yaml"]).out.contains("stage: Training"));
    assert_eq!(api.writes().len(), 0);
}

#[test]
fn the_namespace_is_the_flags_or_the_contexts() {
    let api = one_job();
    let program = Program::new(&api);
    for (flags, namespace) in [
        (&["-n", "mine"][..], "mine"),
        (&["--context", "other"], "elsewhere"),
        (&["--context", "other", "--namespace", "mine"], "mine"),
        (&[], "team"),
    ] {
        program.pawl(&[&["status", "toy"], flags].concat());
        let path = &api.asked().into_iter().rfind(|asked| asked.path.ends_with("/toy")).unwrap().path;
        assert!(path.contains(&format!("/namespaces/{namespace}/")), "{flags:?}: {path}");
    }
}

#[test]
fn a_watch_ends_with_the_job_and_with_the_exit_code_of_pawl_run() {
    for (stage, degraded, code) in
        [("Complete", false, 0), ("Complete", true, 3), ("Failed", false, 1), ("Suspended", false, 3)]
    {
        let watches = Arc::new(AtomicU32::new(0));
        let api = Api::start(move |asked| {
            if !asked.watches() {
                return if asked.path == JOBS { list(&[job()]) } else { Answer::Json(job()) };
            }
            let mut changed = job();
            // Once as before, then at rest.
            if watches.fetch_add(1, Ordering::SeqCst) > 0 {
                changed["status"]["stage"] = json!(stage);
                changed["status"]["conditions"] = json!([{"type": "Degraded", "status": if degraded { "True" } else { "False" },
                    "reason": "GoalMissed", "message": "1.5 is below 2", "lastTransitionTime": "2026-01-05T10:04:00Z"}]);
            }
            Answer::Json(json!({"type": "MODIFIED", "object": changed}))
        });
        let printed = Program::new(&api).pawl(&["status", "toy", "--watch"]);
        assert_eq!(printed.code, Some(code), "{stage}: {}\n{}", printed.out, printed.err);
        // A line while it goes on, told once, and the table at the end.
        assert_eq!(printed.out.matches("training: 41%").count(), 1, "{}", printed.out);
        assert!(
            printed.out.contains("PHASE") && printed.out.to_lowercase().contains(&stage.to_lowercase()),
            "{}",
            printed.out
        );
    }
}

#[test]
fn a_job_that_is_deleted_ends_the_watch() {
    let api = Api::start(|asked| match (asked.path.as_str(), asked.watches()) {
        (JOBS, false) => list(&[job()]),
        (_, true) => Answer::Json(json!({"type": "DELETED", "object": job()})),
        _ => Answer::Json(job()),
    });
    let printed = Program::new(&api).pawl(&["status", "toy", "-w"]);
    assert_eq!(printed.code, Some(2), "{}", printed.err);
    assert!(printed.err.contains("\"toy\" was deleted"), "{}", printed.err);
}

#[test]
fn a_report_is_a_page_with_the_clusters_events_of_this_job_alone() {
    let event = |uid: &str, message: &str| {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": message, "namespace": "team"}, "type": "Warning",
               "reason": "RolledBack", "message": message, "eventTime": "2026-01-05T10:04:00.000000Z",
               "involvedObject": {"kind": "TrainingJob", "name": "toy", "uid": uid}})
    };
    let api = Api::start(move |asked| match asked.path.as_str() {
        "/api/v1/namespaces/team/events" => {
            list(&[event("11", "phase-slow-is-pinned"), event("10", "of-an-earlier-job")])
        }
        _ => Answer::Json(job()),
    });
    let program = Program::new(&api);
    let printed = program.pawl(&["report", "toy"]);
    assert_eq!((printed.code, printed.out.as_str()), (Some(0), "toy.html\n"), "{}", printed.err);
    let page = std::fs::read_to_string(program.path().join("toy.html")).unwrap();
    for wanted in ["<!DOCTYPE html>", "compile-p0-b", "[1.40, 1.60]", "phase-slow-is-pinned"] {
        assert!(page.contains(wanted), "{wanted} is missing");
    }
    assert!(!page.contains("of-an-earlier-job"));
    assert_eq!(program.pawl(&["report", "toy", "-o", "-"]).out, page);
    let asked = api.asked();
    let events = asked.iter().find(|asked| asked.path.ends_with("/events")).unwrap();
    assert!(events.query.contains("involvedObject.name%3Dtoy"), "{}", events.query);
}

#[test]
fn a_report_has_the_curves_in_the_records_that_were_copied() {
    const RECORD: &str = include_str!("../../../../tests/fuzz/corpus/record/trains");
    let api = Api::start(|asked| match asked.path.as_str() {
        "/api/v1/namespaces/team/events" => list(&[]),
        _ => Answer::Json(job()),
    });
    let program = Program::new(&api);
    let report = |more: &[&str]| program.pawl(&[&["report", "toy", "-o", "-"], more].concat());
    let curves = |page: &str| page.contains("<h4>Training loss</h4>");
    assert!(!curves(&report(&[]).out));
    let folder = program.path().join("toy/.pawl/_records/attempts");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("toy-3.jsonl"), RECORD.replace("7f3a", "11")).unwrap();
    let printed = report(&[]);
    assert!(curves(&printed.out) && printed.err.is_empty(), "{}", printed.err);
    assert!(curves(&report(&["--records", "toy"]).out));
    std::fs::write(folder.join("toy-3.jsonl"), RECORD).unwrap();
    let printed = report(&[]);
    assert!(!curves(&printed.out) && printed.err.contains("another job of this name"), "{}", printed.err);
    // Its agent did not know the job's.
    std::fs::write(folder.join("toy-3.jsonl"), RECORD.replace("7f3a", "")).unwrap();
    assert!(curves(&report(&[]).out));
    let printed = report(&["--records", "nowhere"]);
    assert!(printed.code == Some(2) && printed.err.contains("kubectl pawl fetch"), "{}", printed.err);
}

#[test]
fn the_launches_in_a_status_are_judged_anew_and_nothing_is_written() {
    const LADDER: &str = include_str!("../../../../tests/device/ladders/slm-fp8.json");
    let recorded = || {
        let record: Value = serde_json::from_str(LADDER).unwrap();
        let mut job = record["job"]["job"].clone();
        job["status"] = record["job"]["status"].clone();
        job
    };
    let api = Api::start(move |_| Answer::Json(recorded()));
    let printed = Program::new(&api).pawl(&["replay", "slm-fp8"]);
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    assert!(printed.out.ends_with("\nEach verdict is the recorded one.\n"), "{}", printed.out);
    assert!(api.asked().iter().all(|asked| asked.method == "GET"));
}

#[test]
fn the_trials_of_a_search_are_exported_from_the_status() {
    let searched = || {
        let mut job = job();
        job["spec"]["search"] = json!([{"name": "quick", "trials": 4, "epochs": 3, "parameters": [{"name": "batchPerGpu", "min": "1", "max": "64"}],
                                        "objectives": [{"metric": "loss", "goal": "Minimize"}]}]);
        job["status"]["search"] = json!([{"name": "quick", "inputHash": "x", "trials": ["C;;0.5;;;8", "T;;;;;16"]}]);
        job
    };
    let api = Api::start(move |_| Answer::Json(searched()));
    let program = Program::new(&api);
    let printed = program.pawl(&["search", "export", "toy"]);
    assert_eq!((printed.code, printed.out.lines().count()), (Some(0), 3), "{}\n{}", printed.out, printed.err);
    let printed = program.pawl(&["search", "export", "tj/toy", "--format", "optuna", "--out", "toy.log"]);
    assert_eq!((printed.code, printed.out.as_str()), (Some(0), "toy.log\n"), "{}", printed.err);
    assert!(std::fs::read_to_string(program.path().join("toy.log")).unwrap().contains("toy/quick"));
    assert_eq!(api.writes().len(), 0);

    let api = one_job();
    let printed = Program::new(&api).pawl(&["search", "export", "toy"]);
    assert_eq!(printed.code, Some(2));
    assert!(printed.err.contains("\"toy\" has no search"), "{}", printed.err);
}

fn pod(index: u32, exit_code: Option<i32>) -> Value {
    let state = match exit_code {
        Some(code) => json!({"terminated": {"exitCode": code, "finishedAt": "2026-01-05T10:04:00Z"}}),
        None => json!({"running": {"startedAt": "2026-01-05T10:00:00Z"}}),
    };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("toy-4-{index}-abcde"), "labels": {
               "pawl.dev/job": "toy", "pawl.dev/attempt": "toy-4",
               "batch.kubernetes.io/job-completion-index": index.to_string()}},
           "status": {"containerStatuses": [{"name": "trainer", "image": "", "imageID": "", "ready": false,
                                              "restartCount": 0, "state": state}]}})
}

#[test]
fn the_log_is_that_of_the_pod_that_failed_first() {
    let api = Api::start(|asked| match asked.path.as_str() {
        "/api/v1/namespaces/team/pods" => list(&[pod(0, Some(40)), pod(1, Some(10))]),
        path if path.ends_with("/log") => Answer::Text(200, format!("log of {path}\n[rank 5] out of memory\n")),
        _ => Answer::Json(job()),
    });
    let program = Program::new(&api);
    for follow in [&[][..], &["-f"]] {
        let printed = program.pawl(&[&["logs", "toy", "--tail", "9"], follow].concat());
        assert_eq!(printed.code, Some(0), "{}", printed.err);
        assert!(printed.out.contains("/pods/toy-4-1-abcde/log\n[rank 5] out of memory"), "{}", printed.out);
        assert!(printed.err.contains("failed first (OutOfMemory, exit code 10)"), "{}", printed.err);
        let last = api.asked().pop().unwrap();
        assert!(last.query.contains("container=trainer") && last.query.contains("tailLines=9"), "{}", last.query);
        assert_eq!(last.query.contains("follow=true"), !follow.is_empty(), "{}", last.query);
    }
}

#[test]
fn the_log_of_one_rank_is_found_in_its_pod_and_is_its_own() {
    let api = Api::start(|asked| match asked.path.as_str() {
        "/api/v1/namespaces/team/pods" => list(&[pod(0, None), pod(1, None)]),
        path if path.ends_with("/log") => {
            Answer::Text(200, format!("{path}\n[rank 4] a\n[rank 6] b\n[rank 6] c\n[rank 7] d\n"))
        }
        _ => Answer::Json(job()),
    });
    let program = Program::new(&api);
    // Four ranks a pod.
    let printed = program.pawl(&["logs", "toy", "--rank", "6"]);
    assert!(
        printed.out.ends_with("/pods/toy-4-1-abcde/log\n[rank 6] b\n[rank 6] c\n"),
        "{}\n{}",
        printed.out,
        printed.err
    );
    assert_eq!(program.pawl(&["logs", "toy", "--rank", "6", "--tail", "1"]).out, "[rank 6] c\n");
    let printed = program.pawl(&["logs", "toy", "--rank", "8"]);
    assert!(printed.code == Some(2) && printed.err.contains("no rank 8: it has 8, from 0"), "{}", printed.err);
}

#[test]
fn the_log_of_one_of_several_attempts_is_found_by_its_name_or_number() {
    let of = |attempt: u32| {
        let mut pod = pod(0, None);
        pod["metadata"]["name"] = format!("toy-{attempt}-0-abcde").into();
        pod["metadata"]["labels"]["pawl.dev/attempt"] = format!("toy-{attempt}").into();
        pod
    };
    let api = Api::start(move |asked| match asked.path.as_str() {
        "/api/v1/namespaces/team/pods" => list(&[of(4), of(12), of(11)]),
        path if path.ends_with("/log") => Answer::Text(200, format!("{path}\n")),
        _ => Answer::Json(job()),
    });
    let program = Program::new(&api);
    for (attempt, pod) in [("toy-11", "toy-11-0-abcde"), ("4", "toy-4-0-abcde")] {
        let printed = program.pawl(&["logs", "toy", "--attempt", attempt]);
        assert!(printed.out.ends_with(&format!("/pods/{pod}/log\n")), "{}\n{}", printed.out, printed.err);
    }
    let printed = program.pawl(&["logs", "toy", "--attempt", "toy-5"]);
    assert_eq!(printed.code, Some(2));
    let known = r#"no pods of attempt "toy-5" now; it has pods of toy-4, toy-11, toy-12"#;
    assert!(printed.err.contains(known), "{}", printed.err);
}

#[test]
fn the_error_for_a_job_without_pods_contains_its_stage() {
    let api = one_job();
    let printed = Program::new(&api).pawl(&["logs", "toy"]);
    assert_eq!(printed.code, Some(2));
    assert!(printed.err.contains("no pods now") && printed.err.contains("Training"), "{}", printed.err);
}

#[test]
fn completion_knows_commands_flags_jobs_and_phases() {
    let api = one_job();
    let program = Program::new(&api);
    let candidates = |words: &[&str]| {
        let printed = program.run("kubectl_complete-pawl", words);
        let (names, rest) = printed.out.rsplit_once(':').unwrap();
        let names: Vec<_> = names.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect();
        (names, rest.trim().to_owned())
    };
    let (commands, directive) = candidates(&["s"]);
    assert_eq!((commands, directive.as_str()), (["status", "search", "suspend"].map(str::to_owned).to_vec(), "4"));
    assert_eq!(candidates(&["search", "export", "t"]).0, ["toy"]);
    assert_eq!(candidates(&["status", ""]).0.first().unwrap(), "toy");
    assert_eq!(candidates(&["-n", "team", "logs", "t"]).0, ["toy"]);
    assert_eq!(candidates(&["pin", "toy", "--phase", "c"]).0, ["compile"]);
    assert!(candidates(&["status", "--wa"]).0.contains(&"--watch".to_owned()));
    for files in [&["preflight", "-f", ""][..], &["preflight", "job"]] {
        assert_eq!(candidates(files).1, "0", "{files:?}");
    }
    assert_eq!(candidates(&["preflight", "-o", ""]).1, "4");
    for shell in ["bash", "zsh", "fish"] {
        let script = program.pawl(&["completion", shell]);
        assert!(script.code == Some(0) && script.out.contains("kubectl-pawl"), "{shell}: {}", script.err);
    }
}
