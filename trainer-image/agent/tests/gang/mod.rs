//! Plans whose ranks are shell scripts, and agents that run them.

#![allow(dead_code, reason = "each test binary uses its own part")]

use pawl_agent::{AttemptResult, Event, Limits, Node, Rendezvous, Stop, run};
use pawl_contract::CONTRACT_VERSION;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, Budget, LaunchKind, LaunchPlan, WorkloadPlan};
use pawl_contract::progress::RankPhase;
use pawl_contract::record::{self, Record};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What every script may use: `report OUTCOME MESSAGE`, `progress STEP`, `forever`.
const PRELUDE: &str = r#"
LAUNCH=$(basename "$PWD")
report() {
  echo '{"contract":1,"launch":"'$LAUNCH'","kind":"Measure","rank":'$RANK',"outcome":"'$1'","message":"'$2'","steps":7,"items":70}' > "$PAWL_REPORT.new"
  mv "$PAWL_REPORT.new" "$PAWL_REPORT"
}
progress() {
  echo '{"launch":"'$LAUNCH'","kind":"Measure","step":'$1',"items":'$1'0,"epoch":0}' > "$PAWL_PROGRESS.new"
  mv "$PAWL_PROGRESS.new" "$PAWL_PROGRESS"
}
at() {
  echo '{"launch":"'$LAUNCH'","kind":"Measure","step":'$1',"items":'$1',"epoch":0,"phase":"'$2'","heartbeat":'$3'}' > "$PAWL_PROGRESS.new"
  mv "$PAWL_PROGRESS.new" "$PAWL_PROGRESS"
}
forever() { while :; do sleep 0.05; done; }
done_well() { report Done ""; exit 0; }
"#;

/// A script that trains until it is stopped, and takes a moment for its checkpoint.
pub const TRAINS: &str =
    r#"trap 'report Stopped "checkpoint at step 7"; sleep 0.3; exit 30' TERM; touch up-$RANK; forever"#;

pub fn launch(name: &str) -> LaunchPlan {
    LaunchPlan {
        contract: CONTRACT_VERSION,
        job: "job".into(),
        attempt: "job-1".into(),
        launch: name.into(),
        title: String::new(),
        kind: LaunchKind::Measure,
        workload: WorkloadPlan { name: None, config: serde_json::Map::new() },
        settings: pawl_contract::settings::Settings::default(),
        seed: 42,
        budget: Budget::default(),
        checkpoint: None,
        hang_timeout_seconds: 30.0,
    }
}

pub fn plan(replicas: u32, ranks: u32, launches: &[&str], script: &str) -> AttemptPlan {
    AttemptPlan {
        contract: CONTRACT_VERSION,
        job: "job".into(),
        attempt: "job-1".into(),
        replicas,
        ranks_per_replica: ranks,
        gpus_per_replica: 0,
        checks: None,
        command: vec!["sh".into(), "-c".into(), format!("{PRELUDE}{script}")],
        script: Default::default(),
        gather_seconds: None,
        launches: launches.iter().map(|name| launch(name)).collect(),
        stop_on_failure: false,
        events: Vec::new(),
    }
}

pub fn limits() -> Limits {
    Limits {
        start_allowance: Duration::from_millis(500),
        unmatched_after: Duration::from_millis(200),
        longest_phase: RankPhase::longest,
        stop_grace: Duration::from_secs(5),
        peer_grace: Duration::from_millis(200),
        gather: Duration::from_secs(20),
        lost_after: Duration::from_secs(4),
        log_bytes: 64 << 10,
    }
}

/// One agent that runs, with what it told.
pub struct Agent {
    pub dir: PathBuf,
    pub stop: watch::Sender<Stop>,
    pub events: Arc<Mutex<Vec<(Instant, Event)>>>,
    pub task: tokio::task::JoinHandle<Result<AttemptResult, pawl_agent::AgentError>>,
}

impl Agent {
    pub fn start(plan: &AttemptPlan, node: Node) -> Self {
        let (stop, stopped) = watch::channel(Stop::No);
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&events);
        let (plan, dir) = (plan.clone(), node.work_dir.clone());
        let task = tokio::spawn(async move {
            run(&plan, node, stopped, move |event| heard.lock().unwrap().push((Instant::now(), event))).await
        });
        Self { dir, stop, events, task }
    }

    pub async fn result(self) -> AttemptResult {
        self.task.await.unwrap().unwrap()
    }

    /// Waits until a file of the attempt is there.
    pub async fn sees(&self, file: &str) {
        appears(&self.dir.join(file)).await;
    }
}

pub async fn appears(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !path.exists() {
        assert!(Instant::now() < deadline, "{} does not appear", path.display());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One agent is the gang.
pub fn alone(dir: &Path, plan: &AttemptPlan) -> Agent {
    Agent::start(plan, Node { limits: limits(), ..Node::local(dir, Vec::new()) })
}

pub async fn run_alone(dir: &Path, plan: &AttemptPlan) -> AttemptResult {
    alone(dir, plan).result().await
}

/// The nodes of a gang on this machine's loopback interface.
pub fn nodes(dir: &Path, replicas: u32) -> Vec<Node> {
    let token_file = dir.join("token");
    std::fs::write(&token_file, "0123456789abcdef".repeat(4)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut first = Some(listener);
    let node = |replica: u32| {
        let (address, token_file) = (address.clone(), token_file.clone());
        let rendezvous = match first.take() {
            Some(listener) => Rendezvous::Listen { listener, address, token_file },
            None => Rendezvous::Join { address, token_file },
        };
        let local = Node::local(dir.join(format!("node-{replica}")), Vec::new());
        Node { replica, limits: limits(), rendezvous, ..local }
    };
    (0..replicas).map(node).collect()
}

pub fn address(node: &Node) -> String {
    match &node.rendezvous {
        Rendezvous::Listen { address, .. } | Rendezvous::Join { address, .. } => address.clone(),
        Rendezvous::Local => panic!("a gang of one has no address beforehand"),
    }
}

pub fn outcomes(result: &AttemptResult) -> Vec<(&str, Outcome)> {
    result.launches.iter().map(|launch| (launch.launch.as_str(), launch.outcome)).collect()
}

/// Whether a process lives (a zombie does not).
pub fn lives(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
        .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z'))
}

pub async fn dies(pid: &str, within: Duration) {
    let deadline = Instant::now() + within;
    while lives(pid) {
        assert!(Instant::now() < deadline, "process {pid} lives on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The record of the attempt whose checkpoints are in `storage`.
pub fn record_in(storage: &Path) -> Record {
    let path = storage.join(record::FOLDER).join(record::ATTEMPTS).join("job-1.jsonl");
    Record::read(&std::fs::read(path).unwrap()).unwrap()
}
