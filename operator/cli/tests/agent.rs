//! `pawl agent` as a pod runs it: its environment, its output, its end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_contract::report::unfold;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PAWL: &str = env!("CARGO_BIN_EXE_pawl");
/// The user of a pod.
const NOBODY: u32 = 65532;

/// What scripts of ranks may use.
const PRELUDE: &str = r#"
report() {
  echo '{"contract":1,"launch":"'$(basename "$PWD")'","kind":"Measure","rank":'$RANK',"outcome":"'$1'","message":"'$2'"}' > "$PAWL_REPORT"
}
"#;

fn launch(name: &str) -> Value {
    json!({"contract": 1, "job": "job", "attempt": "job-1", "launch": name, "kind": "Measure", "workload": {},
        "settings": {}, "seed": 1, "budget": {}, "hangTimeoutSeconds": 60})
}

fn plan(replicas: u32, ranks: u32, script: &str) -> Value {
    json!({"contract": 1, "job": "job", "attempt": "job-1", "replicas": replicas, "ranksPerReplica": ranks,
        "gpusPerReplica": 0, "command": ["sh", "-c", format!("{PRELUDE}{script}")], "stopOnFailure": true,
        "launches": [launch("a"), launch("b")]})
}

/// A pod's file system, of which only what a pod may write can be written.
struct Pod {
    root: TempDir,
    index: u32,
    env: Vec<(String, String)>,
}

impl Pod {
    fn new(plan: &Value) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("plan.json"), plan.to_string()).unwrap();
        std::fs::write(root.path().join("end"), "").unwrap();
        // As `pawl agent install` leaves it in a foreign image.
        let installed = Command::new(PAWL).args(["agent", "install"]).arg(root.path().join("bin")).status().unwrap();
        assert!(installed.success());
        for directory in ["work", "data", "checkpoints"] {
            std::fs::create_dir(root.path().join(directory)).unwrap();
        }
        for path in ["work", "data", "checkpoints", "end"] {
            // Only root can give things away; anybody else owns them already.
            let _ = std::os::unix::fs::chown(root.path().join(path), Some(NOBODY), Some(NOBODY));
        }
        std::fs::set_permissions(root.path(), PermissionsExt::from_mode(0o555)).unwrap();
        Self { root, index: 0, env: Vec::new() }
    }

    fn of_gang(plan: &Value, index: u32, address: &str) -> Self {
        let mut pod = Self::new(plan);
        pod.index = index;
        let token = pod.path("work/token");
        std::fs::write(&token, "0123456789abcdef".repeat(4)).unwrap();
        std::fs::set_permissions(&token, PermissionsExt::from_mode(0o444)).unwrap();
        pod.with("PAWL_AGENT_ADDRESS", address).with("PAWL_AGENT_TOKEN_FILE", &token.display().to_string())
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    fn path(&self, file: &str) -> PathBuf {
        self.root.path().join(file)
    }

    /// Starts the agent as the user of a pod, with nothing but a pod's environment.
    fn start(&self) -> Child {
        let at = |file: &str| self.path(file).display().to_string();
        // These tests may run under nohup, which an agent would inherit.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=HUP")
            .arg(self.path("bin/pawl"))
            .arg("agent")
            .current_dir("/")
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env("PAWL_ATTEMPT_PLAN", at("plan.json"))
            .env("JOB_COMPLETION_INDEX", self.index.to_string())
            .env("PAWL_WORK_DIR", at("work"))
            .env("PAWL_DATA", at("data"))
            .env("PAWL_CHECKPOINTS", at("checkpoints/job"))
            .env("PAWL_TERMINATION_LOG", at("end"))
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if rustix::process::getuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.spawn().unwrap()
    }

    fn run(&self) -> Output {
        self.start().wait_with_output().unwrap()
    }

    fn termination_message(&self) -> String {
        std::fs::read_to_string(self.path("end")).unwrap()
    }

    /// Waits until `agent` has written `file`.
    fn appears(&self, file: &str, agent: &mut Child) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !self.path(file).exists() {
            let ended = agent.try_wait().unwrap();
            if ended.is_some() || Instant::now() > deadline {
                let _ = agent.kill();
                let mut said = String::new();
                agent.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("{file} does not appear; the agent has ended: {ended:?}; it wrote:\n{said}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Or its files could not be removed.
        let _ = std::fs::set_permissions(self.root.path(), PermissionsExt::from_mode(0o755));
    }
}

fn terminate(child: &Child) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), rustix::process::Signal::TERM).unwrap();
}

/// A port that nobody listens at, and that no other call returns: the system may offer a port again as soon as it is
/// closed.
fn free_port() -> u16 {
    static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port();
        if TAKEN.lock().unwrap().insert(port) {
            return port;
        }
    }
}

fn lines(bytes: &[u8]) -> Vec<&str> {
    std::str::from_utf8(bytes).unwrap().lines().collect()
}

#[test]
fn the_built_in_trainer_trains_where_only_a_pods_volumes_can_be_written() {
    let mut plan = plan(1, 1, "");
    plan["command"] = json!([]);
    plan["launches"] = json!([{"contract": 1, "job": "job", "attempt": "job-1", "launch": "train", "kind": "Train",
        "workload": {"name": "ups", "config": {"preset": "smoke"}}, "settings": {"batchPerGpu": 2, "compile": "Graph"},
        "seed": 42, "budget": {"items": 20}, "checkpoint": {"everySeconds": 0.0, "keep": 2, "resume": true},
        "hangTimeoutSeconds": 60}]);
    let pod = Pod::new(&plan);
    let output = pod.run();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let folded = unfold(&pod.termination_message()).unwrap();
    let launch = &folded.launches[0];
    assert_eq!((launch.measured.items, launch.checkpoint.as_ref().map(|checkpoint| checkpoint.items)), (20, Some(20)));
    assert!(std::fs::read_dir(pod.path("checkpoints/job")).unwrap().count() > 0);
    let own = |name: &str| ["bin", "checkpoints", "data", "end", "plan.json", "work"].contains(&name);
    let there = std::fs::read_dir(pod.root.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(there.into_iter().all(|name| own(name.to_str().unwrap())));
    assert!(lines(&output.stdout).iter().all(|line| line.starts_with("[rank 0] ")) && !output.stdout.is_empty());
}

#[test]
fn the_first_failed_rank_determines_the_outcome_and_every_line_has_its_rank() {
    let script = r#"echo "hello from $RANK"; echo "threads $OMP_NUM_THREADS $RAYON_NUM_THREADS" >&2
        until [ -e ../ready-0 ] && [ -e ../ready-1 ]; do touch ../ready-$RANK; sleep 0.02; done
        if [ $RANK = 1 ]; then report OutOfMemory "too big"; printf 'last word'; exit 10; fi
        while :; do sleep 0.05; done"#;
    let pod = Pod::new(&plan(1, 2, script)).with("RAYON_NUM_THREADS", "7");
    let output = pod.run();
    assert_eq!(output.status.code(), Some(10));
    let folded = unfold(&pod.termination_message()).unwrap();
    assert_eq!((folded.launches.len(), &*folded.launches[0].message), (1, "rank 1: too big"));

    let threads = std::thread::available_parallelism().unwrap().get().div_euclid(2).max(1);
    let mut printed = lines(&output.stdout);
    printed.sort_unstable();
    let expected = [
        "[rank 0] hello from 0".to_owned(),
        format!("[rank 0] threads {threads} 7"),
        "[rank 1] hello from 1".to_owned(),
        "[rank 1] last word".to_owned(),
        format!("[rank 1] threads {threads} 7"),
    ];
    assert_eq!(printed, expected);
    let logged: Vec<Value> =
        lines(&output.stderr).into_iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended = logged.iter().find(|line| line["outcome"] == "OutOfMemory").unwrap();
    assert_eq!((&ended["launch"], &ended["rank"]), (&json!("a"), &json!(1)));
    let span = &ended["spans"][0];
    assert_eq!((&span["job"], &span["attempt"], &span["pod"]), (&json!("job"), &json!("job-1"), &json!(0)));
}

#[test]
fn sighup_is_a_request_to_stop_too() {
    let script =
        r#"trap 'report Stopped "after a checkpoint"; exit 30' TERM; touch ../up; while :; do sleep 0.05; done"#;
    let pod = Pod::new(&plan(1, 1, script));
    let mut agent = pod.start();
    pod.appears("work/up", &mut agent);
    rustix::process::kill_process(rustix::process::Pid::from_child(&agent), rustix::process::Signal::HUP).unwrap();
    assert_eq!(agent.wait_with_output().unwrap().status.code(), Some(30));
    assert_eq!(unfold(&pod.termination_message()).unwrap().launches[0].message, "rank 0: after a checkpoint");
}

#[test]
fn however_often_it_is_asked_to_stop_the_ranks_may_finish_their_checkpoint() {
    let script = r#"trap 'sleep 1; report Stopped "after a checkpoint"; exit 30' TERM; touch ../up; while :; do sleep 0.05; done"#;
    let pod = Pod::new(&plan(1, 1, script));
    let mut agent = pod.start();
    pod.appears("work/up", &mut agent);
    for _ in 0..3 {
        terminate(&agent);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(agent.wait_with_output().unwrap().status.code(), Some(30));
    let folded = unfold(&pod.termination_message()).unwrap();
    assert_eq!(folded.launches[0].message, "rank 0: after a checkpoint");
}

/// As `subprocess.Popen(..., start_new_session=True)` starts it: in a session of its own, with none of the agent's
/// files open.
fn detached(program: &str) -> String {
    format!(
        r#"python3 -c 'import subprocess; subprocess.Popen(["sh", "-c", "{program}"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)'"#
    )
}

#[test]
fn what_a_launch_leaves_behind_does_not_disturb_the_next_one() {
    let script = format!(
        r#"[ -e ../beat ] && {{ rm ../beat; sleep 0.3; [ -e ../beat ] && touch ../disturbed; }}
        {}; until [ -e ../beat ]; do sleep 0.02; done; report Done ''"#,
        detached("while :; do touch ../beat; sleep 0.05; done")
    );
    let pod = Pod::new(&plan(1, 1, &script));
    assert_eq!(pod.run().status.code(), Some(0), "{}", pod.termination_message());
    assert!(!pod.path("work/disturbed").exists());
    std::fs::remove_file(pod.path("work/beat")).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(!pod.path("work/beat").exists(), "it has outlived the agent");
}

#[test]
fn what_serves_the_attempt_ends_with_it() {
    let script = format!(
        r#"[ -e ../beat ] && {{ rm ../beat; sleep 0.3; [ -e ../beat ] && touch ../served; report Done ''; exit 0; }}
        PAWL_SERVES_ATTEMPT=1 {}; until [ -e ../beat ]; do sleep 0.02; done; report Done ''"#,
        detached("while :; do touch ../beat; sleep 0.05; done")
    );
    let pod = Pod::new(&plan(1, 1, &script));
    assert_eq!(pod.run().status.code(), Some(0), "{}", pod.termination_message());
    assert!(pod.path("work/served").exists());
    std::fs::remove_file(pod.path("work/beat")).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(!pod.path("work/beat").exists(), "it has outlived the agent");
}

#[test]
fn a_pod_whose_peers_do_not_come_gives_its_devices_back() {
    let mut plan = plan(2, 1, "report Done ''");
    plan["gatherSeconds"] = json!(1.0);
    // A name without an address, as long as the other pod is not there; and a port without a listener.
    for (index, address, message) in [
        (0, format!("127.0.0.1:{}", free_port()), "no connection from agent 1 within 1 s"),
        (1, format!("127.0.0.1:{}", free_port()), "was not reached within 1 s"),
        (1, "job-1-0.pawl-trainers.invalid:9471".to_owned(), "was not reached within 1 s"),
    ] {
        let pod = Pod::of_gang(&plan, index, &address);
        let start = Instant::now();
        let output = pod.run();
        assert_eq!(output.status.code(), Some(40), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(pod.termination_message().contains(message), "{}", pod.termination_message());
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}

#[test]
fn a_pod_that_waits_for_its_peers_stops_when_asked() {
    let plan = plan(2, 1, "report Done ''");
    for index in [0, 1] {
        let port = free_port();
        let pod =
            Pod::of_gang(&plan, index, &format!("127.0.0.1:{port}")).with("PAWL_HTTP_PORT", &free_port().to_string());
        let mut agent = pod.start();
        pod.appears("work/attempt.json", &mut agent);
        let start = Instant::now();
        terminate(&agent);
        assert_eq!(agent.wait_with_output().unwrap().status.code(), Some(30));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}

#[test]
fn two_pods_are_one_gang_and_end_alike() {
    let address = format!("127.0.0.1:{}", free_port());
    let http = free_port();
    let script = r#"touch ../up; until [ -e ../go ]; do sleep 0.02; done; [ $RANK = 1 ] && exit 12; report Done ''"#;
    let pods = [0, 1].map(|index| Pod::of_gang(&plan(2, 1, script), index, &address));
    let pods = pods.map(|pod| if pod.index == 0 { pod.with("PAWL_HTTP_PORT", &http.to_string()) } else { pod });
    let mut agents: Vec<Child> = pods.iter().map(Pod::start).collect();
    pods.iter().zip(&mut agents).for_each(|(pod, agent)| pod.appears("work/up", agent));
    let mut stream = TcpStream::connect(("127.0.0.1", http)).unwrap();
    stream.write_all(b"GET /attempt HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(r#"{"attempt":"job-1""#), "{answer}");
    pods.iter().for_each(|pod| std::fs::write(pod.path("work/go"), "").unwrap());
    for (agent, pod) in agents.into_iter().zip(&pods) {
        assert_eq!(agent.wait_with_output().unwrap().status.code(), Some(12), "pod {}", pod.index);
    }
    assert_eq!(unfold(&pods[0].termination_message()).unwrap().launches.len(), 1);
    assert!(pods[1].termination_message().starts_with("rank 1: exit code 12"), "{}", pods[1].termination_message());
}

#[test]
fn an_invalid_plan_is_reported_in_the_termination_message() {
    let mut wrong = plan(1, 1, "");
    wrong["contract"] = json!(2);
    for (plan, code, message) in [(wrong, 21, "contract 2"), (json!({"rubbish": 1}), 21, "plan.json: missing field")] {
        let pod = Pod::new(&plan);
        let output = pod.run();
        assert_eq!(output.status.code(), Some(code));
        assert!(pod.termination_message().contains(message), "{}", pod.termination_message());
    }
    let pod = Pod::new(&plan(1, 1, "")).with("PAWL_WORK_DIR", "/proc/none");
    assert_eq!(pod.run().status.code(), Some(1));
    assert!(pod.termination_message().contains("/proc/none"), "{}", pod.termination_message());
    assert!(!Path::new("/proc/none").exists());
}
