//! SIGKILL at random moments.

use crate::scene::{Scene, stderr, stdout, wait_until};
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;

const KILLS: usize = 50;

/// What a run concluded, without times, attempts and costs, and without the estimates of speed: of a pair that was
/// killed after its first launch another one is measured.
fn conclusions(status: &Value) -> Vec<Value> {
    let mut all = vec![status["stage"].clone(), status["effectiveSettings"].clone()];
    all.extend(["state", "reason"].map(|key| status["bundle"][key].clone()));
    for phase in status["phases"].as_array().unwrap() {
        all.extend(["name", "state", "reason", "rung", "quality"].map(|key| phase[key].clone()));
    }
    all.extend(["items", "steps", "validation"].map(|key| status["training"][key].clone()));
    all
}

/// Numbers that look random and are the same in every run of the test.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn fifty_kills_change_no_verdict_and_repeat_no_launch() {
    let (undisturbed, disturbed) = undisturbed_and_killed(KILLS, |_| {});
    assert_eq!(conclusions(&disturbed), conclusions(&undisturbed));
    // The noise of a launch is 0.4 %, and its parts do not come from two machines.
    for (found, expected) in speedups(&disturbed).into_iter().zip(speedups(&undisturbed)) {
        assert!((found / expected - 1.0).abs() < 0.02, "{found} instead of {expected}");
    }
}

/// The estimates of speed of the phases and of all together, where they have one.
fn speedups(status: &Value) -> Vec<f64> {
    let judged = status["phases"].as_array().unwrap().iter().chain([&status["bundle"]]);
    judged.filter_map(|it| it["speedup"]["estimate"].as_str()?.parse().ok()).collect()
}

/// A search of 48 trials, four at a time, whose points depend on the results before.
fn searching(job: &mut Value) {
    let spec = &mut job["spec"];
    spec["phases"] = json!([]);
    spec["workload"]["config"]["quality"] =
        json!({"optima": [{"setting": "learningRate", "best": 1e-3, "weight": 0.2}]});
    spec["settings"]["learningRate"] = "1e-4".into();
    // 64 items a step of a millisecond each.
    spec["search"] = json!([{
        "name": "rates", "trials": 48, "items": 90 * 64, "sampler": "TPE", "parallelism": 4, "finalists": 2,
        "objectives": [{"metric": "loss", "goal": "Minimize"}],
        "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"},
                       {"name": "warmupSteps", "min": "0", "max": "40", "step": "10"}],
    }]);
    spec["settings"]["warmupSteps"] = 10.into();
    spec["train"] = json!({"items": 6400});
}

#[test]
fn fifty_kills_change_no_trial_of_a_search_and_not_its_winner() {
    let (undisturbed, disturbed) = undisturbed_and_killed(KILLS / 2, searching);
    assert_eq!(disturbed["stage"], "Complete");
    assert_eq!(disturbed["effectiveSettings"], undisturbed["effectiveSettings"]);
    let found =
        |status: &Value| ["trials", "finalists", "winner", "message"].map(|field| status["search"][0][field].clone());
    assert_eq!(found(&disturbed), found(&undisturbed));
    assert_eq!(found(&disturbed)[0].as_array().map(Vec::len), Some(48));
    assert!(disturbed["retries"].is_null() && disturbed["parallel"].is_null());
}

/// The status after an undisturbed run of the job, and after one that is killed 50 times, or `least` times on a machine
/// that is done sooner.
fn undisturbed_and_killed(least: usize, change: impl Fn(&mut Value)) -> (Value, Value) {
    let undisturbed = Scene::new();
    undisturbed.write_job(&change);
    let output = undisturbed.output(&["run", "job.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}\n{}", stdout(&output), stderr(&output));

    let scene = Scene::new();
    scene.write_job(&change);
    let mut delays = Sequence(2026);
    let mut killed = 0;
    while killed < KILLS {
        let mut pawl = scene.pawl(&["run", "job.yaml"]);
        let mut child = pawl.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 + delays.below(120)));
        if child.try_wait().unwrap().is_some() {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        killed += 1;
    }
    assert!(killed >= least, "the job was done after {killed} kills");
    let output = scene.output(&["run", "job.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}\n{}", stdout(&output), stderr(&output));
    assert_eq!(scene.ledger("repeated"), [""; 0], "finished launches were run again");
    assert!(scene.status()["retry"].is_null(), "a kill counted as a failure of the job");
    (undisturbed.status(), scene.status())
}

#[test]
fn a_run_that_is_killed_after_a_verdict_leaves_a_report() {
    let scene = Scene::new();
    // The launches after the first verdict take long enough to be killed in.
    scene.write_job(|job| job["spec"]["workload"]["config"]["stepSeconds"] = 0.01.into());
    let mut pawl = scene.pawl(&["run", "job.yaml"]);
    let mut child = pawl.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let report = scene.state().join("report.html");
    wait_until("the report about the first verdict", || report.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(scene.status()["stage"], "Optimizing", "the run was over before it was killed");
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("graph") && page.ends_with("</html>\n"), "{page}");
}
