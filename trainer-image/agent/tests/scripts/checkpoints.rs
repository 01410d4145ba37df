//! The checkpoints of scripts: whose they are, which are resumed, and what becomes of those that nothing should resume.

use super::gang::{self, outcomes};
use super::{script, warning};
use pawl_agent::Stop;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use std::path::Path;
use std::sync::Arc;
use tempfile::tempdir;

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
