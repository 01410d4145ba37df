//! Scripts of strangers: what they write besides the steps of their training, and how they end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod gang;

use gang::{outcomes, plan, run_alone};
use pawl_agent::finished_reports;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, Budget, LaunchKind};
use pawl_contract::script::Monitor;
use std::path::Path;
use tempfile::tempdir;

/// One launch of a shell script that is followed by its output.
fn script(dir: &Path, kind: LaunchKind, text: &str) -> AttemptPlan {
    let path = dir.join("train.sh");
    std::fs::write(&path, text).unwrap();
    let mut plan = plan(1, 1, &["l"], "");
    plan.command =
        ["sh", path.to_str().unwrap(), "$(launch.steps:-0)", "$(settings.batchPerGpu)"].map(str::to_owned).into();
    plan.script.monitor = Some(Monitor {
        training: Some(r"(?<step>\d+)/\d+ \[|loss (?<loss>\S+)".to_owned()),
        validation: Some(r"validation: (?<loss>\S+)".to_owned()),
        ..Monitor::default()
    });
    let launch = &mut plan.launches[0];
    launch.kind = kind;
    launch.settings.batch_per_gpu = Some(8);
    launch.hang_timeout_seconds = 2.0;
    launch.budget = match kind {
        LaunchKind::Measure => Budget { warmup_steps: Some(2), window_steps: Some(8), ..Budget::default() },
        _ => Budget { items: Some(80), ..Budget::default() },
    };
    plan
}

/// Draws a bar to its end, with a loss after each step.
const TRAIN: &str = r#"
train() {
  step=0
  while [ $step -lt $1 ]; do
    step=$((step + 1)); sleep 0.03
    printf '\r 10%%|#  | %s/%s [00:01<00:01]\nloss 0.5\n' $step $1
  done
}
"#;

#[tokio::test]
async fn steps_counted_anew_in_each_epoch_are_no_hang_and_are_counted_on() {
    let dir = tempdir().unwrap();
    let text = format!("{TRAIN}for epoch in 1 2 3 4; do train 25; done\necho validation: 0.5");
    let mut plan = script(dir.path(), LaunchKind::Train, &text);
    plan.launches[0].hang_timeout_seconds = 0.5;
    plan.launches[0].budget = Budget { epochs: Some(4), ..Budget::default() };
    let result = run_alone(&dir.path().join("a"), &plan).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Done)], "{result:?}");
    let reports = finished_reports(&dir.path().join("a")).unwrap();
    assert_eq!((reports[0].measured.steps, reports[0].measured.items), (100, 800));
}

#[tokio::test]
async fn a_bar_of_something_else_is_not_measured() {
    let dir = tempdir().unwrap();
    let bars = r#"
printf '\rLoading weights 100%%|###| 28/28 [00:01<00:01]'; sleep 0.2
printf '\rtokenizer 50%%|###| 1000/2000 [00:01<00:01]'; sleep 0.2
printf '\rtokenizer 100%%|###| 2000/2000 [00:01<00:01]'; sleep 0.2
"#;
    let measured = script(dir.path(), LaunchKind::Measure, &format!("{TRAIN}{bars}train $1"));
    let result = run_alone(&dir.path().join("a"), &measured).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Done)], "{result:?}");
    let report = finished_reports(&dir.path().join("a")).unwrap().remove(0);
    assert_eq!(report.measured.steps, 10);
    assert!(report.losses.len() >= 9, "{:?}", report.losses);
    // 8 items in a step of at least 0.03 s.
    assert!(report.measured.items_per_second.is_some_and(|rate| rate < 8.0 / 0.03), "{:?}", report.measured);
    // One that only loads and tokenizes.
    let nothing = script(dir.path(), LaunchKind::Measure, bars);
    let result = run_alone(&dir.path().join("b"), &nothing).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Unsupported)], "{result:?}");
    assert!(result.launches[0].message.contains("no loss"), "{}", result.launches[0].message);
}

#[tokio::test]
async fn micro_steps_are_refused() {
    let dir = tempdir().unwrap();
    for (kind, factor, outcome) in [
        (LaunchKind::Measure, 1, Outcome::Done),
        (LaunchKind::Measure, 4, Outcome::Unsupported),
        (LaunchKind::Quality, 4, Outcome::Unsupported),
    ] {
        let text = format!("{TRAIN}train $(($1 * {factor}))\necho validation: 0.5");
        let mut plan = script(dir.path(), kind, &text);
        plan.command.push("$(settings.accumulationSteps)".to_owned());
        plan.launches[0].settings.accumulation_steps = Some(4);
        plan.launches[0].budget.items = plan.launches[0].budget.items.map(|_| 320);
        let result = run_alone(&dir.path().join(format!("{kind:?}-{factor}")), &plan).await;
        assert_eq!(outcomes(&result), [("l", outcome)], "{result:?}");
        let named = result.launches[0].message.contains("settings.accumulationSteps");
        assert_eq!(named, outcome == Outcome::Unsupported, "{}", result.launches[0].message);
    }
}

/// Trains 10 steps, validates, saves, and then does what `$1` says.
const AFTER: &str = r#"
train 10
echo validation: 0.5
echo 10 > "$DIR/checkpoint-$SAVED"
sleep 1.3
echo testing
"#;

#[tokio::test]
async fn what_a_script_does_after_its_last_step_is_not_part_of_its_launch() {
    let crash = "echo 'FileNotFoundError: best.ckpt'; exit 1";
    let signal = "kill -SEGV $$";
    let hang = "sleep 1000";
    let next_rank = r#"[ $RANK = 0 ] || exit 1; sleep 1"#;
    for (kind, ranks, saved, after, expected, part) in [
        (LaunchKind::Train, 1, 10, crash, Outcome::Done, "exit code 1: "),
        (LaunchKind::Train, 1, 10, signal, Outcome::Done, "signal 11"),
        (LaunchKind::Train, 1, 10, hang, Outcome::Done, "hung after them"),
        (LaunchKind::Train, 2, 10, next_rank, Outcome::Done, ""),
        (LaunchKind::Quality, 1, 10, crash, Outcome::Done, "best.ckpt"),
        // Its last checkpoint is missing.
        (LaunchKind::Train, 1, 9, crash, Outcome::Failed, "exit code 1"),
    ] {
        let dir = tempdir().unwrap();
        let models = dir.path().join("models");
        std::fs::create_dir_all(&models).unwrap();
        let text = format!("DIR={}; SAVED={saved}\n{TRAIN}{AFTER}{after}", models.display());
        let mut plan = script(dir.path(), kind, &text);
        plan.ranks_per_replica = ranks;
        plan.launches[0].settings.batch_per_gpu = Some(8 / ranks);
        if kind == LaunchKind::Train {
            let policy = serde_json::json!({"everySeconds": 60.0, "keep": 3, "resume": true});
            plan.launches[0].checkpoint = serde_json::from_value(policy).unwrap();
        }
        let mut node = pawl_agent::Node::local(dir.path().join("a"), Vec::new());
        node.checkpoints = models.to_string_lossy().into_owned();
        node.limits = gang::limits();
        let result = gang::Agent::start(&plan, node).result().await;
        let message = &result.launches[0].message;
        assert_eq!(outcomes(&result), [("l", expected)], "{kind:?} {after}: {message}");
        assert!(message.contains(part), "{kind:?} {after}: {message}");
    }
}
