//! What agents tell over HTTP while a gang runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod gang;

use gang::{Agent, appears, nodes, plan};
use pawl_agent::{Event, Live, Node, Stop, run, serve};
use pawl_contract::exit::Outcome;
use pawl_contract::live::Attempt;
use pawl_contract::plan::AttemptPlan;
use pawl_contract::progress::Progress;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::sync::watch;

/// An agent that serves, as `pawl agent` does.
fn start(plan: &AttemptPlan, node: Node) -> (Agent, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let live = Live::new(plan, node.replica, &node.work_dir).unwrap();
    let server = tokio::spawn(serve(listener, live.clone()));
    let (stop, stopped) = watch::channel(Stop::No);
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    let (plan, dir) = (plan.clone(), node.work_dir.clone());
    let task = tokio::spawn(async move {
        let hear = move |event: Event| {
            live.hear(&event);
            heard.lock().unwrap().push((Instant::now(), event));
        };
        let result = run(&plan, node, stopped, hear).await;
        // It serves for as long as its process lives.
        drop(server);
        result
    });
    (Agent { dir, stop, events, task }, address)
}

/// The status line and headers, and the body.
async fn ask(address: SocketAddr, request: &'static str) -> (String, String) {
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: agent\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let answer = answer.await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

async fn until(address: SocketAddr, request: &'static str, wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let (_, body) = ask(address, request).await;
        if wanted(&body) {
            return body;
        }
        assert!(Instant::now() < deadline, "{body}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reads Prometheus' text form as strictly as its own checker: every metric has a type and a help, stands together, and
/// no series is there twice; the buckets of a histogram add up.
fn strictly(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n') && !text.contains("\n\n"), "{text}");
    let (mut series, mut finished, mut current) = (BTreeMap::new(), BTreeSet::new(), (String::new(), String::new()));
    let mut helped = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            helped = help.split(' ').next().unwrap().to_owned();
            assert!(help.len() > helped.len() + 1, "no help: {line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(helped, name, "help comes before type");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(finished.insert(name.to_owned()), "{name} stands in two places");
            current = (name.to_owned(), kind.to_owned());
        } else {
            let (key, value) = line.rsplit_once(' ').unwrap();
            let name = key.split('{').next().unwrap();
            let rest = name.strip_prefix(current.0.as_str()).unwrap_or_else(|| panic!("{line} in {current:?}"));
            let of_histogram = ["_bucket", "_sum", "_count"].contains(&rest);
            assert_eq!(of_histogram, current.1 == "histogram", "{line}");
            assert!(rest.is_empty() || of_histogram, "{line} in {current:?}");
            assert!(series.insert(key.to_owned(), value.parse().unwrap()).is_none(), "{key} is there twice");
        }
    }
    for (key, count) in series.iter().filter(|(key, _)| key.ends_with("_count")) {
        let bucket = |le: &str| series[&format!("{}_bucket{{le=\"{le}\"}}", key.strip_suffix("_count").unwrap())];
        assert_eq!(bucket("+Inf"), *count, "{key}");
    }
    series
}

/// What a rank 0 does: two launches that say how they go and wait to be let on.
const TALKS: &str = r#"
    if [ $RANK = 0 ]; then
      progress 7
      cat > "$PAWL_METRICS.new" <<TEXT
# HELP t_step_seconds A step.
# TYPE t_step_seconds histogram
t_step_seconds_bucket{le="1"} 6
t_step_seconds_bucket{le="+Inf"} 7
t_step_seconds_sum 3.5
t_step_seconds_count 7
# HELP pawl_train_step Of somebody else.
# TYPE pawl_train_step gauge
pawl_train_step 99
torn{
TEXT
      mv "$PAWL_METRICS.new" "$PAWL_METRICS"
    fi
    until [ -e ../../go-$LAUNCH ]; do sleep 0.02; done; done_well"#;

fn let_on(dir: &Path, launch: &str) {
    std::fs::write(dir.join(format!("go-{launch}")), "").unwrap();
}

#[tokio::test]
async fn agent_0_speaks_for_the_gang_and_every_agent_for_itself() {
    let dir = tempdir().unwrap();
    let plan = plan(3, 2, &["a", "b"], TALKS);
    let (agents, addresses): (Vec<_>, Vec<_>) = nodes(dir.path(), 3).into_iter().map(|node| start(&plan, node)).unzip();
    let first = addresses[0];

    let said = until(first, "GET /progress", |body| !body.is_empty()).await;
    let progress: Progress = serde_json::from_str(&said).unwrap();
    assert_eq!((&*progress.launch, progress.step, progress.items), ("a", 7, 70));
    let metrics = strictly(&until(first, "GET /metrics", |body| body.contains("t_step_seconds")).await);
    assert_eq!((metrics["t_step_seconds_count"], metrics["pawl_train_step"]), (7.0, 7.0));
    assert_eq!((metrics["pawl_agent_ranks"], metrics["pawl_launch_running{kind=\"Measure\"}"]), (2.0, 1.0));
    for other in &addresses[1..] {
        let own = strictly(&until(*other, "GET /metrics", |body| body.contains("ranks 2")).await);
        assert!(own.keys().eq(["pawl_agent_ranks"]), "{own:?}");
        assert!(ask(*other, "GET /attempt").await.0.starts_with("http/1.1 404"));
        assert_eq!(ask(*other, "GET /healthz").await.1, "ok\n");
    }
    let attempt: Attempt = serde_json::from_str(&ask(first, "GET /attempt").await.1).unwrap();
    assert_eq!((&*attempt.attempt, attempt.results.len(), attempt.progress), ("job-1", 0, Some(progress)));

    let_on(dir.path(), "a");
    let second = until(first, "GET /attempt", |body| body.contains(r#""launch":"b","kind""#)).await;
    let attempt: Attempt = serde_json::from_str(&second).unwrap();
    assert_eq!((&*attempt.results[0].launch, attempt.results[0].outcome), ("a", Outcome::Done));
    let metrics = strictly(&ask(first, "GET /metrics").await.1);
    assert_eq!(metrics["pawl_launches_total{kind=\"Measure\",outcome=\"Done\"}"], 1.0);
    let_on(dir.path(), "b");
    for agent in agents {
        assert_eq!(gang::outcomes(&agent.result().await), [("a", Outcome::Done), ("b", Outcome::Done)]);
    }
    let attempt: Attempt = serde_json::from_str(&ask(first, "GET /attempt").await.1).unwrap();
    assert_eq!((attempt.results.len(), attempt.progress), (2, None));
}

#[tokio::test]
async fn before_anything_is_known_there_is_no_progress_and_an_attempt() {
    let dir = tempdir().unwrap();
    let plan = plan(1, 1, &["a"], "touch ../up; until [ -e ../../go-a ]; do sleep 0.02; done; done_well");
    let node = Node { limits: gang::limits(), ..Node::local(dir.path().join("node"), Vec::new()) };
    let (agent, address) = start(&plan, node);
    appears(&dir.path().join("node/up")).await;
    let (head, body) = ask(address, "GET /progress").await;
    assert!(head.starts_with("http/1.1 204") && body.is_empty(), "{head}\n\n{body}");
    let (head, body) = ask(address, "GET /attempt").await;
    assert!(head.contains("content-type: application/json") && body == r#"{"attempt":"job-1"}"#, "{head}\n\n{body}");
    let (head, body) = ask(address, "HEAD /healthz").await;
    assert!(head.starts_with("http/1.1 200") && body.is_empty());
    assert!(ask(address, "POST /attempt").await.0.starts_with("http/1.1 405"));
    let (head, body) = ask(address, "GET /").await;
    assert!(head.starts_with("http/1.1 404") && body.contains("/metrics"), "{head}");
    let_on(dir.path(), "a");
    agent.result().await;
}

#[tokio::test]
async fn strangers_keep_nobody_from_asking() {
    let dir = tempdir().unwrap();
    let plan = plan(1, 1, &["a"], "until [ -e ../../go-a ]; do sleep 0.02; done; done_well");
    let node = Node { limits: gang::limits(), ..Node::local(dir.path().join("node"), Vec::new()) };
    let (agent, address) = start(&plan, node);
    // More than there are places for, and each of them silent or never done.
    let mut strangers: Vec<_> = (0..120).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (index, stranger) in strangers.iter_mut().enumerate() {
        let _ = match index % 3 {
            0 => stranger.write_all(b"GET /metr"),
            1 => stranger.write_all(&vec![b'x'; 64 << 10]),
            _ => Ok(()),
        };
    }
    drop(strangers.split_off(100));
    let asked = Instant::now();
    assert_eq!(ask(address, "GET /healthz").await.1, "ok\n");
    assert!(asked.elapsed() < Duration::from_secs(25), "{:?}", asked.elapsed());
    let_on(dir.path(), "a");
    assert_eq!(gang::outcomes(&agent.result().await), [("a", Outcome::Done)]);
}
