//! `pawl tune`: scripts that know nothing of Pawl, without a manifest. A program of its own: cargo runs nothing else
//! meanwhile that would disturb what is measured.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the tests of the other commands")]
#[path = "../all/scene.rs"]
mod scene;
mod styles;

use rstest::rstest;
use rustix::process::Signal;
use scene::{Scene, signal, stderr, stdout, wait_until};
use serde_json::Value;
use std::fs;
use std::process::Output;

/// How it reads its options.
const HEAD: &str = r#"
import argparse, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch_size", type=int, default=8)
parser.add_argument("--max_steps", type=int, default=240)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
"#;
const CONFIGURATOR: &str = r#"
import os, sys, time, types
batch_size = 8
max_steps = 12 * 20
compile = False
lr = 0.1
seed = 1
exec(open("configurator.py").read())
args = types.SimpleNamespace(batch_size=batch_size, max_steps=max_steps, compile=compile, lr=lr)
"#;
const ENVIRONMENT: &str = r#"
import os, sys, time, types
args = types.SimpleNamespace(
    batch_size=int(os.environ.get("BATCH_SIZE", 8)),
    max_steps=int(os.environ.get("MAX_STEPS", "240")),
    compile=os.environ.get("COMPILE", "0") == "1",
    lr=float(os.getenv("LR", "0.1")),
)
"#;
const HYDRA: &str = r#"
import hydra, os, sys, time
@hydra.main(config_path="conf", config_name="config")
def main(args):
    globals().update(args=args)
main()
"#;
/// Files beside it: what the last two use is not installed here.
const FILES: [(&str, &str); 3] = [
    (
        "configurator.py",
        r#"
from ast import literal_eval
for word in sys.argv[1:]:
    name, value = word[2:].split("=")
    assert type(literal_eval(value)) == type(globals()[name]), word
    globals()[name] = literal_eval(value)
"#,
    ),
    (
        "hydra.py",
        r#"
import sys, types
def main(config_path, config_name):
    def run(function):
        values = {"batch_size": 8, "max_steps": 240, "compile": False, "lr": 0.1, "seed": 1}
        for word in sys.argv[1:]:
            name, value = word.split("=")
            values[name] = type(values[name])(eval(value))
        return lambda: function(types.SimpleNamespace(**values))
    return run
"#,
    ),
    ("conf/config.yaml", "batch_size: 8\nmax_steps: 240\ncompile: false\nlr: 0.1\nseed: 1\n"),
];

/// A training in 12 ms steps, or 4 ms when compiled. By itself it takes 3 seconds.
const STEP: &str = r#"
own = [f"{name}={os.environ[name]}" for name in ("BATCH_SIZE", "LR") if name in os.environ]
open("arguments", "a").write(" ".join(sys.argv[1:] + own) + "\n")
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
/// It becomes faster for longer than a launch must take, which ends when its speed no longer changes.
const COURSE: &str = r#"
for number in range(args.max_steps):
    time.sleep(0.008 * max(0, 1 - number / 120))
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

/// Enough for all phases several times.
const BUDGET: &str = "5m";

/// The output and the status of `pawl tune ARGUMENTS`.
fn tuned(scene: &Scene, source: &str, arguments: &[&str]) -> (Output, Value) {
    let (variables, arguments) = arguments.split_at(arguments.iter().take_while(|word| is_variable(word)).count());
    for (name, text) in FILES.into_iter().chain([("train.py", source)]) {
        let path = scene.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut pawl = scene.pawl(&[&["tune"], arguments].concat());
    let output = pawl.envs(variables.iter().filter_map(|word| word.split_once('='))).output().unwrap();
    let status = fs::read(scene.path().join(".pawl/tune-train/status.json")).unwrap_or_default();
    let document: Value = serde_json::from_slice(&status).unwrap_or_default();
    (output, document["status"].clone())
}

/// Whether a word of a command sets a variable.
fn is_variable(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
}

fn state<'a>(status: &'a Value, phase: &str) -> &'a str {
    let phases = status["phases"].as_array().map(Vec::as_slice).unwrap_or_default();
    phases.iter().find(|known| known["name"] == phase).and_then(|phase| phase["state"].as_str()).unwrap_or("absent")
}

fn line<'a>(text: &'a str, label: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(label)).map_or("", str::trim)
}

/// Each reads its options and prints its steps in another way: measured as it is, with its values, and changed in its
/// own spelling.
#[rstest]
#[case::plain(HEAD, PLAIN, &["train.py", "-b", "16", "--lr=0.2"], "python3 train.py -b 16 --lr=0.2 --compile")]
#[case::constants_and_a_course(
    CONFIGURATOR, COURSE, &["train.py", "--batch_size=16", "--lr=0.2"],
    "python3 train.py --batch_size=16 --lr=0.2 --compile=True"
)]
#[case::variables_and_bars(
    ENVIRONMENT, BARS, &["BATCH_SIZE=16", "LR=0.2", "train.py"], "COMPILE=1 python3 train.py"
)]
#[case::keys_and_a_word_model(
    HYDRA, WORD_MODEL, &["train.py", "batch_size=16", "lr=0.2"], "python3 train.py batch_size=16 lr=0.2 compile=True"
)]
fn a_script_is_measured_and_its_changed_command_printed(
    #[case] head: &str,
    #[case] form: &str,
    #[case] given: &[&str],
    #[case] command: &str,
) {
    let scene = Scene::new();
    let (variables, own) = given.split_at(given.iter().take_while(|word| is_variable(word)).count());
    let arguments = [variables, &["--budget", BUDGET], own].concat();
    // One is enough to see that a phase without effect is not accepted.
    let head = if form == PLAIN { with_workers() } else { head.to_owned() };
    let (output, status) = tuned(&scene, &format!("{head}{STEP}{form}"), &arguments);
    let (text, errors) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    assert_eq!(state(&status, "compile"), "Accepted", "{text}");
    let expected: &[&str] = if form == PLAIN { &["RolledBack", "Inconclusive"] } else { &["absent"] };
    assert!(expected.contains(&state(&status, "loader-workers")), "{text}");
    assert_eq!(line(&text, "command"), command, "{text}");
    // No validation was seen.
    assert_eq!(state(&status, "larger-batch"), "absent", "{text}");
    for named in [line(&text, "manifest"), line(&text, "report")] {
        assert!(scene.path().join(named).is_file(), "{named}: {text}");
    }
    // Whatever a launch varies, the values that were given are those of its baseline.
    let started = fs::read_to_string(scene.path().join("arguments")).unwrap();
    let is_given = |line: &str| line.contains("16") && line.to_lowercase().contains("lr=0.2");
    assert!(started.lines().all(is_given), "{started}");
}

/// Epochs whose losses are counted in items, and a test after each. A step takes as long whatever the batch, of which
/// 128 items fit.
const EPOCHS: &str = r#"
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
if args.batch_size > 128:
    raise MemoryError
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
    assert!(text.contains("128 fits, 192 does not: out of memory of the host\n"), "{text}");
    assert_eq!(line(&text, "command"), "python3 train.py --batch-size=128", "{text}");
}

/// As PyTorch looks to the observation.
const TORCH: [(&str, &str); 5] = [
    ("__init__.py", "from . import optim, utils\n__version__ = '0'\nclass autocast: pass\n"),
    ("optim.py", "class Optimizer:\n    param_groups = []\n"),
    ("utils/__init__.py", "from . import data\n"),
    ("utils/data/__init__.py", "from . import dataloader\nfrom .dataloader import DataLoader\n"),
    (
        "utils/data/dataloader.py",
        r#"
import time
class _BaseDataLoaderIter:
    pass
class DataLoader:
    num_workers = 2
    def __next__(self):
        time.sleep(0.009)
"#,
    ),
];
/// Three quarters of a step are spent in the loader.
const LOADED: &str = r#"
import torch
loader = torch.utils.data.DataLoader()
class Tensor:
    def backward(self):
        time.sleep(0.001)
exec(compile("def backward(loss):\n    loss.backward()\n", "/torch/autograd/__init__.py", "exec"))
for number in range(1, args.max_steps + 1):
    next(loader)
    backward(Tensor())
    print(f"step {number}: loss {2.0 / number:.4f}", flush=True)
"#;

/// A step of four micro-batches. More than eight items do not fit.
const ACCUMULATES: &str = r#"
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--max_steps", type=int, default=60)
args = parser.parse_args()
for number in range(1, args.max_steps + 1):
    for micro in range(args.gradient_accumulation_steps):
        if args.batch_size > 8:
            raise MemoryError
        time.sleep(0.006)
    print(f"step {number}: loss {2.0 / number:.4f}", flush=True)
"#;

#[test]
fn micro_batches_are_merged_as_far_as_they_fit() {
    let scene = Scene::new();
    let given = ["--budget", BUDGET, "train.py", "--gradient_accumulation_steps", "4"];
    let (output, status) = tuned(&scene, ACCUMULATES, &given);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert_eq!(state(&status, "one-micro-batch"), "Accepted", "{text}");
    assert!(text.contains("8 fits, 16 does not: out of memory of the host\n"), "{text}");
    assert_eq!(line(&text, "command"), "python3 train.py --gradient_accumulation_steps=2 --batch_size=8", "{text}");
}

#[test]
fn a_dry_run_prints_the_manifest_and_measures_nothing() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path().join("torch/utils/data")).unwrap();
    TORCH.iter().for_each(|(name, text)| fs::write(scene.path().join("torch").join(name), text).unwrap());
    let source = with_workers() + STEP + LOADED;
    let (output, status) = tuned(&scene, &source, &["--dry-run", "train.py", "--num_workers", "2"]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    // Where its time goes is seen, and phases are proposed by what they can gain of it.
    for expected in [
        "time: waiting for data ",
        "longest in dataloader.py:",
        "bound by its data loader: 2 workers load more slowly than the steps need",
        "phase loader-workers: a step waits for data for ",
        "phase compile: it acts on ",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
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
    // One that fails is quoted, and what it needs named.
    let needs = "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\np.add_argument('--out', required=True)\np.parse_args()\n";
    let (output, _) = tuned(&scene, needs, &["train.py"]);
    assert!(stderr(&output).contains("it requires data, --out"), "{}", stderr(&output));
    let (output, _) = tuned(&scene, "raise ValueError('no data')", &["train.py"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("ValueError: no data"), "{}", stderr(&output));
    let output = scene.output(&["tune", "EPOCHS=2", "absent.py"]);
    let told = ["EPOCHS=2: ", "set its variables before `pawl tune`"];
    assert!(output.status.code() == Some(2) && told.iter().all(|part| stderr(&output).contains(part)), "{output:?}");
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
    let source = format!("{HEAD}{STEP}{PLAIN}");
    let (output, status) = tuned(&scene, &source, &["--budget", "3s", "train.py"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(3), "{text}{}", stderr(&output));
    assert_eq!(
        line(&text, "no verdict"),
        "compile: measuring was stopped by the end of its time; the same command continues"
    );
    assert!(line(&text, "command").ends_with("(unchanged)"), "{text}");
    assert!(["Pending", "Preflight", "Measuring"].contains(&state(&status, "compile")), "{status:#}");
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
        format!("import os\nopen('pid', 'w').write(str(os.getpid()))\n{HEAD}{STEP}{PLAIN}"),
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
