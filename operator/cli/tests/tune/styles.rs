//! Scripts behind launchers, shell scripts and environments. What is not installed here is replaced by a program that
//! starts processes as the real one does.

use super::{BUDGET, HEAD, STEP, line, state, tuned};
use crate::scene::{Scene, stderr, stdout};
use rstest::rstest;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// `torchrun`, `accelerate launch` and `deepspeed`: two workers with sessions of their own; 1 if one of them fails.
const LAUNCHER: &str = r#"#!/usr/bin/env python3
import os, signal, subprocess, sys
words = sys.argv[1:]
if words[0] == "launch":
    words.pop(0)
module = []
while words[0].startswith("-"):
    word = words.pop(0)
    if word in ("-m", "--module"):
        module = ["-m"]
    elif "=" not in word and word not in ("--standalone", "--no_local_rank"):
        words.pop(0)
open("launched", "a").write(" ".join(sys.argv[1:]) + "\n")
def start(rank):
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    return subprocess.Popen([sys.executable, "-u", *module, *words], env={**os.environ, **ranks}, start_new_session=True)
workers = [start(rank) for rank in range(2)]
def end(*_):
    [worker.terminate() for worker in workers]
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
sys.exit(any([worker.wait() for worker in workers]))
"#;
/// `uv run` and `conda run`, which replace themselves. Output is kept as conda does, unless an option says otherwise.
const RUNNER: &str = r#"#!/bin/sh
shift
keep=$(basename "$0" | sed -n s/conda/yes/p)
while :; do
  case $1 in
    --no-capture-output) keep=; shift ;;
    -n | --with) shift 2 ;;
    *) break ;;
  esac
done
[ "$keep" ] || exec "$@"
out=$("$@" 2>&1); echo "$out"
"#;
/// Only the first rank prints.
const RANKS: &str = r#"
open("pids", "a").write(f"{os.getpid()}\n")
for number in range(1, args.max_steps + 1):
    loss = step(number)
    if os.environ.get("RANK", "0") == "0":
        print(f"step {number}: loss {loss:.4f}", flush=True)
"#;

/// A directory with these programs before those of the machine.
fn scene() -> (Scene, String) {
    let scene = Scene::new();
    let programs =
        [("torchrun", LAUNCHER), ("accelerate", LAUNCHER), ("deepspeed", LAUNCHER), ("uv", RUNNER), ("conda", RUNNER)];
    let bin = scene.path().join("bin");
    fs::create_dir_all(&bin).unwrap();
    for (name, text) in programs {
        fs::write(bin.join(name), text).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let source = format!("{HEAD}{STEP}{RANKS}");
    fs::create_dir_all(scene.path().join("pkg")).unwrap();
    fs::write(scene.path().join("pkg/train.py"), &source).unwrap();
    fs::write(scene.path().join("train.sh"), "set -e\nexec python3 train.py -b 16 \"$@\"\n").unwrap();
    fs::write(scene.path().join("run.sh"), "exec ${PYTHON:-python3} -u \"$@\"\n").unwrap();
    let path = format!("PATH={}:{}", bin.display(), std::env::var("PATH").unwrap());
    (scene, path)
}

fn all_have_ended(scene: &Scene) {
    let pids = fs::read_to_string(scene.path().join("pids")).unwrap();
    for pid in pids.lines() {
        // Another program may have got the number meanwhile.
        let place = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        assert!(!place.starts_with(scene.path()), "process {pid} outlived its launch");
    }
}

#[rstest]
#[case::torchrun("torchrun --nproc-per-node 2 train.py -b 16", &["'torchrun'", "'--nproc-per-node'"])]
#[case::accelerate(
    "accelerate launch --num_processes 2 train.py -b 16",
    &["'launch'", "'$(settings.precision=bf16:+--mixed_precision=bf16)'"]
)]
#[case::deepspeed("deepspeed --no_local_rank --num_gpus 2 train.py -b 16", &["'deepspeed'", "'--no_local_rank'"])]
#[case::module("python3 -m pkg.train -b 16", &["'-m'", "'pkg.train'"])]
#[case::shell_script("sh train.sh", &["'sh'", "'train.sh'"])]
#[case::shell_script_of_any("sh run.sh train.py -b 16", &["'run.sh'", "'train.py'"])]
#[case::uv("uv run --with torch python3 train.py -b 16", &["'uv'", "'--with'"])]
#[case::conda("conda run -n env python3 train.py -b 16", &["'conda'", "'--no-capture-output'"])]
#[case::env("env A=B python3 train.py -b 16", &["'A=B'", "'python3'"])]
fn a_script_is_found_and_observed_behind_what_starts_it(#[case] command: &str, #[case] words: &[&str]) {
    let (scene, path) = scene();
    let options = [path.as_str(), "--observe", "2s", "--dry-run"];
    let arguments: Vec<&str> = options.into_iter().chain(command.split(' ')).collect();
    let (output, _) = tuned(&scene, &format!("{HEAD}{STEP}{RANKS}"), &arguments);
    let (manifest, printed) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{manifest}{printed}");
    assert!(printed.contains("found: a step takes"), "{printed}");
    let varied = ["'--batch_size=$(settings.batchPerGpu)'", "'$(settings.compile=Fuse:+--compile)'", "batchPerGpu: 16"];
    for expected in words.iter().chain(&varied) {
        assert!(manifest.contains(expected), "{expected}: {manifest}");
    }
    all_have_ended(&scene);
}

#[test]
fn a_script_behind_torchrun_is_measured_and_its_workers_end_with_their_launches() {
    let (scene, path) = scene();
    let given = [path.as_str(), "--budget", BUDGET, "torchrun", "--nproc-per-node", "2", "train.py", "--lr=0.2"];
    let (output, status) = tuned(&scene, &format!("{HEAD}{STEP}{RANKS}"), &given);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert_eq!(state(&status, "compile"), "Accepted", "{text}");
    assert_eq!(line(&text, "command"), "torchrun --nproc-per-node 2 train.py --lr=0.2 --compile", "{text}");
    all_have_ended(&scene);
    let launched = fs::read_to_string(scene.path().join("launched")).unwrap();
    assert!(
        launched.lines().count() > 2 && launched.lines().all(|line| line.contains("--nproc-per-node 2")),
        "{launched}"
    );
}

#[test]
fn a_notebook_says_how_it_becomes_a_script() {
    let scene = Scene::new();
    fs::write(scene.path().join("train.ipynb"), "{}").unwrap();
    let output = scene.output(&["tune", "train.ipynb"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("jupyter nbconvert --to script train.ipynb"), "{}", stderr(&output));
    let exported =
        "#!/usr/bin/env python\n# coding: utf-8\n\n# In[1]:\n\n\nget_ipython().run_line_magic('pip', 'install x')\n";
    let (output, _) = tuned(&scene, exported, &["train.py"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("train.py:7: get_ipython() is there only in a notebook"), "{}", stderr(&output));
}
