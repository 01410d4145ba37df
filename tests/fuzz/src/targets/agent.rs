//! The agent: its HTTP server on port 9470, and the files that a trainer writes for it.

use super::block_on;
use crate::parts::parts;
use crate::scratch;
use pawl_agent::{Event, Live, answer_over, finished_launches};
use pawl_contract::live::{Attempt, MAX_ATTEMPT};
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use pawl_contract::progress::Progress;
use pawl_contract::report::{LaunchResult, MAX_TERMINATION_MESSAGE, Report, fold, unfold};
use serde_json::json;
use std::path::Path;
use std::sync::LazyLock;

static PLAN: LazyLock<AttemptPlan> = LazyLock::new(|| {
    let launch = |name: &str| {
        json!({"contract": 1, "job": "j", "attempt": "j-1", "launch": name, "kind": "Train", "workload": {}, "settings": {},
               "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0})
    };
    let plan = json!({"contract": 1, "job": "j", "attempt": "j-1", "replicas": 1, "ranksPerReplica": 2, "gpusPerReplica": 0,
                      "launches": [launch("l-0"), launch("l-1")], "stopOnFailure": false});
    serde_json::from_value(plan).expect("a plan")
});

/// A running launch of agent 0, with its files in `directory`.
fn live(directory: &Path) -> Live {
    let live = Live::new(&PLAN, 0, directory).expect("metrics have valid names");
    live.hear(&Event::LaunchStarted { launch: "l-0".to_owned(), kind: LaunchKind::Train });
    live
}

/// The bytes that the server sends to a client that sends `request` and then nothing more.
fn answer(live: &Live, request: &[u8]) -> Vec<u8> {
    let mut sent = Vec::new();
    let _ = block_on(answer_over(tokio::io::join(request, &mut sent), live));
    sent
}

/// Any request gets an HTTP response of bounded size, or none.
pub fn http(input: &[u8]) {
    let live = live(Path::new("/nonexistent"));
    let sent = answer(&live, input);
    assert!(sent.is_empty() || sent.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&sent));
    assert!(sent.len() <= 64 << 10, "{} bytes", sent.len());
}

/// `report.json`, `progress.json`, `metrics.prom` and `attempt.json`: what the agent makes of them is bounded and can
/// be read.
pub fn trainer_files(input: &[u8]) {
    let [report, progress, metrics, plan] = parts(input);
    let directory = scratch::directory();
    let launch = directory.path().join("l-0");
    std::fs::create_dir(&launch).expect("a directory can be created");
    scratch::write(&launch.join("report.json"), report);
    scratch::write(&launch.join("metrics.prom"), metrics);
    let known = serde_json::to_vec(&*PLAN).expect("a plan is JSON");
    scratch::write(&directory.path().join("attempt.json"), if plan.is_empty() { &known } else { plan });

    let live = live(directory.path());
    if let Ok(progress) = serde_json::from_slice::<Progress>(progress) {
        live.hear(&Event::Progress(Box::new(progress)));
    }
    if let Ok(report) = serde_json::from_slice::<Report>(report) {
        let result = LaunchResult::from(&report);
        assert!(result.message.len() <= 200, "a message has {} bytes", result.message.len());
        live.hear(&Event::LaunchEnded(Box::new(report)));
    }
    let results = finished_launches(directory.path()).unwrap_or_default();
    let folded = fold(&results);
    assert!(folded.len() <= MAX_TERMINATION_MESSAGE, "a termination message has {} bytes", folded.len());
    unfold(&folded).unwrap_or_else(|error| panic!("a termination message cannot be read: {error}: {folded}"));

    let attempt = answer(&live, b"GET /attempt HTTP/1.1\r\nhost: a\r\n\r\n");
    let body = attempt.windows(4).position(|window| window == b"\r\n\r\n").map(|end| &attempt[end + 4..]);
    let body = body.expect("a response has a body");
    assert!(body.len() <= MAX_ATTEMPT, "{} bytes", body.len());
    serde_json::from_slice::<Attempt>(body)
        .unwrap_or_else(|error| panic!("an answer cannot be read: {error}: {}", String::from_utf8_lossy(body)));
    for path in ["/metrics", "/progress"] {
        answer(&live, format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes());
    }
}
