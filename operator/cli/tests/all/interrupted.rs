//! Ctrl-C and SIGTERM.

use crate::scene::{Scene, signal, stderr, stdout, wait_until};
use rustix::process::Signal;
use serde_json::json;
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

        let output = scene.output(&["run", "job.yaml"]);
        assert_eq!(output.status.code(), Some(0), "{}\n{}", stdout(&output), stderr(&output));
        assert_eq!(scene.status()["training"]["items"], 9600);
        assert!(scene.status()["retry"].is_null() && scene.status()["training"]["restarts"].as_u64() == Some(0));
    }
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
