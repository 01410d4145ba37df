//! `pawl ui` for users of different rights: the API server alone decides what each of them sees and changes.

use crate::rights::chart_role;
use pawl_e2e::job::toy;
use pawl_e2e::programs::{built, kubectl, succeed};
use pawl_e2e::{Scene, scene};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A namespace beside that of the scene, deleted when this is dropped.
struct Namespace(String);

impl Namespace {
    fn create(name: String) -> Self {
        succeed(&mut kubectl(&["create", "namespace", &name]));
        Self(name)
    }

    /// kubectl in this namespace.
    fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = kubectl(&["--namespace", &self.0]);
        command.args(arguments);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = kubectl(&["delete", "namespace", &self.0, "--wait=false"]).output();
    }
}

/// A running `pawl ui`.
struct Ui {
    child: Child,
    address: String,
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ui {
    /// Where users log in. Its kubeconfig is the administrator's, of whose credentials nothing is used.
    fn start(namespaces: &str) -> Self {
        let arguments = ["ui", "--cluster", "--login", "--allow-actions", "--listen", "127.0.0.1:0"];
        let mut command = Command::new(built("pawl"));
        command.args(arguments).args(["--namespace", namespaces]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, address }
    }

    /// Code, head and body of the answer to a request with a header of its own.
    fn request(&self, method: &str, path: &str, header: &str, form: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (address, length) = (&self.address, form.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{header}\r\n\r\n"
        );
        stream.write_all((head + form).as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{head}"));
        (code, head.to_owned(), body.to_owned())
    }
}

/// The value of a hidden field of a page.
fn hidden<'a>(page: &'a str, name: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!(r#"name="{name}" value=""#)).unwrap_or_else(|| panic!("{name}: {page}"));
    rest.split_once('"').unwrap().0
}

/// An editor of the scene's namespace, with the role of the chart. Returns their token.
fn editor(scene: &Scene) -> String {
    scene.apply(&serde_json::json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "editor"}}));
    scene.allow("editor", chart_role("pawl-edit"));
    succeed(&mut scene.kubectl(&["create", "token", "editor", "--duration=1h"])).trim().to_owned()
}

/// Somebody who may only look, in the other namespace. Returns their token.
fn viewer(other: &Namespace) -> String {
    let account = format!("--serviceaccount={}:viewer", other.0);
    for arguments in [
        &["create", "serviceaccount", "viewer"][..],
        &["create", "role", "viewer", "--verb=get,list,watch", "--resource=trainingjobs.pawl.dev"],
        &["create", "rolebinding", "viewer", "--role=viewer", &account],
    ] {
        succeed(&mut other.kubectl(arguments));
    }
    succeed(&mut other.kubectl(&["create", "token", "viewer", "--duration=1h"])).trim().to_owned()
}

#[test]
fn each_user_sees_and_changes_what_their_role_allows() {
    scene(async |scene| {
        let other = Namespace::create(format!("{}-other", scene.namespace));
        // A token of a new account may be made before its role is known to all parts of the API server.
        let (editor, viewer) = (editor(scene), viewer(&other));
        scene.apply(&toy(|_| {}));
        let file = scene.directory.path().join("theirs.json");
        std::fs::write(&file, toy(|job| job["metadata"]["name"] = "theirs".into()).to_string()).unwrap();
        succeed(other.kubectl(&["apply", "-f"]).arg(&file));
        let ui = Ui::start(&format!("{},{}", scene.namespace, other.0));

        assert_eq!(ui.request("GET", "/jobs/toy", "X-No: body", "").0, 303, "nobody is logged in");
        let (code, _, text) = ui.request("POST", "/login", "X-No: body", "token=wrong&namespaces=");
        assert_eq!(code, 401, "{text}");
        let (code, head, text) = ui.request("POST", "/login", "X-No: body", &format!("token={editor}&namespaces="));
        assert_eq!(code, 303, "{text}");
        let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a session");
        let session = format!("Cookie: {}", cookie.split(';').next().unwrap());
        let proxied = format!("Authorization: Bearer {viewer}");

        let (_, _, page) = ui.request("GET", "/", &session, "");
        assert!(page.contains("/jobs/toy\"") && !page.contains("theirs"), "{page}");
        let (_, _, page) = ui.request("GET", "/", &proxied, "");
        assert!(page.contains("/jobs/theirs\"") && !page.contains("/jobs/toy"), "{page}");
        assert_eq!(ui.request("GET", "/jobs/toy", &proxied, "").0, 404);

        // Whoever may only look is refused by the API server, in its words.
        let (_, _, page) = ui.request("GET", "/jobs/theirs", &proxied, "");
        let form = format!("token={}&uid={}", hidden(&page, "token"), hidden(&page, "uid"));
        let (code, _, text) = ui.request("POST", "/jobs/theirs/actions/suspend", &proxied, &form);
        assert!(code == 403 && text.contains("cannot patch resource"), "{code} {text}");
        // The form of one user is nothing to another.
        let (code, _, text) = ui.request("POST", "/jobs/toy/actions/suspend", &session, &form);
        assert_eq!(code, 403, "{text}");

        let (_, _, page) = ui.request("GET", "/jobs/toy", &session, "");
        let form = format!("token={}&uid={}", hidden(&page, "token"), hidden(&page, "uid"));
        let (code, _, text) = ui.request("POST", "/jobs/toy/actions/suspend", &session, &form);
        assert_eq!(code, 303, "{text}");
        assert!(scene.job("toy").await.spec.suspend);
        let resume = async || ui.request("GET", "/jobs/toy", &session, "").2.contains("/actions/resume").then_some(());
        scene.until("the page to know that it is suspended", Duration::from_secs(10), resume).await;
    });
}
