//! A tracker that does not answer, and none.

use crate::scene::{Scene, stderr, stdout};
use std::net::TcpListener;

#[test]
fn a_tracker_that_does_not_answer_fails_no_job() {
    let scene = Scene::new();
    scene.write_job(|job| {
        job["spec"]["phases"] = serde_json::json!([]);
        job["spec"]["train"] = serde_json::json!({"items": 640});
    });
    let address = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let with_tracker = |arguments: &[&str]| {
        let mut command = scene.pawl(arguments);
        command.env("MLFLOW_TRACKING_URI", &address).env_remove("HTTP_PROXY").env_remove("http_proxy").output().unwrap()
    };
    let run = with_tracker(&["run", "job.yaml"]);
    assert!(run.status.success(), "{}", stderr(&run));
    let warnings: Vec<String> =
        stdout(&run).lines().filter(|line| line.contains("the job is not tracked")).map(str::to_owned).collect();
    let [warning] = &warnings[..] else { panic!("{}", stdout(&run)) };
    assert!(warning.contains(&address), "{warning}");
    let track = with_tracker(&["track", "job.yaml"]);
    assert_eq!(track.status.code(), Some(1), "{}", stderr(&track));
    assert!(stderr(&track).contains(&address), "{}", stderr(&track));
    let unnamed = scene.output(&["track", "job.yaml"]);
    assert_eq!(unnamed.status.code(), Some(2));
    assert!(stderr(&unnamed).contains("set MLFLOW_TRACKING_URI"), "{}", stderr(&unnamed));
    let folder = scene.path().join("logs");
    let written = scene.pawl(&["track", "job.yaml"]).env("TENSORBOARD_LOGGING_DIR", &folder).output().unwrap();
    assert!(written.status.success(), "{}", stderr(&written));
    assert!(folder.join("toy/training").is_dir());
    let offline = |mode: &str| {
        scene.pawl(&["track", "job.yaml"]).env("WANDB_DIR", &folder).env("WANDB_MODE", mode).output().unwrap()
    };
    assert_eq!(offline("disabled").status.code(), Some(2));
    let written = offline("offline");
    assert!(written.status.success(), "{}", stderr(&written));
    let below = std::fs::read_dir(folder.join("wandb")).unwrap().count() - 1;
    assert!(below > 0 && stdout(&written).contains(&format!("1 run, and {below} below it")), "{}", stdout(&written));
}

/// A job is logged where its manifest says, by `pawl run` and by `pawl track`.
#[test]
fn a_tracker_of_the_manifest_is_known_to_both_commands() {
    let scene = Scene::new();
    scene.write_job(|job| {
        job["spec"]["phases"] = serde_json::json!([]);
        job["spec"]["train"] = serde_json::json!({"items": 640});
        let env = serde_json::json!([{"name": "TENSORBOARD_LOGGING_DIR", "value": "logs"}]);
        job["spec"]["trainer"]["podTemplate"] = serde_json::json!({ "env": env });
    });
    let training = scene.path().join("logs/toy/training");
    for command in ["run", "track"] {
        let output = scene.output(&[command, "job.yaml"]);
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        assert!(training.is_dir(), "{command}");
        std::fs::remove_dir_all(scene.path().join("logs")).unwrap();
    }
}
