//! Training scripts that know nothing of Pawl: their arguments come from placeholders, their measurements from their
//! output.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoints;
#[path = "../gang/mod.rs"]
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
