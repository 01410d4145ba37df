//! `pawl ui --login`: sessions of users.

use crate::api::{Answer, Api, Asked, job, list};
use crate::program::Program;
use crate::ui::{after, serve};
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
    let (code, head, _) = ask("Cookie", "__Host-pawl-session=guessed");
    assert!(code == 303 && head.to_lowercase().contains("location: /login?ended"), "{head}");

    let (code, head, _) = ui.post("/login", "token=token-a&namespaces=");
    let cookie =
        head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap_or_else(|| panic!("{code} {head}"));
    // What the prefix of its name demands, and more.
    for part in ["__Host-", "Path=/", "HttpOnly", "Secure", "SameSite=Strict"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let session = cookie.split(';').next().unwrap();
    let (code, _, page) = ask("Cookie", session);
    assert!(code == 200 && page.contains("/jobs/job-of-a\"") && !page.contains("job-of-b"), "{code} {page}");
    assert!(page.contains("1 of 2 namespaces are not shown") && !page.contains("team-b"), "{page}");
    assert!(page.contains("Log out"), "{page}");
    let (code, _, page) = ask("Authorization", "Bearer token-b");
    assert!(code == 200 && page.contains("/jobs/job-of-b\"") && !page.contains("job-of-a"), "{code} {page}");
    assert!(!page.contains("Log out"), "the proxy would log them in again: {page}");

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
    let mut open = BufReader::new(ui.send("GET", "/events", &headers, ""));
    let mut updates = String::new();
    while !updates.contains("job-of-a") {
        assert!(open.read_line(&mut updates).unwrap() > 0, "{updates}");
    }
    let (code, ..) = ui.request("POST", "/logout", &headers, &form);
    assert_eq!((code, ask("Cookie", session).0), (303, 303));
    open.read_to_string(&mut updates).expect("the updates of an open page end");
    assert!(!updates.contains("job-of-b"), "{updates}");
    let own = ["Bearer token-a", "Bearer token-b", "Bearer wrong"];
    assert!(api.asked().iter().all(|asked| own.contains(&asked.authorization.as_str())), "no request but a user's");
}

/// The cookie of an answer.
fn cookie(head: &str) -> String {
    let set = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap_or_else(|| panic!("{head}"));
    set.split(';').next().unwrap().to_owned()
}

#[test]
fn a_session_ends_with_its_token_and_with_the_next_login() {
    let revoked = Arc::new(AtomicBool::new(false));
    let is_revoked = Arc::clone(&revoked);
    let api = Api::start(move |asked| match is_revoked.load(Ordering::SeqCst) {
        true => Answer::Failure(401, "Unauthorized", "Unauthorized".to_owned(), ""),
        false => two_teams(asked),
    });
    let program = Program::new(&api);
    let ui = serve(&program, &["--login", "--namespace", "team-a,team-b"]);
    let (host, origin) = (ui.address.clone(), format!("http://{}", ui.address));
    let ask = |session: &str| ui.request("GET", "/", &[("Host", host.as_str()), ("Cookie", session)], "");
    let first = cookie(&ui.post("/login", "token=token-a&namespaces=").1);
    assert_eq!(ask(&first).0, 200);
    let headers = [("Host", host.as_str()), ("Cookie", first.as_str()), ("Origin", origin.as_str())];
    let (code, head, _) = ui.request("POST", "/login", &headers, "token=token-b&namespaces=");
    let second = cookie(&head);
    assert_eq!((code, ask(&first).0, ask(&second).0), (303, 303, 200), "nobody can end the first one any more");

    // A browser that has not kept the cookie learns why it is at the form again.
    assert!(head.to_lowercase().contains("location: /login/done"), "{head}");
    let (code, head, _) = ui.get("/login/done");
    assert!(code == 303 && head.to_lowercase().contains("location: /login?ended"), "{head}");
    assert!(ui.get("/login?ended").2.contains("without TLS") && !ui.get("/login").2.contains("without TLS"));

    revoked.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    while ask(&second).0 != 303 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the next list is refused");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_token_that_was_not_verified_gets_no_session() {
    let api = Api::start(|_| Answer::Failure(503, "ServiceUnavailable", "starting".to_owned(), ""));
    let program = Program::new(&api);
    let ui = serve(&program, &["--login", "--namespace", "team-a,team-b,team-c"]);
    let (code, head, text) = ui.post("/login", "token=token-a&namespaces=");
    assert!(code == 502 && text.contains("starting") && !head.contains("set-cookie"), "{code} {head} {text}");
    assert_eq!(api.asked().len(), 1, "one guess is one request");
    drop(api);
    let (code, _, text) = ui.post("/login", "token=token-a&namespaces=");
    assert!(code == 502 && text.contains("the API server at") && !text.contains("--context"), "{code} {text}");
}

#[test]
fn a_namespace_that_is_named_often_is_asked_for_once() {
    let api = Api::start(two_teams);
    let program = Program::new(&api);
    let ui = serve(&program, &["--login"]);
    let session = cookie(&ui.post("/login", "token=token-a&namespaces=team-a,team-a,team-a").1);
    let (_, _, page) = ui.request("GET", "/", &[("Host", ui.address.as_str()), ("Cookie", &session)], "");
    assert_eq!(page.matches("/jobs/job-of-a").count(), 1, "{page}");
    let lists = api.asked().iter().filter(|asked| !asked.watches()).count();
    assert!(lists <= 2, "{lists}: whether the token is accepted, and the jobs");
}
