//! `pawl ui` with the jobs of a cluster.

use crate::api::{Answer, Api, JOBS, job, list, one_job, unknown};
use crate::browser::Ui;
use crate::program::Program;
use pawl_contract::happened::Happened;
use pawl_contract::record::{Begun, Entry, Text};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `pawl ui --cluster` with these arguments, for the jobs of the server of `program`.
pub fn serve(program: &Program, arguments: &[&str]) -> Ui {
    let arguments = [&["ui", "--cluster", "--listen", "127.0.0.1:0"][..], arguments].concat();
    Ui::start(program.command("pawl", &arguments).stdout(Stdio::piped()))
}

/// The value of an attribute of a page, after its name.
pub fn after<'a>(page: &'a str, name: &str) -> &'a str {
    page.split_once(name).and_then(|(_, rest)| rest.split_once('"')).unwrap_or_else(|| panic!("{name}: {page}")).0
}

/// What the page of a job has in its forms.
fn form(page: &str) -> String {
    format!("token={}&uid={}", after(page, r#"name="token" value=""#), after(page, r#"name="uid" value=""#))
}

#[test]
fn jobs_of_the_cluster_are_beside_those_that_ran_here() {
    let api = one_job();
    let program = Program::new(&api);
    let here = json!({"format": 1, "specHash": "", "status": {"stage": "Complete"}, "job": {
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "here"},
        "spec": {"workload": {"name": "ups"}}}});
    std::fs::create_dir_all(program.path().join(".pawl/here")).unwrap();
    std::fs::write(program.path().join(".pawl/here/status.json"), here.to_string()).unwrap();
    let ui = serve(&program, &[]);
    let (code, _, page) = ui.get("/");
    assert!(code == 200 && page.contains("/jobs/toy\"") && page.contains(r#"data-name="Where">team</td>"#), "{page}");
    assert!(page.contains("/jobs/here\""), "{page}");
    let (code, _, page) = ui.get("/jobs/toy");
    assert!(code == 200 && page.contains("phase-compile") && page.contains("1.50×"), "{page}");
    assert!(page.contains("Loss curves") && !page.contains("<dialog"), "{page}");
    let (_, _, status) = ui.get("/jobs/toy/status.json");
    assert!(status.contains("\"namespace\": \"team\"") && !status.contains("workload"), "{status}");
    let (code, _, text) = ui.post("/jobs/toy/actions/suspend", "token=&uid=11");
    assert!(code == 403 && text.contains("--allow-actions"), "{code} {text}");
    let (code, _, text) = ui.get("/jobs/none");
    assert!(code == 404 && text.contains("&quot;none&quot;"), "{code} {text}");
    assert_eq!(api.writes().len(), 0);
}

#[test]
fn a_page_gets_an_update_from_the_watch() {
    let watches = Arc::new(AtomicU32::new(0));
    let api = Api::start(move |asked| {
        if asked.path == JOBS && asked.watches() {
            let mut changed = job();
            changed["metadata"]["resourceVersion"] = json!("8");
            changed["status"]["progress"] = json!("phase 7/8");
            return match watches.fetch_add(1, Ordering::SeqCst) {
                0 => Answer::Text(200, json!({"type": "MODIFIED", "object": changed}).to_string() + "\n"),
                _ => unknown(),
            };
        }
        if asked.path == JOBS { list(&[job()]) } else { list(&[]) }
    });
    let program = Program::new(&api);
    let ui = serve(&program, &[]);
    for events in ["/events?from=", "/jobs/toy/events?from="] {
        let mut lines = BufReader::new(ui.ask(events, &ui.address)).lines();
        assert!(lines.any(|line| line.unwrap().contains("phase 7/8")), "{events}");
    }
    let lists = api.asked().into_iter().filter(|asked| asked.path.starts_with(JOBS) && !asked.watches());
    assert!(lists.count() <= 2, "no job is asked for alone");
}

#[test]
fn an_action_needs_a_form_of_the_page_of_this_very_job() {
    let api = one_job();
    let program = Program::new(&api);
    let ui = serve(&program, &["--allow-actions"]);
    let page = ui.get("/jobs/toy").2;
    let form = form(&page);
    let suspend = "/jobs/toy/actions/suspend";
    let host = ui.address.clone();
    for (origin, text) in [(None, "Origin:"), (Some("https://evil.example"), "Origin:"), (Some("null"), "Origin:")] {
        let headers: Vec<(&str, &str)> =
            [("Host", host.as_str())].into_iter().chain(origin.map(|it| ("Origin", it))).collect();
        let (code, _, answer) = ui.request("POST", suspend, &headers, &form);
        assert!(code == 403 && answer.contains(text), "{origin:?}: {code} {answer}");
    }
    let (_, uid) = form.split_once('&').unwrap();
    for (path, form, code, part) in [
        (suspend, format!("token=guessed&{uid}"), 403, "token:"),
        (suspend, uid.to_owned(), 403, "token:"),
        (suspend, form.replace("uid=11", "uid=12"), 404, "deleted"),
        ("/jobs/none/actions/suspend", form.clone(), 404, "&quot;none&quot;"),
        ("/jobs/toy/actions/delete", form.clone(), 400, "not an action"),
        ("/jobs/toy/actions/pin", format!("{form}&phase=compile&to=Faster"), 400, "Faster"),
        ("/jobs/toy/actions/pin", format!("{form}&phase=compil&to=none"), 404, "available: compile"),
    ] {
        let (answered, _, text) = ui.post(path, &form);
        assert!(answered == code && text.contains(part), "{path} {form}: {answered} {text}");
    }
    assert_eq!(ui.get(suspend).0, 405);
    assert_eq!(api.writes().len(), 0);

    let (code, head, _) = ui.post(suspend, &form);
    assert!(code == 303 && head.to_lowercase().contains("location: /jobs/toy"), "{head}");
    let write = api.writes().pop().unwrap();
    assert_eq!(write.path, format!("{JOBS}/toy"));
    assert_eq!(write.json(), json!({"metadata": {"uid": "11"}, "spec": {"suspend": true}}));
    assert!(write.query.contains("fieldManager=pawl-ui"), "{}", write.query);
}

#[test]
fn phases_are_pinned_and_rolled_back_as_by_kubectl_pawl() {
    let api = one_job();
    let program = Program::new(&api);
    let ui = serve(&program, &["--allow-actions"]);
    let form = form(&ui.get("/jobs/toy").2);
    for (action, fields, op, value) in [
        ("rollback", "phase=*", "add", json!("RolledBack")),
        ("rollback", "phase=compile", "add", json!("RolledBack")),
        ("pin", "phase=compile&to=DryRun", "add", json!("DryRun")),
        ("pin", "phase=slow&to=none", "remove", json!(null)),
    ] {
        let before = api.writes().len();
        assert_eq!(ui.post(&format!("/jobs/toy/actions/{action}"), &format!("{form}&{fields}")).0, 303, "{fields}");
        let writes = api.writes();
        assert_eq!(writes.len(), before + 1, "{fields}");
        let patch = writes.last().unwrap().json();
        assert_eq!(
            (&patch[0], &patch[1]["op"], &patch[2]["op"], &patch[2]["value"]),
            (&json!({"op": "test", "path": "/metadata/uid", "value": "11"}), &json!("test"), &json!(op), &value),
            "{patch}"
        );
    }
    // It is not suspended.
    assert_eq!(ui.post("/jobs/toy/actions/resume", &form).0, 303);
    assert_eq!(api.writes().len(), 4);
}

#[test]
fn a_refusal_of_the_api_server_is_shown_as_it_says_it() {
    const MESSAGE: &str = "User \"jane\" cannot patch resource \"trainingjobs\"";
    let api = Api::start(|asked| match (asked.method.as_str(), asked.path.strip_prefix(JOBS)) {
        ("PATCH", _) => Answer::Failure(403, "Forbidden", MESSAGE.to_owned(), "toy"),
        (_, Some("/toy")) => Answer::Json(job()),
        (_, Some(_)) => list(&[job()]),
        (_, None) => Answer::Failure(403, "Forbidden", "no events for you".to_owned(), ""),
    });
    let program = Program::new(&api);
    let ui = serve(&program, &["--allow-actions"]);
    let page = ui.get("/jobs/toy").2;
    assert!(page.contains("There are no events here") && page.contains("no events for you"), "{page}");
    let (code, _, text) = ui.post("/jobs/toy/actions/suspend", &form(&page));
    assert!(code == 403 && text.contains("cannot patch resource"), "{code} {text}");
}

#[test]
fn a_job_that_a_storage_has_too_is_listed_and_summed_once_with_what_is_recorded_there() {
    let api = one_job();
    let program = Program::new(&api);
    let records = program.path().join("models/team/toy/11/.pawl/_records");
    std::fs::create_dir_all(records.join("attempts")).unwrap();
    let here = json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
        "spec": {"workload": {"name": "ups"}}});
    let document = json!({"format": 1, "specHash": "", "job": here, "status": {"stage": "Training"}});
    std::fs::write(records.join("status.json"), document.to_string()).unwrap();
    let mut text = Text::default();
    text.add(&Entry::Attempt(Box::new(Begun { uid: "11".to_owned(), ..Begun::new("toy", "toy-1") })));
    let message = "the event that has left the cluster".to_owned();
    let (reason, phase) = ("Accepted".to_owned(), None);
    text.add(&Entry::Event(Happened { time: 1, warning: false, reason, message: message.clone(), phase }));
    std::fs::write(records.join("attempts/toy-1.jsonl"), text.as_bytes()).unwrap();
    let models = program.path().join("models");
    // Mounted as a directory, and as a storage.
    let mounted = models.join("team/toy");
    for place in [format!("file://{}", models.display()), mounted.display().to_string()] {
        let ui = serve(&program, &[&place]);
        let (_, _, list) = ui.get("/");
        assert!(list.contains("1 of 1 jobs") && list.contains("/jobs/toy\""), "{place}: {list}");
        assert!(list.contains("41%") && !list.contains(r#"class="notice""#), "the one of the cluster: {list}");
        assert!(ui.get("/fleet").2.contains("1 of 1 jobs"), "{place}");
        assert!(ui.get("/jobs/toy").2.contains(&message), "{place}");
    }
}

#[test]
fn options_of_a_cluster_need_a_cluster() {
    let program = Program::new(&one_job());
    for words in [&["ui", "--allow-actions"][..], &["ui", "--login"], &["ui", "--namespace", "team"]] {
        let printed = program.run("pawl", words);
        assert!(printed.code == Some(2) && printed.err.contains("--cluster"), "{words:?}: {}", printed.err);
    }
    let printed = program.run("pawl", &["ui", "--cluster", "--namespace", "../x"]);
    assert!(printed.code == Some(2) && printed.err.contains("team-a"), "{}", printed.err);
}
