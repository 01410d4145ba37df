//! Scripts that know nothing of Pawl, and their checkpoints.

use crate::scene::{Scene, signal, stderr, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;

/// `train.sh DIRECTORY RESUMED STEPS COMPILE`: a checkpoint every 5 steps, the loss of every 10th. With `Graph` it is
/// faster, and NaN from step 58 on.
const TRAIN: &str = r#"
case $(basename "$PWD") in train-*) echo "${2##*/}" >> "$LEDGER/resumed" ;; esac
step=0; pause=0.05
if [ -f "$2" ]; then step=$(cat "$2"); fi
if [ "$4" = Graph ]; then pause=0.01; fi
while [ $step -lt $3 ]; do
  step=$((step + 1)); loss=2
  if [ "$4" = Graph ] && [ $step -ge 58 ]; then loss=nan; fi
  sleep $pause
  if [ $((step % 5)) = 0 ]; then echo $step > "$1/ckpt-$step"; fi
  if [ $((step % 10)) = 0 ]; then echo "step $step loss $loss"; fi
done
echo "eval_loss 0.1"
"#;

fn write(scene: &Scene, items: u64, phases: &Value) {
    fs::write(scene.path().join("train.sh"), TRAIN).unwrap();
    let script = scene.path().join("train.sh");
    scene.write_job(|job| {
        job["spec"] = json!({
            "workload": {
                "command": [
                    "sh", script, "$(checkpoint.dir)", "$(checkpoint.latest:-none)", "$(launch.steps)",
                    "$(settings.compile:-none)", "$(settings.batchPerGpu)",
                ],
                "monitor": {"training": r"step (?<step>\d+) loss (?<loss>\S+)", "validation": r"eval_loss (?<loss>\S+)"},
            },
            "trainer": {"gpusPerReplica": 0},
            "settings": {"batchPerGpu": 8},
            "seeds": [42],
            "phases": phases,
            "analysis": {"warmupSteps": 10, "windowSteps": 20, "qualityItems": 240, "budgetPercent": "Unlimited"},
            "gates": {"validationLossDelta": "10"},
            "train": {"items": items},
            "lifecycle": {"hangTimeout": "60s"},
        });
    });
}

#[test]
fn a_script_that_diverges_resumes_from_before_the_damage() {
    let scene = Scene::new();
    write(&scene, 800, &json!([{"name": "graph", "numerics": "Changed", "settings": {"compile": "Graph"}}]));
    let output = scene.output(&["run", "job.yaml"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(scene.ledger("resumed"), ["none", "ckpt-50"], "the loss at step 50 was the last good one");
    let status = scene.status();
    let phase = &status["phases"][0];
    assert_eq!((&phase["state"], &phase["reason"]), (&json!("RolledBack"), &json!("NonFinite")), "{phase:#}");
    assert_eq!(status["training"]["lastCheckpoint"]["name"], "ckpt-100");
    let checkpoints = scene.state().join("checkpoints");
    assert!(checkpoints.join(".pawl/quarantine/ckpt-55").exists() && checkpoints.join("ckpt-50").exists());
}

#[test]
fn a_script_whose_checkpoints_are_gone_stops_and_says_so() {
    let scene = Scene::new();
    write(&scene, 80_000, &json!([]));
    let mut running = scene.pawl(&["run", "job.yaml"]).spawn().unwrap();
    let known =
        || scene.state().join("status.json").exists() && !scene.status()["training"]["lastCheckpoint"].is_null();
    wait_until("a checkpoint in the status", known);
    signal(&running, Signal::INT);
    running.wait().unwrap();
    fs::rename(scene.state().join("checkpoints"), scene.path().join("away")).unwrap();
    let output = scene.output(&["run", "job.yaml", "--quiet"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(scene.status()["failure"]["reason"], "CheckpointUnreadable", "{:#}", scene.status()["failure"]);
    assert_eq!(scene.ledger("resumed"), ["none"], "it does not begin again");
}
