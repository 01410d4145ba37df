//! Runs of a script that knows nothing of Pawl and is followed by its output.

use crate::scene::{Scene, stderr, stdout};
use serde_json::{Value, json};
use std::fs;

/// `train.py STEPS RATE SECONDS EVERY BATCH`: gradient descent on half a square, from a loss of 8. As public scripts
/// do, it evaluates before the steps whose number is divisible by EVERY, and after the last one if that is.
const TRAIN: &str = r#"
import sys, time
steps, rate, seconds, every = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
weight = 4.0
for step in range(steps + 1):
    if step % every == 0:
        print(f"validation at {step}: {weight * weight / 2:.4f}", flush=True)
    if step == steps:
        break
    time.sleep(seconds)
    print(f"step {step + 1}: {weight * weight / 2:.4f}", flush=True)
    weight -= rate * weight
"#;

/// A job with a phase that is faster and has the learning rate `rate`. The script evaluates at multiples of `every`.
fn run(rate: &str, every: &str) -> Value {
    let scene = Scene::new();
    fs::write(scene.path().join("train.py"), TRAIN).unwrap();
    let seconds = "$(settings.precision=fp32:+0.03)$(settings.precision=bf16:+0.006)";
    scene.write_job(|job| {
        job["spec"] = json!({
            "workload": {
                "command": ["python3", scene.path().join("train.py"), "$(launch.steps)", "$(settings.learningRate)", seconds, every, "$(settings.batchPerGpu)"],
                "monitor": {
                    "training": r"step (?<step>\d+): (?<loss>\S+)",
                    "validation": r"validation at (?<step>\d+): (?<loss>\S+)",
                },
            },
            "trainer": {"gpusPerReplica": 0},
            "settings": {"batchPerGpu": 8, "learningRate": "0.1", "precision": "fp32"},
            "seeds": [1, 2],
            "phases": [{"name": "faster", "numerics": "Changed", "settings": {"precision": "bf16", "learningRate": rate}}],
            "gates": {"validationLossDelta": "0.1"},
            "analysis": {"warmupSteps": 2, "windowSteps": 8, "qualityItems": 320, "budgetPercent": "Unlimited"},
            "train": {"items": 320},
        });
    });
    let output = scene.output(&["run", "job.yaml"]);
    let phase = scene.status()["phases"][0].clone();
    assert!(phase["reason"].is_string(), "{}{}", stdout(&output), stderr(&output));
    phase
}

/// A learning rate at which the weight swings from one side to the other and nothing is learnt.
const RUINOUS: &str = "2";

#[test]
fn a_script_that_evaluates_only_before_its_first_step_gets_no_phase_accepted() {
    let phase = run(RUINOUS, "1000");
    assert_eq!((&phase["state"], &phase["reason"]), (&json!("Unsupported"), &json!("ValidatedEarly")), "{phase}");
    assert!(phase["message"].as_str().unwrap().contains("$(launch.evalSteps)"), "{phase}");
}

#[test]
fn a_script_that_evaluates_when_the_launch_says_so_is_judged_by_the_trained_model() {
    let every = "$(launch.evalSteps:-1000)";
    let ruinous = run(RUINOUS, every);
    assert_eq!(ruinous["reason"], "QualityBelowThreshold", "{ruinous}");
    let good = run("0.12", every);
    assert_eq!(good["state"], "Accepted", "{good}");
    let launches = good["launches"].as_array().unwrap();
    let quality = launches.iter().find(|launch| launch["kind"] == "Quality").unwrap();
    let items = |field: &str| quality[field]["items"].as_u64();
    assert_eq!((items("firstValidation"), items("validation")), (Some(0), Some(320)), "{good}");
}

/// A program that keeps the contract, whose batches take 12 ms and whose steps take 1 ms: it is bound by its loader.
/// `loaderPrefetch` is the length of the queue, which is full at the first step.
const LOADER: &str = r#"
import json, os, queue, sys, threading, time
plan = json.load(open(os.environ["PAWL_PLAN"]))
settings, budget, kind = plan["settings"], plan["budget"], plan["kind"]
def write(variable, body):
    path = os.environ[variable]
    with open(path + ".part", "w") as file: json.dump(body, file)
    os.replace(path + ".part", path)
def end(**measured):
    write("PAWL_REPORT", {"contract": 1, "launch": plan["launch"], "kind": kind, "rank": 0, "outcome": "Done"} | measured)
    sys.exit()
if kind == "Preflight": end()
batches = queue.Queue(maxsize=settings["loaderPrefetch"])
def load():
    while True:
        time.sleep(0.012)
        batches.put(1)
threading.Thread(target=load, daemon=True).start()
while not batches.full(): time.sleep(0.001)
warmup, window = budget.get("warmupSteps", 5), budget.get("windowSteps", 15)
for step in range(1, warmup + window + 1):
    batches.get()
    time.sleep(0.001)
    if step == warmup: began = time.monotonic()
    write("PAWL_PROGRESS", {"launch": plan["launch"], "kind": kind, "step": step, "items": 8 * step, "epoch": 0})
speed = 8 * window / (time.monotonic() - began)
end(steps=step, items=8 * step, itemsPerSecond=speed, loss=1.0, validation={"items": 8 * step, "metrics": {"loss": 1.0}})
"#;

#[test]
fn a_longer_queue_of_prepared_batches_is_no_speedup() {
    let run = |workers: Value| {
        let scene = Scene::new();
        fs::write(scene.path().join("loader.py"), LOADER).unwrap();
        scene.write_job(|job| {
            job["spec"] = json!({
                "workload": {"command": ["python3", scene.path().join("loader.py")]},
                "trainer": {"gpusPerReplica": 0},
                "settings": {"batchPerGpu": 8, "loaderPrefetch": 1, "loaderWorkers": workers},
                "phases": [{"name": "prefetch", "settings": {"loaderPrefetch": 64}}],
                "analysis": {"budgetPercent": "Unlimited"},
                "train": {"items": 160},
            });
        });
        let output = scene.output(&["run", "job.yaml"]);
        let phase = scene.status()["phases"][0].clone();
        assert!(phase["reason"].is_string(), "{}{}", stdout(&output), stderr(&output));
        phase
    };
    // How the program uses the setting is known to it alone: it is measured, beyond the queue, and not accepted.
    let phase = run(Value::Null);
    assert!(phase["state"] == "RolledBack" || phase["state"] == "Inconclusive", "{phase}");
    let speedup: f64 = phase["speedup"]["estimate"].as_str().unwrap().parse().unwrap();
    assert!((0.8..1.1).contains(&speedup), "{phase}");
    // Without workers, by their definition nothing is prepared ahead.
    let phase = run(json!(0));
    assert_eq!((&phase["state"], &phase["reason"]), (&json!("Skipped"), &json!("NoEffect")), "{phase}");
    assert!(phase["message"].as_str().unwrap().contains("set loaderWorkers to at least 1"), "{phase}");
}
