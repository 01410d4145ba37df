//! `pawl ui` with the jobs of a cluster.

use crate::api::{Answer, Api, Asked, JOBS, job, list, one_job, unknown};
use crate::browser::Ui;
use crate::program::Program;
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn serve(program: &Program, arguments: &[&str]) -> Ui {
    let arguments = [&["ui", "--cluster", "--listen", "127.0.0.1:0"][..], arguments].concat();
    Ui::start(program.command("pawl", &arguments).stdout(Stdio::piped()))
}

/// The value of an attribute of a page, after its name.
fn after<'a>(page: &'a str, name: &str) -> &'a str {
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
    assert!(code == 200 && page.contains("/jobs/toy\"") && page.contains("<td>team</td>"), "{page}");
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

/// Two namespaces, each of which one user may see.
fn two_teams(asked: &Asked) -> Answer {
    let Some(user) = asked.authorization.strip_prefix("Bearer token-") else {
        return Answer::Failure(401, "Unauthorized", "Unauthorized".to_owned(), "");
    };
    let rest = asked.path.strip_prefix("/apis/pawl.dev/v1alpha1/namespaces/team-").unwrap_or_default();
    let Some((team, "trainingjobs")) = rest.split_once('/') else { return list(&[]) };
    if team != user {
        return Answer::Failure(403, "Forbidden", format!("{user} cannot list trainingjobs in team-{team}"), "");
    }
    let mut job = job();
    job["metadata"]["namespace"] = json!(format!("team-{team}"));
    job["metadata"]["name"] = json!(format!("job-of-{team}"));
    list(&[job])
}

#[test]
fn each_user_sees_what_the_api_server_shows_them() {
    let api = Api::start(two_teams);
    let program = Program::new(&api);
    let ui = serve(&program, &["--login", "--namespace", "team-a,team-b"]);
    let host = ui.address.clone();
    let ask = |name: &str, value: &str| ui.request("GET", "/", &[("Host", host.as_str()), (name, value)], "");

    let (code, head, _) = ui.get("/");
    assert!(code == 303 && head.to_lowercase().contains("location: /login"), "{head}");
    assert_eq!(ui.get("/jobs/job-of-a").0, 303);
    let (code, _, text) = ui.post("/login", "token=wrong&namespaces=");
    assert!(code == 401 && text.contains("does not accept"), "{code} {text}");
    assert_eq!(ask("Authorization", "Bearer wrong").0, 401);
    assert_eq!(ask("Cookie", "pawl-session=guessed").0, 303);

    let (code, head, _) = ui.post("/login", "token=token-a&namespaces=");
    let cookie =
        head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap_or_else(|| panic!("{code} {head}"));
    for part in ["HttpOnly", "Secure", "SameSite=Strict"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let session = cookie.split(';').next().unwrap();
    let (code, _, page) = ask("Cookie", session);
    assert!(code == 200 && page.contains("/jobs/job-of-a\"") && !page.contains("job-of-b"), "{code} {page}");
    assert!(page.contains("1 of 2 namespaces are not shown") && !page.contains("team-b"), "{page}");
    let (code, _, page) = ask("Authorization", "Bearer token-b");
    assert!(code == 200 && page.contains("/jobs/job-of-b\"") && !page.contains("job-of-a"), "{code} {page}");

    // A namespace may be named at the login; what is refused there is said as the API server says it.
    let (code, _, text) = ui.post("/login", "token=token-a&namespaces=../x");
    assert!(code == 400 && text.contains("is no name of a namespace"), "{code} {text}");
    let many: Vec<String> = (0..51).map(|number| format!("team-{number}")).collect();
    let (code, _, text) = ui.post("/login", &format!("token=token-a&namespaces={}", many.join(",")));
    assert!(code == 400 && text.contains("51 named: name 50 at most"), "{code} {text}");
    let (_, head, _) = ui.post("/login", "token=token-a&namespaces=team-b");
    let other = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap().split(';').next().unwrap();
    let (_, _, page) = ask("Cookie", other);
    assert!(page.contains("a cannot list trainingjobs in team-b") && !page.contains("job-of"), "{page}");

    let origin = format!("http://{host}");
    let headers = [("Host", host.as_str()), ("Cookie", session), ("Origin", origin.as_str())];
    let (_, _, page) = ui.request("GET", "/login", &headers, "");
    let (code, ..) = ui.request("POST", "/logout", &headers, "token=guessed");
    assert_eq!((code, ask("Cookie", session).0), (403, 200));
    let form = format!("token={}", after(&page, r#"name="token" value=""#));
    let mut open = ui.send("GET", "/events", &headers, "");
    let (code, ..) = ui.request("POST", "/logout", &headers, &form);
    assert_eq!((code, ask("Cookie", session).0), (303, 303));
    let mut updates = String::new();
    open.read_to_string(&mut updates).expect("the updates of an open page end");
    assert!(updates.contains("job-of-a") && !updates.contains("job-of-b"), "{updates}");
    let own = ["Bearer token-a", "Bearer token-b", "Bearer wrong"];
    assert!(api.asked().iter().all(|asked| own.contains(&asked.authorization.as_str())), "no request but a user's");
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
