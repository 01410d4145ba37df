//! Training scripts that know nothing of Pawl: their arguments come from placeholders, their measurements from their
//! output.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod gang;

use gang::{alone, launch, nodes, outcomes, plan, run_alone};
use pawl_agent::{AttemptEnd, Event, Stop, finished_reports};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, GangSize, LaunchKind};
use pawl_contract::script::{Monitor, MonitorSource};
use std::path::Path;
use std::sync::Arc;
use tempfile::tempdir;

/// `train.sh STEPS SECONDS [FAULT]`: prints a line for each step, and validates at the end.
const TRAIN: &str = r#"
echo $$ >> "$(dirname "$0")/started"
step=0
while [ $step -lt $1 ]; do
  step=$((step + 1)); loss=0.5
  sleep $2
  if [ $step = 3 ]; then
    case $3 in
      nan) loss=nan ;;
      memory) echo "torch.OutOfMemoryError: CUDA out of memory." >&2; exit 1 ;;
      hang) exec sleep 1000 ;;
      usage) echo "train.py: error: unrecognized arguments: --fast" >&2; exit 2 ;;
      other) echo "ValueError: no"; exit 1 ;;
      early) exit 0 ;;
      once) mkdir "$(dirname "$0")/failed" 2>/dev/null && { echo "ValueError: no"; exit 1; } ;;
    esac
  fi
  echo "step $step: loss $loss"
done
echo "validation: loss 0.25, accuracy 0.5"
"#;

/// An attempt whose ranks run `train.sh` with these arguments, one launch for each name.
fn script(dir: &Path, ranks: u32, launches: &[&str], arguments: &str) -> AttemptPlan {
    let path = dir.join("train.sh");
    std::fs::write(&path, TRAIN).unwrap();
    let mut plan = plan(1, ranks, launches, "");
    plan.command = vec!["sh".to_owned(), path.to_string_lossy().into_owned()];
    plan.command.extend(arguments.split(' ').map(str::to_owned));
    plan.script.monitor = Some(Monitor {
        source: MonitorSource::Log,
        training: Some(r"step (?<step>\d+): loss (?<loss>\S+)".to_owned()),
        validation: Some(r"validation: loss (?<loss>\S+) accuracy (?<accuracy>\S+)".to_owned()),
    });
    for launch in &mut plan.launches {
        launch.settings.batch_per_gpu = Some(8);
        (launch.budget.warmup_steps, launch.budget.window_steps) = (Some(2), Some(8));
    }
    plan
}

fn started(dir: &Path) -> usize {
    std::fs::read_to_string(dir.join("started")).unwrap_or_default().lines().count()
}

const BY_STEPS: &str = "$(launch.steps) 0.03 $(settings.workload.fault:-none) $(settings.batchPerGpu)";

#[tokio::test]
async fn a_script_is_measured_by_its_output_and_the_agent_does_its_preflight() {
    let dir = tempdir().unwrap();
    let mut plan = script(dir.path(), 1, &["check", "measure", "quality"], BY_STEPS);
    plan.launches[0].kind = LaunchKind::Preflight;
    plan.launches[2].kind = LaunchKind::Quality;
    plan.launches[2].budget = pawl_contract::plan::Budget { items: Some(80), ..Default::default() };
    let result = run_alone(&dir.path().join("a"), &plan).await;
    assert_eq!(result.end, AttemptEnd::Complete, "{result:?}");
    let all = [("check", Outcome::Done), ("measure", Outcome::Done), ("quality", Outcome::Done)];
    assert_eq!(outcomes(&result), all, "{result:?}");
    assert_eq!(started(dir.path()), 2, "the preflight needs no process");
    let reports = finished_reports(&dir.path().join("a")).unwrap();
    let [_, measure, quality] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((measure.measured.steps, measure.measured.items, measure.losses.len()), (10, 80, 10));
    let rate = measure.measured.items_per_second.unwrap();
    // 8 items in a step of at least 0.03 s.
    assert!(rate > 1.0 && rate < 8.0 / 0.03, "{rate}");
    let validation = quality.measured.validation.as_ref().unwrap();
    assert_eq!((quality.measured.items, validation.items, validation.metrics["accuracy"]), (80, 80, 0.5));
}

#[tokio::test]
async fn a_measurement_of_a_script_that_does_not_end_is_ended_on_all_nodes() {
    let dir = tempdir().unwrap();
    let mut plan = script(dir.path(), 2, &["a", "b"], "100000 0.02 none $(settings.batchPerGpu)");
    plan.replicas = 2;
    let agents: Vec<_> = nodes(dir.path(), 2).into_iter().map(|node| gang::Agent::start(&plan, node)).collect();
    for agent in agents {
        let result = agent.result().await;
        assert_eq!(outcomes(&result), [("a", Outcome::Done), ("b", Outcome::Done)], "{result:?}");
    }
    assert_eq!(started(dir.path()), 8);
}

#[tokio::test]
async fn failures_of_a_script_are_recognized() {
    for (fault, outcome, part) in [
        ("nan", Outcome::NonFinite, "at step 3"),
        ("memory", Outcome::OutOfMemory, "torch.OutOfMemoryError: CUDA out of memory."),
        ("hang", Outcome::Hang, "the last step was 2"),
        ("usage", Outcome::Unsupported, "unrecognized arguments: --fast"),
        ("other", Outcome::Failed, "ValueError: no"),
        ("early", Outcome::Unsupported, "step 2 of 10: pass $(launch.steps)"),
    ] {
        let dir = tempdir().unwrap();
        let mut plan = script(dir.path(), 1, &["l"], BY_STEPS);
        plan.launches[0].hang_timeout_seconds = 3.0;
        plan.launches[0].settings.workload = Some([("fault".to_owned(), fault.into())].into_iter().collect());
        let result = run_alone(&dir.path().join("a"), &plan).await;
        assert_eq!(outcomes(&result), [("l", outcome)], "{fault}: {result:?}");
        assert!(result.launches[0].message.contains(part), "{fault}: {}", result.launches[0].message);
    }
}

/// As `torchrun --max-restarts`: counts in the environment of its workers, which have sessions of their own.
const LAUNCHER: &str = r#"
for count in 0 1 2; do
  TORCHELASTIC_RESTART_COUNT=$count setsid --wait sh "$(dirname "$0")/train.sh" "$@" && exit 0
done
exit 1
"#;

#[tokio::test]
async fn a_launcher_that_restarts_its_workers_hides_no_failure() {
    for (kind, is_told) in [(LaunchKind::Measure, false), (LaunchKind::Train, true)] {
        let dir = tempdir().unwrap();
        let steps = if is_told { 120 } else { 100_000 };
        let mut plan = script(dir.path(), 1, &["l"], &format!("{steps} 0.03 once $(settings.batchPerGpu)"));
        let launcher = dir.path().join("launcher.sh");
        std::fs::write(&launcher, LAUNCHER).unwrap();
        plan.command[1] = launcher.to_string_lossy().into_owned();
        plan.launches[0].kind = kind;
        if is_told {
            plan.launches[0].budget = pawl_contract::plan::Budget { items: Some(960), ..Default::default() };
        }
        let agent = alone(&dir.path().join("a"), &plan);
        let events = Arc::clone(&agent.events);
        let result = agent.result().await;
        let warnings: Vec<_> = events.lock().unwrap().iter().filter_map(|(_, event)| warning(event)).collect();
        let message = if is_told { warnings.join("\n") } else { result.launches[0].message.clone() };
        assert!(message.contains("its launcher restarted the workers once, after a failure"), "{message} {result:?}");
        let expected = if is_told { Outcome::Done } else { Outcome::Failed };
        assert_eq!(outcomes(&result), [("l", expected)], "{result:?}");
        assert_eq!(started(dir.path()), 2);
        for pid in std::fs::read_to_string(dir.path().join("started")).unwrap().lines() {
            assert!(!gang::lives(pid), "a worker outlived its launch");
        }
    }
}

#[tokio::test]
async fn a_pattern_that_matches_nothing_is_named_early_and_at_the_end() {
    let dir = tempdir().unwrap();
    let mut plan = script(dir.path(), 1, &["l"], "100 0.05 none $(settings.batchPerGpu)");
    plan.script.monitor.as_mut().unwrap().training = Some(r"iteration (?<step>\d+)".to_owned());
    plan.launches[0].hang_timeout_seconds = 1.0;
    let agent = alone(&dir.path().join("a"), &plan);
    let events = Arc::clone(&agent.events);
    let result = agent.result().await;
    assert_eq!(outcomes(&result), [("l", Outcome::Hang)]);
    let parts = [r"monitor.training `iteration (?<step>\d+)` has found no step", "the last line: `step "];
    let said: Vec<_> = events.lock().unwrap().iter().filter_map(|(_, event)| warning(event)).collect();
    let [warning] = &said[..] else { panic!("{said:?}") };
    for part in parts {
        assert!(warning.contains(part), "{warning}");
        assert!(result.launches[0].message.contains(part), "{}", result.launches[0].message);
    }
}

#[tokio::test]
async fn a_variable_that_is_not_set_is_named_and_nothing_is_started() {
    let dir = tempdir().unwrap();
    let plan = |checks: Option<GangSize>| {
        let mut plan = script(dir.path(), 1, &["l"], &format!("$(NOT_SET_ANYWHERE) {BY_STEPS}"));
        plan.launches[0].kind = if checks.is_some() { LaunchKind::Preflight } else { LaunchKind::Measure };
        AttemptPlan { checks, ..plan }
    };
    let result = run_alone(&dir.path().join("a"), &plan(None)).await;
    assert_eq!(outcomes(&result), [("l", Outcome::InvalidPlan)]);
    let message = &result.launches[0].message;
    assert!(message.contains("the environment variable NOT_SET_ANYWHERE is not set: set it in"), "{message}");
    // A pod without a GPU that checks for pods with one may lack what they have.
    let gang = GangSize { replicas: 2, ranks_per_replica: 1, gpus_per_replica: 1 };
    let result = run_alone(&dir.path().join("b"), &plan(Some(gang))).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Done)], "{result:?}");
    assert_eq!(started(dir.path()), 0);
}

fn warning(event: &Event) -> Option<String> {
    if let Event::Warning { message, .. } = event { Some(message.clone()) } else { None }
}

#[tokio::test]
async fn a_setting_that_no_placeholder_uses_is_unsupported_and_nothing_is_started() {
    let dir = tempdir().unwrap();
    let mut plan = script(dir.path(), 1, &["l", "m"], BY_STEPS);
    plan.launches[0].settings = serde_json::from_str(r#"{"batchPerGpu": 8, "compile": "Graph"}"#).unwrap();
    plan.launches[1].settings.batch_per_gpu = None;
    let result = run_alone(&dir.path().join("a"), &plan).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Unsupported), ("m", Outcome::InvalidPlan)]);
    assert!(result.launches[0].message.contains("settings.compile: no placeholder uses this value"));
    assert!(result.launches[1].message.contains("$(settings.batchPerGpu) has no value"), "{result:?}");
    assert_eq!(started(dir.path()), 0);
}

#[tokio::test]
async fn a_script_that_is_asked_to_stop_has_stopped() {
    let dir = tempdir().unwrap();
    let mut plan = script(dir.path(), 1, &["l"], "100000 0.05 none $(settings.batchPerGpu)");
    plan.launches[0].kind = LaunchKind::Train;
    plan.launches[0].budget = pawl_contract::plan::Budget { items: Some(800_000), ..Default::default() };
    let agent = alone(&dir.path().join("a"), &plan);
    agent.sees("l/progress.json").await;
    agent.stop.send(Stop::Gracefully).unwrap();
    let result = agent.result().await;
    assert_eq!(result.end, AttemptEnd::Stopped, "{result:?}");
}

#[tokio::test]
async fn every_rank_has_the_environment_of_torchrun_and_of_its_placeholders() {
    let dir = tempdir().unwrap();
    let mut plan = plan(1, 2, &["l"], r#"env > "env-$RANK"; done_well"#);
    plan.launches[0] = launch("l");
    plan.launches[0].settings = serde_json::from_str(r#"{"batchPerGpu": 8, "workload": {"width": 3}}"#).unwrap();
    plan.script.env = [("WIDTH", "$(settings.workload.width)/$(RANK)"), ("ESCAPED", "$$(seed)")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let result = run_alone(dir.path(), &plan).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Done)], "{result:?}");
    let environment = std::fs::read_to_string(dir.path().join("l/env-1")).unwrap();
    for line in [
        "WIDTH=3/1",
        "ESCAPED=$(seed)",
        "PAWL_CONSUMED_SETTINGS=workload.width",
        "LOCAL_WORLD_SIZE=2",
        "GROUP_RANK=0",
        "NODE_RANK=0",
        "GROUP_WORLD_SIZE=1",
        "TORCHELASTIC_RUN_ID=job-1",
    ] {
        assert!(environment.lines().any(|found| found == line), "{line} is not in\n{environment}");
    }
}

#[tokio::test]
async fn a_path_of_the_command_that_does_not_exist_is_not_tried_again() {
    let dir = tempdir().unwrap();
    let ended = async |attempt: &str, kind, monitor: Option<Monitor>| {
        let mut plan = plan(1, 1, &["l"], r#"cat "$1"; exit 1"#);
        plan.command.extend(["train", "/none/data/train.bin"].map(str::to_owned));
        plan.attempt = attempt.to_owned();
        plan.launches[0].attempt = attempt.to_owned();
        plan.launches[0].kind = kind;
        let place = dir.path().join(format!("{attempt}-{kind:?}-{}", monitor.is_some()));
        plan.script.monitor = monitor;
        let result = run_alone(&place, &plan).await;
        (result.launches[0].outcome, result.launches[0].message.clone())
    };
    let monitor = Monitor { training: Some(r"step (?<step>\d+)".to_owned()), ..Monitor::default() };
    for (monitor, kind) in [
        (None, LaunchKind::Measure),
        (Some(monitor), LaunchKind::Measure),
        // Only a script that is not followed knows preflights.
        (None, LaunchKind::Preflight),
    ] {
        let (outcome, message) = ended("job-2", kind, monitor.clone()).await;
        assert_eq!(outcome, Outcome::InvalidPlan, "{message}");
        assert!(message.contains("/none/data/train.bin does not exist on this node: correct it"), "{message}");
        // Launches have run before: another node may have it. The settings of later phases are checked then.
        assert_eq!(ended("job-5", kind, monitor).await.0, Outcome::Failed, "{kind:?}");
    }
}

/// A tracker that the user has switched on for the job, and one whose server is known only by a variable.
#[tokio::test]
async fn only_the_training_reports_to_the_trackers_of_a_script() {
    let dir = tempdir().unwrap();
    let mut plan = plan(1, 1, &["measure", "quality", "train"], "env > env; done_well");
    plan.launches[1].kind = LaunchKind::Quality;
    plan.launches[2].kind = LaunchKind::Train;
    let mut node = pawl_agent::Node::local(dir.path(), Vec::new());
    node.env = [("MLFLOW_TRACKING_URI", "http://mlflow"), ("COMET_START_ONLINE", "1")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    gang::Agent::start(&plan, node).result().await;
    let variable = |launch: &str, name: &str| {
        let environment = std::fs::read_to_string(dir.path().join(launch).join("env")).unwrap();
        environment.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    };
    for launch in ["measure", "quality"] {
        assert_eq!(variable(launch, "WANDB_MODE").as_deref(), Some("disabled"), "{launch}");
        assert_eq!(variable(launch, "MLFLOW_TRACKING_URI"), None, "{launch}");
        assert_eq!(variable(launch, "COMET_START_ONLINE").as_deref(), Some("1"), "{launch}: the manifest sets it");
    }
    assert_eq!(variable("train", "WANDB_MODE"), None);
    assert_eq!(variable("train", "MLFLOW_TRACKING_URI").as_deref(), Some("http://mlflow"));
}

/// The requests of Transformers' KubeflowCallback.
const CALLBACK: &str = r#"
import json, os, time, urllib.error, urllib.request
url, path = os.environ["KUBEFLOW_TRAINER_SERVER_URL"], os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]
def update(token, **metrics):
    metrics = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    status = {"lastUpdatedTime": "2026-01-01T00:00:00+00:00", "progressPercentage": 1, "metrics": metrics}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps({"trainerStatus": status}).encode(), headers, method="POST")
    return urllib.request.urlopen(request, timeout=5).status
try:
    update("wrong", current_step=9)
    raise SystemExit("a wrong token was accepted")
except urllib.error.HTTPError as error:
    assert error.code == 401
token = open(path).read().strip()
for step in range(0, 9, 2):
    assert update(token, current_step=step, total_steps=10, loss=1 / (step + 1), eval_loss=0.5) == 200
    time.sleep(0.05)
# The end, after a step that came less than 5 seconds after the last update.
assert update(token, eval_loss=0.5, train_loss=0.25) == 200
"#;

#[tokio::test]
async fn a_trainer_of_hugging_face_reports_by_its_kubeflow_callback() {
    let dir = tempdir().unwrap();
    let mut plan = script(dir.path(), 1, &["l"], "");
    plan.command = ["python3", "-c", CALLBACK].map(|word| word.replace("$(", "$$(")).to_vec();
    plan.launches[0].settings.batch_per_gpu = None;
    plan.script.monitor = Some(Monitor { source: MonitorSource::Kubeflow, ..Monitor::default() });
    let result = run_alone(&dir.path().join("a"), &plan).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Done)], "{result:?}");
    let reports = finished_reports(&dir.path().join("a")).unwrap();
    assert_eq!((reports[0].measured.steps, reports[0].losses.len()), (8, 5));
    assert_eq!(reports[0].measured.loss, Some(0.25), "the mean of all steps");
    assert!(reports[0].measured.items_per_second.unwrap() > 0.0);
    assert_eq!(reports[0].measured.validation.as_ref().unwrap().metrics["loss"], 0.5);
}

/// `fenced.sh DIRECTORY RESUMED`: writes a checkpoint in each tenth step, keeps the newest, and continues after the one
/// named.
const FENCED: &str = r#"
step=${2##*-}; [ "$step" = none ] && step=0
echo "resumed ${2##*/}" >> "$(dirname "$0")/resumed"
while :; do
  step=$((step + 1)); sleep 0.02
  echo "step $step: loss 0.5"
  [ $((step % 10)) = 0 ] || continue
  mkdir "$1/checkpoint-$step"
  for old in "$1"/checkpoint-*; do [ "$old" = "$1/checkpoint-$step" ] || rmdir "$old"; done
done
"#;

/// Plans of the attempts of a training that never ends, with a storage.
fn fenced(dir: &Path, attempt: u32) -> (AttemptPlan, pawl_agent::Node) {
    let path = dir.join("fenced.sh");
    std::fs::write(&path, FENCED).unwrap();
    let mut plan = script(dir, 1, &["train"], "");
    plan.attempt = format!("job-{attempt}");
    let words =
        ["sh", path.to_str().unwrap(), "$(checkpoint.dir)", "$(checkpoint.latest:-none)", "$(settings.batchPerGpu)"];
    plan.command = words.map(str::to_owned).to_vec();
    for launch in &mut plan.launches {
        launch.attempt.clone_from(&plan.attempt);
        launch.kind = LaunchKind::Train;
        launch.budget = pawl_contract::plan::Budget { items: Some(8_000_000), ..Default::default() };
        launch.checkpoint =
            serde_json::from_value(serde_json::json!({"everySeconds": 1.0, "keep": 1, "resume": true})).unwrap();
    }
    let mut node = pawl_agent::Node::local(dir.join(format!("a{attempt}")), Vec::new());
    node.checkpoints = dir.join("storage").to_string_lossy().into_owned();
    node.limits = gang::limits();
    (plan, node)
}

fn checkpoints(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir.join("storage")) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("checkpoint-") && !name.ends_with(".damaged")).collect()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_whose_gang_was_superseded_is_ended() {
    let dir = tempdir().unwrap();
    let (plan, node) = fenced(dir.path(), 1);
    let old = gang::Agent::start(&plan, node);
    until("the first gang writes", || !checkpoints(dir.path()).is_empty()).await;

    let (plan, node) = fenced(dir.path(), 2);
    let new = gang::Agent::start(&plan, node);
    let ended = old.result().await;
    assert_eq!(outcomes(&ended), [("train", Outcome::Stopped)], "{ended:?}");
    assert!(ended.launches[0].message.contains("attempt job-1 was superseded: a later one (2.1)"), "{ended:?}");

    // A pod of the old attempt that starts late never starts its script.
    let (plan, mut node) = fenced(dir.path(), 1);
    node.work_dir = dir.path().join("late");
    let late = gang::Agent::start(&plan, node).result().await;
    assert!(late.launches[0].message.contains("was superseded"), "{late:?}");
    let resumed = std::fs::read_to_string(dir.path().join("resumed")).unwrap();
    assert_eq!(resumed.lines().count(), 2, "{resumed}");

    new.stop.send(Stop::Gracefully).unwrap();
    assert_eq!(outcomes(&new.result().await), [("train", Outcome::Stopped)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_superseded_script_wrote_is_set_aside() {
    let dir = tempdir().unwrap();
    let (plan, node) = fenced(dir.path(), 1);
    let old = gang::Agent::start(&plan, node);
    until("the gang writes", || !checkpoints(dir.path()).is_empty()).await;
    // A later gang, far away, which has resumed an earlier checkpoint and written another one.
    let storage = dir.path().join("storage");
    std::fs::create_dir(storage.join("checkpoint-5")).unwrap();
    std::fs::write(storage.join(".epochs/2.1"), "").unwrap();
    let ended = old.result().await;
    assert_eq!(outcomes(&ended), [("train", Outcome::Stopped)], "{ended:?}");
    let left = checkpoints(dir.path());
    let aside: Vec<_> = std::fs::read_dir(storage.join(".pawl/quarantine")).unwrap().collect();
    assert!(!aside.is_empty(), "{left:?}");
    let (plan, node) = fenced(dir.path(), 3);
    let next = gang::Agent::start(&plan, node);
    until("the next gang writes", || checkpoints(dir.path()) != left).await;
    let resumed = std::fs::read_to_string(dir.path().join("resumed")).unwrap();
    let last = resumed.lines().last().unwrap();
    assert!(!last.contains("quarantine"), "{resumed}");
    next.stop.send(Stop::Now).unwrap();
    next.result().await;
}

/// `save.sh DIRECTORY RESUMED STEPS BAD_FROM BAD`: a checkpoint every 5 steps, the loss of every 10th step: 2, or BAD
/// from a step on.
const SAVE: &str = r#"
echo "$RANK ${2##*/}" >> "$(dirname "$0")/resumed"
step=0
if [ -f "$2" ]; then step=$(cat "$2"); fi
if [ "$6" = early ] && [ "$RANK" = 0 ]; then echo 60 > "$1/ckpt-60"; fi
while [ $step -lt $3 ]; do
  step=$((step + 1)); loss=2
  if [ $step -ge $4 ]; then loss=$5; fi
  sleep 0.02
  if [ $((step % 5)) = 0 ]; then echo $step > "$1/ckpt-$step"; fi
  if [ $((step % 10)) = 0 ]; then echo "step $step: loss $loss"; fi
done
"#;

/// A training of `save.sh` in `storage`, of which `fault` says from which step on the loss is which.
fn training(dir: &Path, ranks: u32, steps: u64, fault: &str) -> AttemptPlan {
    let path = dir.join("save.sh");
    std::fs::write(&path, SAVE).unwrap();
    let arguments =
        format!("$(checkpoint.dir) $(checkpoint.latest:-none) {steps} {fault} $(RANK) $(settings.batchPerGpu)");
    let mut plan = script(dir, ranks, &["train"], &arguments);
    plan.command[1] = path.to_string_lossy().into_owned();
    plan.stop_on_failure = true;
    let launch = &mut plan.launches[0];
    launch.kind = LaunchKind::Train;
    launch.budget = pawl_contract::plan::Budget { items: Some(8 * steps * u64::from(ranks)), ..Default::default() };
    launch.checkpoint =
        serde_json::from_value(serde_json::json!({"everySeconds": 60.0, "keep": 3, "resume": true})).unwrap();
    plan
}

/// Runs a training whose checkpoints are in `dir`/models; returns its end and the warnings.
async fn trained(dir: &Path, attempt: &str, plan: &AttemptPlan) -> (pawl_contract::report::LaunchResult, Vec<String>) {
    let mut node = pawl_agent::Node::local(dir.join(attempt), Vec::new());
    node.checkpoints = dir.join("models").to_string_lossy().into_owned();
    node.limits = gang::limits();
    let agent = gang::Agent::start(plan, node);
    let events = Arc::clone(&agent.events);
    let result = agent.result().await;
    let said = events.lock().unwrap().iter().filter_map(|(_, event)| warning(event)).collect();
    (result.launches[0].clone(), said)
}

fn resumed(dir: &Path) -> Vec<String> {
    std::fs::read_to_string(dir.join("resumed")).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn what_a_script_saved_after_its_last_good_loss_is_never_resumed() {
    let dir = tempdir().unwrap();
    let named = |mut plan: AttemptPlan, attempt: &str| {
        plan.launches[0].attempt = format!("job-{attempt}");
        plan.launches[0].launch = format!("train-{attempt}");
        plan
    };
    let chain = |result: &pawl_contract::report::LaunchResult| -> Vec<(u64, String)> {
        result.trained.iter().map(|part| (part.from_items, part.launch.clone())).collect()
    };
    let mut plan = named(training(dir.path(), 1, 100, "58 nan"), "1");
    let (diverged, said) = trained(dir.path(), "a", &plan).await;
    assert_eq!(diverged.outcome, Outcome::NonFinite, "{diverged:?}");
    let [warning] = &said[..] else { panic!("{said:?}") };
    assert!(warning.starts_with("ckpt-55, ckpt-60 may be damaged: moved to "), "{warning}");
    let quarantine = dir.path().join("models/.pawl/quarantine");
    assert!(quarantine.join("ckpt-55").exists() && quarantine.join("ckpt-60").exists(), "not deleted");
    assert_eq!(chain(&diverged), [(0, "train-1".to_owned())]);
    assert_eq!(
        diverged.failed_at_items,
        Some(400),
        "of the loss at step 50, not of the one at 60 that shows the damage"
    );
    assert_eq!(diverged.checkpoint.as_ref().map(|checkpoint| (checkpoint.step, checkpoint.items)), Some((60, 480)));

    plan = named(training(dir.path(), 1, 80, "1000 2"), "2");
    // Nobody has read the report of the divergence: no limit is known.
    let (done, said) = trained(dir.path(), "b", &plan).await;
    assert_eq!(chain(&done), [(0, "train-1".to_owned()), (400, "train-2".to_owned())]);
    assert_eq!(done.outcome, Outcome::Done, "{done:?}");
    assert_eq!(resumed(dir.path()), ["0 none", "0 ckpt-50"]);
    assert_eq!(said, Vec::<String>::new());
    assert_eq!(done.quarantined, ["ckpt-55", "ckpt-60"]);

    // A rollback, which no agent sees: what is after the limit is moved before the next attempt resumes.
    std::fs::write(dir.path().join("models/ckpt-85"), "85").unwrap();
    plan = named(training(dir.path(), 1, 90, "1000 2"), "3");
    plan.launches[0].checkpoint.as_mut().unwrap().resume_not_after_items = Some(640);
    let (last, said) = trained(dir.path(), "c", &plan).await;
    assert!(said.len() == 1 && said[0].starts_with("ckpt-85 may be damaged: moved to "), "{said:?}");
    assert_eq!(resumed(dir.path()).last().unwrap(), "0 ckpt-80");
    assert_eq!(chain(&last)[1..], [(400, "train-2".to_owned()), (640, "train-3".to_owned())]);

    // What trained a checkpoint of which there is no record is not known, and is not said.
    std::fs::remove_file(dir.path().join("models/.pawl/record.json")).unwrap();
    plan = named(training(dir.path(), 1, 100, "1000 2"), "4");
    let (unknown, _) = trained(dir.path(), "d", &plan).await;
    assert_eq!((unknown.resumed_items, chain(&unknown)), (Some(720), vec![]));
}

#[tokio::test]
async fn a_script_whose_checkpoints_are_gone_stops_and_says_so() {
    let dir = tempdir().unwrap();
    let mut plan = training(dir.path(), 1, 100, "1000 2");
    let expected = serde_json::json!({"name": "ckpt-55", "step": 55, "items": 440});
    plan.launches[0].checkpoint.as_mut().unwrap().expected = serde_json::from_value(expected).unwrap();
    let (result, _) = trained(dir.path(), "a", &plan).await;
    assert_eq!(result.outcome, Outcome::CheckpointUnreadable, "{result:?}");
    assert!(result.message.starts_with("checkpoint ckpt-55 at 440 items was written, but "), "{}", result.message);
    assert!(resumed(dir.path()).is_empty(), "it was not started");
}

#[tokio::test]
async fn a_script_of_which_nothing_was_good_begins_anew_and_says_so() {
    let dir = tempdir().unwrap();
    let mut plan = training(dir.path(), 1, 20, "3 nan");
    let (diverged, _) = trained(dir.path(), "a", &plan).await;
    assert_eq!((diverged.outcome, diverged.failed_at_items), (Outcome::NonFinite, Some(0)), "{diverged:?}");
    // Nobody has read the report of the divergence: the checkpoint is expected.
    plan = training(dir.path(), 1, 20, "1000 2");
    (plan.launches[0].attempt, plan.launches[0].launch) = ("job-2".to_owned(), "train-2".to_owned());
    let expected = serde_json::json!({"name": "ckpt-5", "step": 5, "items": 40});
    plan.launches[0].checkpoint.as_mut().unwrap().expected = serde_json::from_value(expected).unwrap();
    let (done, said) = trained(dir.path(), "b", &plan).await;
    assert_eq!(done.outcome, Outcome::Done, "{done:?}");
    assert_eq!(resumed(dir.path()), ["0 none", "0 none"]);
    assert!(said.len() == 1 && said[0].ends_with("no checkpoint is left: training begins anew"), "{said:?}");

    // It has written a checkpoint of that name anew: when that one is gone, it is lost.
    for entry in std::fs::read_dir(dir.path().join("models")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::remove_file(path).unwrap();
        }
    }
    (plan.launches[0].attempt, plan.launches[0].launch) = ("job-3".to_owned(), "train-3".to_owned());
    let (lost, _) = trained(dir.path(), "c", &plan).await;
    assert_eq!(lost.outcome, Outcome::CheckpointUnreadable, "{lost:?}");
}

#[tokio::test]
async fn all_ranks_of_a_script_resume_the_checkpoint_that_agent_0_has_chosen() {
    let dir = tempdir().unwrap();
    std::fs::create_dir(dir.path().join("models")).unwrap();
    std::fs::write(dir.path().join("models/ckpt-50"), "50").unwrap();
    let mut plan = training(dir.path(), 16, 60, "1000 2");
    // Rank 0 writes a newer one while the others start.
    plan.command[7] = "early".to_owned();
    trained(dir.path(), "a", &plan).await;
    let all = resumed(dir.path());
    assert!(all.len() == 16 && all.iter().all(|line| line.ends_with(" ckpt-50")), "{all:?}");
}

#[tokio::test]
async fn a_resumed_script_is_judged_by_the_losses_before_the_interruption() {
    let dir = tempdir().unwrap();
    let mut plan = training(dir.path(), 1, 300, "1000 2");
    plan.command[1] = dir.path().join("each.sh").to_string_lossy().into_owned();
    let each = SAVE.replace("step % 10", "step % 1").replace("sleep 0.02", "sleep 0.01");
    std::fs::write(&plan.command[1], each).unwrap();
    assert_eq!(trained(dir.path(), "a", &plan).await.0.outcome, Outcome::Done);
    // Twice the level, from the first step on.
    let last = plan.command.iter().position(|word| word == "1000").unwrap();
    (plan.command[last - 1], plan.command[last], plan.command[last + 1]) = ("400".into(), "1".into(), "4".into());
    plan.launches[0].budget.items = Some(3200);
    let (result, _) = trained(dir.path(), "b", &plan).await;
    assert_eq!(result.outcome, Outcome::LossSpike, "{result:?}");
    assert!(result.message.contains("at step 303"), "{}", result.message);
    assert!(result.failed_at_items < Some(2400), "nothing was healthy after the checkpoint: it may be what is damaged");
}

#[tokio::test]
async fn trials_of_a_script_have_checkpoints_of_their_own() {
    let dir = tempdir().unwrap();
    std::fs::create_dir(dir.path().join("models")).unwrap();
    std::fs::write(dir.path().join("models/ckpt-50"), "50").unwrap();
    let mut plan = training(dir.path(), 1, 60, "1000 2");
    plan.launches[0].checkpoint.as_mut().unwrap().directory = Some("trials/t".to_owned());
    trained(dir.path(), "a", &plan).await;
    assert_eq!(resumed(dir.path()), ["0 none"], "not those of the training");
    assert!(dir.path().join("models/trials/t/ckpt-60").exists());
}

/// `fill.sh DIRECTORY`: checkpoints of 300 KB, until one cannot be written. Its words are its own, and its exit code
/// says nothing.
const FILL: &str = r#"
step=0
while true; do
  step=$((step + 1)); sleep 0.02
  echo "step $step: loss 2"
  head -c 300000 /dev/zero > "$1/ckpt-$step" 2>/dev/null || { echo "PytorchStreamWriter failed writing file"; exit 1; }
done
"#;

/// Unmounts even when an assertion fails.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A file system of two megabytes: one is tried to find out whether it is full.
fn small_disk(at: &Path) -> Option<Mounted> {
    std::fs::create_dir_all(at).unwrap();
    let mounted = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(at).output();
    if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: a small file system cannot be mounted here (needs root): {mounted:?}");
        return None;
    }
    Some(Mounted(at.to_owned()))
}

#[tokio::test]
async fn a_script_without_space_for_its_checkpoint_is_a_full_storage_whatever_it_says() {
    let dir = tempdir().unwrap();
    let Some(_mounted) = small_disk(&dir.path().join("models")) else { return };
    let path = dir.path().join("fill.sh");
    std::fs::write(&path, FILL).unwrap();
    let mut plan = training(dir.path(), 1, 100, "1000 2");
    plan.command =
        ["sh", &path.to_string_lossy(), "$(checkpoint.dir)", "$(settings.batchPerGpu)"].map(str::to_owned).to_vec();
    let (result, _) = trained(dir.path(), "a", &plan).await;
    assert_eq!(result.outcome, Outcome::StorageFull, "{result:?}");
    assert!(result.message.contains("free some space there"), "{}", result.message);
    assert!(result.measured.steps >= 3 && result.checkpoint.is_some(), "{result:?}");

    // The same words and the same exit code, with space left: the script has failed.
    std::fs::write(&path, FILL.replace("head -c 300000 /dev/zero > \"$1/ckpt-$step\" 2>/dev/null", "false")).unwrap();
    for entry in std::fs::read_dir(dir.path().join("models")).unwrap() {
        // Directories stay: they hold no checkpoint of this script.
        let _ = std::fs::remove_file(entry.unwrap().path());
    }
    let (result, _) = trained(dir.path(), "b", &plan).await;
    assert_eq!(result.outcome, Outcome::Failed, "{result:?}");
}
