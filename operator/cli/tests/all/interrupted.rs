//! Ctrl-C, SIGTERM and SIGHUP.

use crate::scene::{Scene, signal, stderr, stdout, wait_until};
use rustix::process::Signal;
use serde_json::json;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn ctrl_c_checkpoints_and_the_same_command_resumes() {
    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let scene = Scene::new();
        scene.write_job(|job| {
            job["spec"]["phases"] = json!([]);
            job["spec"]["workload"]["config"]["stepSeconds"] = json!(0.02);
            job["spec"]["train"] = json!({"items": 9600, "checkpoint": {"every": "1h"}});
        });
        let child = scene.pawl(&["run", "job.yaml"]).spawn().unwrap();
        let trained =
            || scene.state().join("status.json").exists() && scene.status()["training"]["steps"].as_u64() >= Some(5);
        wait_until("training is under way", trained);
        signal(&child, sent);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}\n{}", stdout(&output), stderr(&output));
        assert!(stderr(&output).contains("pawl run job.yaml"), "{}", stderr(&output));
        let saved = scene.status()["training"]["lastCheckpoint"]["items"].as_u64();
        assert!(saved > Some(0), "no checkpoint was written: {}", scene.status()["training"]);
        for command in [&["status", "job.yaml"][..], &["list"]] {
            let text = stdout(&scene.output(command));
            assert!(text.contains("stopped"), "{command:?}: {text}");
        }

        let output = scene.output(&["run", "job.yaml"]);
        assert_eq!(output.status.code(), Some(0), "{}\n{}", stdout(&output), stderr(&output));
        assert_eq!(scene.status()["training"]["items"], 9600);
        assert!(scene.status()["retry"].is_null() && scene.status()["training"]["restarts"].as_u64() == Some(0));
    }
}

/// Between the two runs the machine may have become another one.
#[test]
fn a_pair_that_an_interruption_has_split_does_not_count() {
    let scene = Scene::new();
    scene.write_job(|job| job["spec"]["workload"]["config"]["stepSeconds"] = json!(0.004));
    let child = scene.pawl(&["run", "job.yaml"]).spawn().unwrap();
    let measured = |launch: &&String| launch.starts_with("graph-r0-") && launch.contains("-p");
    // The second one has started: of the first pair, one launch is done.
    wait_until("a launch of a pair is done", || scene.ledger("started").iter().filter(measured).count() == 2);
    signal(&child, Signal::TERM);
    child.wait_with_output().unwrap();
    assert_eq!(scene.output(&["run", "job.yaml"]).status.code(), Some(0));

    let status = scene.status();
    let launches = status["phases"][0]["launches"].as_array().unwrap();
    let pairs = launches.iter().filter(|launch| launch["kind"] == "Measure").map(|launch| launch["pair"].as_u64());
    let mut pairs: Vec<u64> = pairs.map(Option::unwrap).collect();
    pairs.sort_unstable();
    assert_eq!(pairs[..3], [0, 1, 1], "the first launch has no partner: {pairs:?}");
    assert_eq!(status["phases"][0]["state"], "Accepted");
}

#[test]
fn the_second_ctrl_c_kills_ranks_that_do_not_listen() {
    let scene = Scene::new();
    scene.write_job(|job| {
        job["spec"]["phases"] = json!([]);
        job["spec"]["workload"]["config"]["faults"] = json!([{"fault": "Hang", "atStep": 3, "kinds": ["Train"]}]);
    });
    let child = scene.pawl(&["run", "job.yaml"]).spawn().unwrap();
    wait_until("training starts", || scene.ledger("started").iter().any(|launch| launch.starts_with("train")));
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, Signal::INT);
    std::thread::sleep(Duration::from_millis(300));
    let second = Instant::now();
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}\n{}", stdout(&output), stderr(&output));
    assert!(second.elapsed() < Duration::from_secs(20), "it took {:?}", second.elapsed());
}

/// A dropped connection: nobody reads the output any more, and both the kernel and the shell send SIGHUP.
#[test]
fn a_closed_terminal_leads_to_a_checkpoint() {
    let scene = Scene::new();
    train_for_long(&scene);
    let mut child = scene.pawl_in_terminal(&["run", "job.yaml"]).spawn().unwrap();
    wait_until("training is under way", || trained(&scene));
    drop((child.stdout.take(), child.stderr.take()));
    signal(&child, Signal::HUP);
    std::thread::sleep(Duration::from_millis(20));
    signal(&child, Signal::HUP);
    assert_eq!(child.wait().unwrap().code(), Some(129));
    assert!(scene.status()["training"]["lastCheckpoint"]["items"].as_u64() > Some(0), "{}", scene.status()["training"]);
    let events = std::fs::read_to_string(scene.state().join("events.jsonl")).unwrap();
    assert!(events.lines().last().unwrap().contains("stopped by SIGHUP"), "{events}");
}

#[test]
fn nohup_keeps_the_job_running() {
    let scene = Scene::new();
    train_for_long(&scene);
    let run = format!("trap '' HUP; exec {} run job.yaml", env!("CARGO_BIN_EXE_pawl"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &run]).current_dir(scene.path()).env("LEDGER", scene.path());
    let mut child = shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("training is under way", || trained(&scene));
    let before = scene.status()["training"]["steps"].as_u64();
    signal(&child, Signal::HUP);
    wait_until("it trains on", || scene.status()["training"]["steps"].as_u64() >= before.map(|steps| steps + 100));
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

fn train_for_long(scene: &Scene) {
    scene.write_job(|job| {
        job["spec"]["phases"] = json!([]);
        job["spec"]["workload"]["config"]["stepSeconds"] = json!(0.02);
        job["spec"]["train"] = json!({"items": 96000, "checkpoint": {"every": "1h"}});
    });
}

fn trained(scene: &Scene) -> bool {
    scene.state().join("status.json").exists() && scene.status()["training"]["steps"].as_u64() >= Some(5)
}
