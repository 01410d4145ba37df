//! Agents in memory: real connections on the loopback.

use super::*;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use parking_lot::Mutex;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn pace(port: u16) -> Pace {
    Pace {
        ask_every: Duration::from_millis(40),
        progress_every: Duration::from_millis(400),
        deadline: Duration::from_millis(300),
        concurrency: 4,
        port,
    }
}

/// An agent whose answer is `body`; gives its port.
async fn agent(routes: Router) -> u16 {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    port
}

fn answering(attempt: Arc<Mutex<Attempt>>) -> Router {
    let answer = move || {
        let attempt = attempt.lock().clone();
        async { axum::Json(attempt) }
    };
    Router::new().route("/attempt", get(answer))
}

fn attempt(name: &str) -> Attempt {
    Attempt { attempt: name.to_owned(), results: Vec::new(), progress: None }
}

fn result(launch: &str) -> LaunchResult {
    serde_json::from_value(serde_json::json!({"launch": launch, "outcome": Outcome::Done})).unwrap()
}

fn progress(kind: LaunchKind, step: u64) -> Progress {
    let kind = serde_json::to_value(kind).unwrap();
    serde_json::from_value(serde_json::json!({"launch": "l", "kind": kind, "step": step, "items": step, "epoch": 0}))
        .unwrap()
}

async fn named(jobs: &mut mpsc::UnboundedReceiver<Key>, limit: Duration) -> Option<String> {
    time::timeout(limit, jobs.recv()).await.ok().flatten().map(|job| job.name)
}

#[tokio::test]
async fn a_job_is_named_when_a_launch_ends_and_seldom_for_progress() {
    let answer = Arc::new(Mutex::new(attempt("ups-1")));
    let pace = pace(agent(answering(answer.clone())).await);
    let (live, mut jobs) = Live::new(Jobs::default(), pace, Metrics::new(Jobs::default()));
    live.watch(&Key::new("team", "ups"), "ups-1", LOOPBACK);
    let asking = live.clone();
    let task = tokio::spawn(async move { asking.run().await });
    assert_eq!(named(&mut jobs, Duration::from_millis(200)).await, None, "nothing has happened");

    answer.lock().results.push(result("measure-1"));
    assert_eq!(named(&mut jobs, Duration::from_secs(2)).await.as_deref(), Some("ups"), "a launch ended");
    let latest = live.latest(&Key::new("team", "ups"), "ups-1").expect("an answer");
    assert_eq!(latest.results.len(), 1);
    assert_eq!(named(&mut jobs, Duration::from_millis(200)).await, None, "nothing new");

    answer.lock().progress = Some(progress(LaunchKind::Measure, 7));
    assert_eq!(named(&mut jobs, pace.progress_every * 2).await, None, "progress of a measurement does not matter");

    let writer = answer.clone();
    let steps = tokio::spawn(async move {
        for step in 1.. {
            writer.lock().progress = Some(progress(LaunchKind::Train, step));
            time::sleep(Duration::from_millis(10)).await;
        }
    });
    let mut times = 0;
    let began = Instant::now();
    while began.elapsed() < pace.progress_every * 4 {
        times += usize::from(named(&mut jobs, pace.progress_every * 4).await.is_some());
    }
    steps.abort();
    assert!((2..=5).contains(&times), "named {times} times in four intervals");
    task.abort();
}

#[tokio::test]
async fn an_answer_of_other_pods_at_the_same_address_is_not_believed() {
    let mut other = attempt("other-3");
    other.results.push(result("measure-1"));
    let pace = pace(agent(answering(Arc::new(Mutex::new(other)))).await);
    let metrics = Metrics::new(Jobs::default());
    let (live, mut jobs) = Live::new(Jobs::default(), pace, metrics.clone());
    live.watch(&Key::new("team", "ups"), "ups-1", LOOPBACK);
    let _ = time::timeout(Duration::from_millis(300), live.run()).await;
    assert!(live.latest(&Key::new("team", "ups"), "ups-1").is_none());
    assert!(jobs.try_recv().is_err());
    assert!(metrics.render().contains(r#"pawl_live_requests_total{outcome="invalid"}"#));
}

#[tokio::test]
async fn a_new_attempt_does_not_see_the_answers_of_the_one_before() {
    let answer = Arc::new(Mutex::new(attempt("ups-1")));
    let pace = pace(agent(answering(answer)).await);
    let (live, _jobs) = Live::new(Jobs::default(), pace, Metrics::new(Jobs::default()));
    live.watch(&Key::new("team", "ups"), "ups-1", LOOPBACK);
    let _ = time::timeout(Duration::from_millis(300), live.run()).await;
    assert!(live.latest(&Key::new("team", "ups"), "ups-1").is_some());
    assert!(live.latest(&Key::new("team", "ups"), "ups-2").is_none());
    live.watch(&Key::new("team", "ups"), "ups-2", LOOPBACK);
    assert!(live.latest(&Key::new("team", "ups"), "ups-2").is_none());
    live.retain(&Key::new("team", "ups"), |attempt| attempt == "ups-2");
    assert!(live.latest(&Key::new("team", "ups"), "ups-1").is_none());
    live.retain(&Key::new("team", "ups"), |_| false);
    assert!(live.latest(&Key::new("team", "ups"), "ups-2").is_none());
}

#[tokio::test]
async fn invalid_answers_are_counted_and_dropped() {
    let hang = Router::new().route("/attempt", get(async || time::sleep(Duration::from_secs(60)).await));
    let refuse = Router::new().route("/attempt", get(async || StatusCode::NO_CONTENT));
    let huge = Router::new().route("/attempt", get(async || vec![b' '; pawl_contract::live::MAX_ATTEMPT + 1]));
    let closed = {
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let cases = [
        ("timeout", agent(hang).await),
        ("refused", agent(refuse).await),
        ("invalid", agent(huge).await),
        ("unreachable", closed),
    ];
    for (outcome, port) in cases {
        let metrics = Metrics::new(Jobs::default());
        let (live, mut jobs) = Live::new(Jobs::default(), pace(port), metrics.clone());
        live.watch(&Key::new("team", "ups"), "ups-1", LOOPBACK);
        let _ = time::timeout(Duration::from_millis(800), live.run()).await;
        assert!(live.latest(&Key::new("team", "ups"), "ups-1").is_none());
        assert!(jobs.try_recv().is_err());
        let text = metrics.render();
        assert!(text.contains(&format!("pawl_live_requests_total{{outcome=\"{outcome}\"}}")), "{outcome}: {text}");
    }
}

#[tokio::test]
async fn no_more_are_asked_at_a_time_than_allowed() {
    static NOW: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let slow = Router::new().route(
        "/attempt",
        get(async || {
            MOST.fetch_max(NOW.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            time::sleep(Duration::from_millis(20)).await;
            NOW.fetch_sub(1, Ordering::SeqCst);
            axum::Json(attempt("x"))
        }),
    );
    let pace = pace(agent(slow).await);
    let (live, _jobs) = Live::new(Jobs::default(), pace, Metrics::new(Jobs::default()));
    for job in 0..50 {
        live.watch(&Key::new("team", format!("job-{job}")), "x", LOOPBACK);
    }
    let _ = time::timeout(Duration::from_millis(600), live.run()).await;
    let most = MOST.load(Ordering::SeqCst);
    assert!((2..=pace.concurrency).contains(&most), "{most} at a time");
    let answered = (0..50).filter(|job| live.latest(&Key::new("team", format!("job-{job}")), "x").is_some()).count();
    assert_eq!(answered, 50, "and all have their turn");
}

#[test]
fn a_thousand_gangs_are_spread_over_the_interval() {
    let interval = Duration::from_secs(5);
    let mut tenths = [0_u32; 10];
    for job in 0..1000 {
        let key = Key::new("team", format!("ups-{job}"));
        let at = slot(&key, interval);
        assert_eq!(at, slot(&key, interval), "the same each time");
        tenths[(at.as_secs_f64() * 2.0).min(9.0) as usize] += 1;
    }
    assert!(tenths.iter().all(|&count| (60..=140).contains(&count)), "{tenths:?}");
}
