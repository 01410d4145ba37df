//! `pawl ui`, asked as a browser asks.

use crate::browser::Ui;
use crate::scene::{Scene, signal, stderr, stdout, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::time::{Duration, Instant};

/// A running `pawl ui` with these arguments.
fn serve(scene: &Scene, arguments: &[&str]) -> Ui {
    Ui::start(&mut scene.pawl(&[&["ui", "--listen", "127.0.0.1:0"][..], arguments].concat()))
}

/// A page under the name `host`.
fn get_as(ui: &Ui, path: &str, host: &str) -> (u16, String, String) {
    ui.request("GET", path, &[("Host", host)], "")
}

/// Records a job as `pawl run` does: the file is replaced.
fn record(scene: &Scene, directory: &str, name: &str, status: &Value) {
    record_as(scene, directory, name, &json!({}), status);
}

/// The same of a job with `more` in its spec.
fn record_as(scene: &Scene, directory: &str, name: &str, more: &Value, status: &Value) {
    let mut job = json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
        "spec": {"workload": {"name": "ups"}}});
    job["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let document = json!({"format": 1, "specHash": "", "job": job, "status": status});
    let directory = scene.path().join(directory);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("new"), document.to_string()).unwrap();
    fs::rename(directory.join("new"), directory.join("status.json")).unwrap();
}

fn finished(state: &str, speedup: &str) -> Value {
    let phase = json!({"name": "graph", "state": state, "speedup": {"estimate": speedup, "pairs": 3}});
    json!({"stage": "Complete", "phases": [phase], "speedup": speedup})
}

#[test]
fn jobs_are_listed_shown_and_compared() {
    let scene = Scene::new();
    record(&scene, ".pawl/one", "one", &finished("Accepted", "1.5"));
    record(&scene, ".pawl/other", "other", &finished("RolledBack", "0.9"));
    let ui = serve(&scene, &[]);
    let (code, head, list) = ui.get("/?sort=-speedup");
    assert_eq!(code, 200, "{list}");
    let places = ["/jobs/one\"", "/jobs/other\""].map(|link| list.find(link).unwrap_or_else(|| panic!("{list}")));
    assert!(places[0] < places[1], "{list}");
    let head = head.to_lowercase();
    assert!(head.contains("script-src 'self'") && head.contains("x-content-type-options: nosniff"), "{head}");
    let (_, _, filtered) = ui.get("/?q=OTH&state=Complete");
    assert!(filtered.contains("/jobs/other\"") && !filtered.contains("/jobs/one\""), "{filtered}");

    let (code, _, job) = ui.get("/jobs/one");
    assert!(code == 200 && job.contains("phase-graph") && job.contains("1.50×"), "{job}");
    let (_, head, status) = ui.get("/jobs/one/status.json");
    let status: Value = serde_json::from_str(&status).unwrap();
    assert!(head.contains("application/json") && status["status"]["speedup"] == "1.5", "{status}");
    assert!(status["job"] == "one" && !status.to_string().contains("workload"), "{status}");
    let (code, _, fleet) = ui.get("/fleet?q=one");
    assert!(code == 200 && fleet.contains("1 of 2 jobs") && fleet.contains(">graph<"), "{fleet}");
    let (code, _, compared) = ui.get("/compare?job=one&job=other");
    assert!(code == 200 && compared.contains("≠ phase graph") && compared.contains("rolled back"), "{compared}");
    let (_, _, all) = ui.get("/compare?job=one&job=other&all=1");
    assert!(!compared.contains(">stage<") && all.contains(">stage<"), "rows that are equal are not shown: {compared}");
    let assets = ["/assets/style.css", "/assets/ui.js", "/assets/icon.svg", "/assets/uplot.js", "/assets/charts.js"];
    for asset in assets {
        let (code, _, text) = ui.get(asset);
        assert!(code == 200 && !text.is_empty() && job.contains(asset), "{asset}");
    }
    assert!(ui.get("/assets/uplot.js").2.contains("Copyright (c) 2022 Leon Sorokin"), "the license goes with it");
}

#[test]
fn curves_are_data_that_a_chart_is_drawn_from() {
    let scene = Scene::new();
    let evaluation = |items: u64, loss: &str| json!({"items": items, "metrics": {"loss": loss}});
    let training = json!({"items": 64, "firstValidation": evaluation(0, "4"), "validation": evaluation(64, "2.5")});
    for name in ["one", "other"] {
        record(&scene, &format!(".pawl/{name}"), name, &json!({"stage": "Complete", "training": training}));
    }
    let ui = serve(&scene, &[]);
    for (page, path) in [
        ("/jobs/one", "/jobs/one/curves.json"),
        ("/compare?job=one&job=other", "/compare/curves.json?job=one&job=other"),
    ] {
        let (_, head, text) = ui.get(path);
        let curves: Value = serde_json::from_str(&text).unwrap();
        let validation = &curves["charts"][1];
        assert!(head.contains("application/json") && validation["id"] == "validation", "{path}: {text}");
        assert_eq!(validation["series"][0]["items"], json!([0.0, 64.0]), "{path}");
        assert_eq!(validation["series"][0]["values"], json!([4.0, 2.5]), "{path}");
        let (_, _, html) = ui.get(page);
        // Without scripts, the picture is there.
        assert!(html.contains(r#"data-chart="validation"><div class="figure"><svg"#), "{html}");
        assert!(html.contains(&format!("data-curves=\"{}\"", path.replace('&', "&amp;"))), "{html}");
    }
}

#[test]
fn the_curves_of_a_job_that_ran_here_have_all_its_evaluations() {
    let scene = Scene::new();
    scene.write_job(|job| {
        job["spec"]["phases"] = json!([]);
        job["spec"]["workload"]["config"]["stepSeconds"] = json!(0.002);
        job["spec"]["train"]["evalEvery"] = json!(8000);
    });
    let output = scene.output(&["run", "job.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}\n{}", stdout(&output), stderr(&output));
    let ui = serve(&scene, &[]);
    let curves: Value = serde_json::from_str(&ui.get("/jobs/toy/curves.json").2).unwrap();
    let drawn = curves["charts"][1]["series"][0]["items"].as_array().unwrap();
    assert!(drawn.len() > 3, "{drawn:?}");
}

#[test]
fn a_search_has_a_page_with_its_trials_in_an_order() {
    let scene = Scene::new();
    let parameters = json!([{"name": "batchPerGpu", "min": "1", "max": "64"}]);
    let search = json!([{"name": "quick", "trials": 4, "epochs": 3, "parameters": parameters,
        "objectives": [{"metric": "loss", "goal": "Minimize"}]}]);
    let trials = json!([{"name": "quick", "inputHash": "x", "trials": ["C;;0.5;;;8", "C;;0.25;;;16", "O;;;;;64"]}]);
    record_as(&scene, ".pawl/toy", "toy", &json!({"search": search}), &json!({"stage": "Searching", "search": trials}));
    let ui = serve(&scene, &[]);
    assert!(ui.get("/jobs/toy").2.contains("/jobs/toy/search"));
    let (code, _, page) = ui.get("/jobs/toy/search?sort=-parameter.batchPerGpu");
    let table = page.split_once("<tbody>").unwrap_or_else(|| panic!("{page}")).1;
    let rows: Vec<&str> = table.split("data-trial=\"").skip(1).map(|row| &row[..1]).collect();
    assert_eq!((code, rows), (200, vec!["2", "1", "0"]), "{page}");
    let mut lines = BufReader::new(ui.ask("/jobs/toy/search/events?sort=value.loss&from=", &ui.address)).lines();
    until(&mut lines, "event: update");
    until(&mut lines, "value.loss");
}

#[test]
fn what_does_not_exist_is_refused_with_its_name() {
    let scene = Scene::new();
    record(&scene, ".pawl/one", "one", &finished("Accepted", "1.5"));
    record(&scene, "outside", "outside", &finished("Accepted", "1.5"));
    let ui = serve(&scene, &[]);
    for (path, expected, part) in [
        ("/jobs/none", 404, "job: &quot;none&quot;"),
        ("/jobs/..%2Foutside", 404, "job: &quot;../outside&quot;"),
        ("/jobs/..%2Foutside/status.json", 404, "job:"),
        ("/jobs/none/events", 404, "job:"),
        ("/jobs/none/curves.json", 404, "job:"),
        ("/jobs/none/search", 404, "job:"),
        ("/jobs/one/search?sort=value.loss", 400, "sort: &quot;value.loss&quot;"),
        ("/jobs/one/search/events?sort=value.loss", 400, "sort:"),
        ("/compare/curves.json?job=one&job=none", 404, "job: &quot;none&quot;"),
        ("/nothing", 404, "/nothing"),
        ("/?state=Done", 400, "state: &quot;Done&quot;"),
        ("/fleet?state=Done", 400, "state: &quot;Done&quot;"),
        ("/compare?job=one", 400, "2 to 12"),
        ("/compare?job=one&job=none", 404, "job: &quot;none&quot;"),
    ] {
        let (code, _, text) = ui.get(path);
        assert!(code == expected && text.contains(part), "{path}: {code} {text}");
    }
}

/// A website may let its own name resolve to this machine, and read what its scripts get from there.
#[test]
fn a_request_under_a_foreign_name_is_refused() {
    let scene = Scene::new();
    record(&scene, ".pawl/one", "one", &finished("Accepted", "1.5"));
    let ui = serve(&scene, &["--host", "box.example"]);
    let of_job = ["", "/status.json", "/curves.json", "/events"].map(|page| format!("/jobs/one{page}"));
    for path in ["/", "/assets/ui.js", "/nothing"].into_iter().chain(of_job.iter().map(String::as_str)) {
        let (code, _, text) = get_as(&ui, path, "evil.example");
        assert!(code == 403 && text.contains("evil.example") && !text.contains("graph"), "{path}: {code} {text}");
    }
    for host in ["localhost:1234", "box.example"] {
        assert_eq!(get_as(&ui, "/", host).0, 200, "{host}");
    }
}

#[test]
fn jobs_that_ran_here_are_not_changed() {
    let scene = Scene::new();
    record(&scene, ".pawl/one", "one", &finished("Accepted", "1.5"));
    let ui = serve(&scene, &[]);
    assert!(!ui.get("/jobs/one").2.contains("<dialog"));
    let (code, _, text) = ui.post("/jobs/one/actions/suspend", "token=x&uid=");
    assert!(code == 403 && text.contains("--allow-actions"), "{code} {text}");
    let foreign = [("Host", ui.address.as_str()), ("Origin", "https://evil.example")];
    let (code, _, text) = ui.request("POST", "/jobs/one/actions/suspend", &foreign, "");
    assert!(code == 403 && text.starts_with("Origin:"), "{code} {text}");
}

/// Reads lines of a stream of updates until one contains `part`; returns those before it.
fn until(lines: &mut impl Iterator<Item = io::Result<String>>, part: &str) -> String {
    let mut before = String::new();
    for line in lines {
        let line = line.unwrap_or_else(|error| panic!("{part}: {error}: {before}"));
        if line.contains(part) {
            return before;
        }
        before.push_str(&line);
    }
    panic!("{part}: {before}");
}

#[test]
fn a_page_gets_an_update_when_its_job_has_changed() {
    let scene = Scene::new();
    record(&scene, ".pawl/one", "one", &json!({"stage": "Optimizing", "progress": "phase 1/2"}));
    let ui = serve(&scene, &[]);
    for (page, events) in [("/jobs/one", "/jobs/one/events?from="), ("/", "/events?from=")] {
        record(&scene, ".pawl/one", "one", &json!({"stage": "Optimizing", "progress": "phase 1/2"}));
        let (_, _, text) = ui.get(page);
        let revision = text.split_once("data-revision=\"").and_then(|(_, rest)| rest.split_once('"')).unwrap().0;
        let mut lines = BufReader::new(ui.ask(&format!("{events}{revision}"), &ui.address)).lines();
        until(&mut lines, "text/event-stream");
        record(&scene, ".pawl/one", "one", &json!({"stage": "Optimizing", "progress": "phase 2/2"}));
        until(&mut lines, "event: update");
        let before = until(&mut lines, "phase 2/2");
        assert!(!before.contains("phase 1/2"), "the page had that already: {before}");
        record(&scene, ".pawl/one", "one", &json!({"stage": "Complete", "progress": "done"}));
        until(&mut lines, "Complete");
    }
}

#[test]
fn a_job_whose_run_has_ended_before_it_is_shown_as_stopped() {
    let scene = Scene::new();
    record(&scene, ".pawl/one", "one", &json!({"stage": "Optimizing", "progress": "phase 1/2"}));
    let lock = fs::File::create(scene.path().join(".pawl/one/pawl.lock")).unwrap();
    lock.lock().unwrap();
    let ui = serve(&scene, &[]);
    let (_, _, text) = ui.get("/jobs/one");
    assert!(!text.to_lowercase().contains("stopped") && !ui.get("/").2.contains("stopped"), "it runs: {text}");
    let revision = text.split_once("data-revision=\"").and_then(|(_, rest)| rest.split_once('"')).unwrap().0;
    let mut lines = BufReader::new(ui.ask(&format!("/jobs/one/events?from={revision}"), &ui.address)).lines();
    until(&mut lines, "text/event-stream");
    drop(lock);
    until(&mut lines, "event: update");
    until(&mut lines, "Stopped: repeat its command");
    assert!(ui.get("/").2.contains(">stopped</span>"));
    let status: Value = serde_json::from_str(&ui.get("/jobs/one/status.json").2).unwrap();
    assert_eq!(status["stopped"], true);
    record(&scene, ".pawl/one", "one", &json!({"stage": "Complete"}));
    assert!(!ui.get("/jobs/one").2.to_lowercase().contains("stopped"), "a job that has ended did not stop");
}

#[test]
fn the_sums_over_jobs_get_an_update_when_one_of_them_has_changed() {
    let scene = Scene::new();
    record(&scene, ".pawl/one", "one", &finished("Accepted", "1.5"));
    let ui = serve(&scene, &[]);
    let (_, _, text) = ui.get("/fleet?q=one");
    let revision = text.split_once("data-revision=\"").and_then(|(_, rest)| rest.split_once('"')).unwrap().0;
    let path = format!("/fleet/events?q=one&from={revision}");
    let mut lines = BufReader::new(ui.ask(&path, &ui.address)).lines();
    until(&mut lines, "text/event-stream");
    record(&scene, ".pawl/one", "one", &finished("RolledBack", "0.9"));
    until(&mut lines, "event: update");
    until(&mut lines, "Rolled back, by reason");
}

#[test]
fn a_thousand_jobs_are_listed_within_a_second() {
    let scene = Scene::new();
    for number in 0..1000 {
        record(&scene, &format!("runs/job-{number}"), &format!("job-{number}"), &finished("Accepted", "1.5"));
    }
    let ui = serve(&scene, &["runs"]);
    for look in ["first", "second"] {
        let start = Instant::now();
        let (code, _, text) = ui.get("/");
        let took = start.elapsed();
        assert_eq!((code, text.matches("href=\"/jobs/").count()), (200, 1000), "{look}");
        assert!(took < Duration::from_secs(1), "{look}: {took:?}");
    }
}

#[test]
fn signals_end_it_and_bad_arguments_are_named() {
    let scene = Scene::new();
    for sent in [Signal::INT, Signal::TERM] {
        let mut ui = serve(&scene, &[]);
        let (code, _, empty) = ui.get("/");
        assert!(code == 200 && empty.contains("pawl run FILE"), "{empty}");
        // A browser that still listens does not hold it up.
        let _open = ui.ask("/events", &ui.address);
        signal(&ui.child, sent);
        wait_until("pawl ui ends", || ui.child.try_wait().unwrap().is_some());
        assert_eq!(ui.child.wait().unwrap().code(), Some(0));
    }
    let missing = scene.output(&["ui", "nowhere"]);
    assert_eq!(missing.status.code(), Some(2), "{}", stdout(&missing));
    assert!(stderr(&missing).contains("nowhere: no such directory"), "{}", stderr(&missing));
    let ui = serve(&scene, &[]);
    let taken = scene.output(&["ui", "--listen", &ui.address]);
    assert_eq!(taken.status.code(), Some(2), "{}", stdout(&taken));
    assert!(stderr(&taken).contains(&format!("--listen {}", ui.address)), "{}", stderr(&taken));
    let name = scene.output(&["ui", "--listen", "localhost:8080"]);
    assert!(stderr(&name).contains("write an IP address and a port"), "{}", stderr(&name));
    assert!(!scene.path().join(".pawl").exists(), "it writes nothing");
}

#[test]
fn jobs_that_have_the_name_that_was_asked_for_are_linked() {
    let scene = Scene::new();
    for directory in ["a/one", "b/one"] {
        record(&scene, directory, "one", &finished("Accepted", "1.5"));
    }
    let ui = serve(&scene, &["a", "b"]);
    let (code, _, text) = ui.get("/jobs/one");
    assert_eq!(code, 404, "{text}");
    for part in ["2 jobs have this name", r#"href="/jobs/one%40a%2Fone""#, r#"href="/jobs/one%40b%2Fone""#] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(ui.get("/jobs/one%40a%2Fone").2.contains("<title>one@a/one"), "the place is in the title");
}

#[test]
fn a_place_that_does_not_exist_hides_no_other_one() {
    let scene = Scene::new();
    record(&scene, "runs/one", "one", &finished("Accepted", "1.5"));
    let ui = serve(&scene, &["nowhere", "file:///nowhere/models", "runs"]);
    let list = ui.get("/").2;
    for part in ["/jobs/one\"", "nowhere: no such directory", "/nowhere/models: no such directory"] {
        assert!(list.contains(part), "{part}: {list}");
    }
}

#[test]
fn the_copies_of_a_storage_are_deleted_at_the_end() {
    let scene = Scene::new();
    record(&scene, "models/toy/.pawl/_records", "toy", &finished("Accepted", "1.5"));
    let copies = scene.path().join("copies");
    fs::create_dir(&copies).unwrap();
    let url = format!("file://{}", scene.path().join("models").display());
    let mut ui = Ui::start(scene.pawl(&["ui", "--listen", "127.0.0.1:0", &url]).env("TMPDIR", &copies));
    assert!(ui.get("/").2.contains("/jobs/toy\""));
    assert_eq!(fs::read_dir(&copies).unwrap().count(), 1);
    signal(&ui.child, Signal::INT);
    wait_until("pawl ui ends", || ui.child.try_wait().unwrap().is_some());
    assert_eq!((ui.child.wait().unwrap().code(), fs::read_dir(&copies).unwrap().count()), (Some(0), 0));
}

#[test]
fn an_address_that_others_can_reach_is_warned_about() {
    let scene = Scene::new();
    let mut child = scene.pawl(&["ui", "--listen", "0.0.0.0:0"]).spawn().unwrap();
    let mut warning = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut warning).unwrap();
    signal(&child, Signal::TERM);
    child.wait().unwrap();
    assert!(warning.starts_with("warning: --listen 0.0.0.0:") && warning.contains("jobs in .pawl"), "{warning}");
}
