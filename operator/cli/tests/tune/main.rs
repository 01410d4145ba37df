//! `pawl tune`: scripts that know nothing of Pawl, without a manifest. A program of its own: cargo runs nothing else meanwhile that would
//! disturb what is measured.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the tests of the other commands")]
#[path = "../all/scene.rs"]
mod scene;

use rstest::rstest;
use rustix::process::Signal;
use scene::{Scene, signal, stderr, stdout, wait_until};
use serde_json::Value;
use std::fs;
use std::process::Output;

/// A training in 12 ms steps, or 4 ms with `--compile`. By itself it takes 3 seconds.
const HEAD: &str = r#"
import argparse, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch_size", type=int, default=8)
parser.add_argument("--max_steps", type=int, default=240)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
open("arguments", "a").write(" ".join(sys.argv[1:]) + "\n")
def step(number):
    time.sleep(0.004 if args.compile else 0.012)
    return 2.0 / (1 + number * args.lr)
"#;

/// An option without any effect, before `--lr`.
const WORKERS: &str = "parser.add_argument(\"--num_workers\", type=int, default=0)\nparser.add_argument(\"--lr\"";

fn with_workers() -> String {
    HEAD.replace("parser.add_argument(\"--lr\"", WORKERS)
}

/// How it prints, after `HEAD`.
const PLAIN: &str = r#"
for number in range(1, args.max_steps + 1):
    print(f"step {number}: loss {step(number):.4f}", flush=True)
"#;
const COURSE: &str = r#"
for number in range(args.max_steps):
    loss = step(number)
    if number % 5 == 0:
        print(f"Epoch [{number // 40 + 1}/9], Step [{number % 40}/40], Loss: {loss:.4f}")
"#;
/// A bar by carriage returns, after that of a download.
const BARS: &str = r#"
for file in range(1, 29):
    print(f"\rDownloading files: {file / .28:3.0f}%|##   | {file}/28 [00:00<00:01, 20.0it/s]", end="", file=sys.stderr)
    time.sleep(0.01)
print(file=sys.stderr)
for number in range(1, args.max_steps + 1):
    loss = step(number)
    print(f"\rEpoch 1:  1%|#    | {number}/{args.max_steps} [00:01<01:40,  8.0it/s, loss={loss:.3f}]", end="", file=sys.stderr, flush=True)
"#;
const WORD_MODEL: &str = r#"
for number in range(1, args.max_steps + 1):
    loss = step(number)
    if number % 10 == 0:
        print(f"| epoch   1 | {number:5d}/{args.max_steps} batches | lr 5.00 | ms/batch 12.02 | loss {loss:5.3f} | ppl 7.52")
"#;

/// The state and the accepted phases after `pawl tune ARGUMENTS`.
fn tuned(scene: &Scene, source: &str, arguments: &[&str]) -> (Output, Value) {
    fs::write(scene.path().join("train.py"), source).unwrap();
    let output = scene.output(&[&["tune"], arguments].concat());
    let status = fs::read(scene.path().join(".pawl/tune-train/status.json")).unwrap_or_default();
    let document: Value = serde_json::from_slice(&status).unwrap_or_default();
    (output, document["status"].clone())
}

fn state<'a>(status: &'a Value, phase: &str) -> &'a str {
    let phases = status["phases"].as_array().map(Vec::as_slice).unwrap_or_default();
    phases.iter().find(|known| known["name"] == phase).and_then(|phase| phase["state"].as_str()).unwrap_or("absent")
}

fn line<'a>(text: &'a str, label: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(label)).map_or("", str::trim)
}

#[rstest]
#[case::plain(PLAIN)]
#[case::course(COURSE)]
#[case::bars(BARS)]
#[case::word_model(WORD_MODEL)]
fn a_script_is_measured_and_its_changed_command_printed(#[case] form: &str) {
    let scene = Scene::new();
    let arguments = ["--budget", "5m", "train.py", "-b", "16", "--lr=0.2"];
    // One is enough to see that a phase without effect is not accepted.
    let head = if form == PLAIN { with_workers() } else { HEAD.to_owned() };
    let (output, status) = tuned(&scene, &format!("{head}{form}"), &arguments);
    let (text, errors) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    assert_eq!(state(&status, "compile"), "Accepted", "{text}");
    let expected: &[&str] = if form == PLAIN { &["RolledBack", "Inconclusive"] } else { &["absent"] };
    assert!(expected.contains(&state(&status, "loader-workers")), "{text}");
    assert_eq!(line(&text, "command"), "python3 train.py -b 16 --lr=0.2 --compile", "{text}");
    // No validation was seen.
    assert_eq!(state(&status, "larger-batch"), "absent", "{text}");
    for named in [line(&text, "manifest"), line(&text, "report")] {
        assert!(scene.path().join(named).is_file(), "{named}: {text}");
    }
    // Whatever a launch varies, the values that were given are those of its baseline.
    let started = fs::read_to_string(scene.path().join("arguments")).unwrap();
    assert!(started.lines().all(|line| line.contains("16 --lr=0.2") || line.contains("=16 --lr=0.2")), "{started}");
}

/// Epochs whose losses are counted in items, and a test after each. A step takes as long whatever the batch.
const EPOCHS: &str = r#"
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
seen = 0
for epoch in range(1, args.epochs + 1):
    for batch, items in enumerate(range(0, 2048, args.batch_size)):
        time.sleep(0.012)
        seen += args.batch_size
        if batch % 4 == 0:
            print(f"Train Epoch: {epoch} [{items}/2048 ({100 * items / 2048:.0f}%)]\tLoss: {2 / (1 + seen / 900):.6f}", flush=True)
    print(f"\nTest set: Average loss: {2 / (1 + seen / 1000):.4f}, Accuracy: 900/1000 (90%)\n", flush=True)
"#;

#[test]
fn a_larger_batch_is_judged_by_the_validations_that_were_seen() {
    let scene = Scene::new();
    let (output, status) = tuned(&scene, EPOCHS, &["--budget", "5m", "train.py"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert_eq!(state(&status, "larger-batch"), "Accepted", "{text}");
    assert!(status["phases"][0]["quality"].is_object(), "{status:#}");
    assert_eq!(line(&text, "command"), "python3 train.py --batch-size=128", "{text}");
}

#[test]
fn a_dry_run_prints_the_manifest_and_measures_nothing() {
    let scene = Scene::new();
    let source = with_workers() + PLAIN;
    let (output, status) = tuned(&scene, &source, &["--dry-run", "train.py", "--num_workers", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(status.is_null());
    fs::write(scene.path().join("job.yaml"), &output.stdout).unwrap();
    let valid = scene.output(&["validate", "job.yaml"]);
    assert_eq!(valid.status.code(), Some(0), "{}{}", stdout(&valid), stderr(&valid));
    assert!(stdout(&output).contains("settings: {batchPerGpu: 8, loaderWorkers: 2}"), "{}", stdout(&output));
    assert_eq!(fs::read_to_string(scene.path().join("arguments")).unwrap().lines().count(), 1, "it was observed only");
}

#[test]
fn a_script_without_steps_is_told_what_to_print() {
    let scene = Scene::new();
    let epochs = "import time\nfor epoch in range(5):\n    time.sleep(0.1)\n    print(f'Epoch {epoch}: train loss 0.5', flush=True)\n";
    let (output, _) = tuned(&scene, epochs, &["train.py"]);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("Epoch 4: train loss 0.5") && errors.contains("`step 120: loss 2.31`"), "{errors}");
    // One that fails is quoted.
    let (output, _) = tuned(&scene, "raise ValueError('no data')", &["train.py"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("ValueError: no data"), "{}", stderr(&output));
    let output = scene.output(&["tune", "absent.py"]);
    assert!(output.status.code() == Some(2) && stderr(&output).contains("absent.py"), "{}", stderr(&output));
}

#[test]
fn a_script_without_options_has_nothing_to_try() {
    let scene = Scene::new();
    let source =
        "import time\nfor step in range(50):\n    time.sleep(0.01)\n    print('step', step, 'loss', 1.5, flush=True)\n";
    let (output, _) = tuned(&scene, source, &["train.py"]);
    assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
    assert!(stderr(&output).contains("--compile"), "{}", stderr(&output));
}

#[test]
fn a_budget_that_ends_is_no_verdict_and_the_same_command_continues() {
    let scene = Scene::new();
    let source = format!("{HEAD}{PLAIN}");
    let (output, status) = tuned(&scene, &source, &["--budget", "3s", "train.py"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(3), "{text}{}", stderr(&output));
    assert_eq!(
        line(&text, "no verdict"),
        "compile: measuring was stopped by the end of its time; the same command continues"
    );
    assert!(line(&text, "command").ends_with("(unchanged)"), "{text}");
    assert!(["Pending", "Measuring"].contains(&state(&status, "compile")), "{status:#}");
    let launches = || fs::read_to_string(scene.path().join("arguments")).unwrap().lines().count();
    let before = launches();
    let (output, status) = tuned(&scene, &source, &["--budget", "5m", "train.py"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(text.contains("continued") && !text.contains("observing"), "{text}");
    assert_eq!(state(&status, "compile"), "Accepted", "{text}");
    assert!(launches() > before);
}

#[test]
fn ctrl_c_while_the_script_is_observed_ends_it() {
    let scene = Scene::new();
    fs::write(
        scene.path().join("train.py"),
        format!("import os\nopen('pid', 'w').write(str(os.getpid()))\n{HEAD}{PLAIN}"),
    )
    .unwrap();
    let child = scene.pawl(&["tune", "train.py"]).spawn().unwrap();
    wait_until("the script runs", || scene.path().join("arguments").exists());
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let pid = fs::read_to_string(scene.path().join("pid")).unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}
