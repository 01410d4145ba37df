//! Trouble with the state directory: exit 4, a clear error, nothing lost.

use crate::scene::{Scene, stderr, stdout, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

#[test]
fn a_corrupt_status_is_named_and_left_alone() {
    let scene = Scene::new();
    scene.write_job(|_| {});
    fs::create_dir_all(scene.state()).unwrap();
    let path = scene.state().join("status.json");
    fs::write(&path, "{\"format\": 1, \"specHa").unwrap();
    for command in ["run", "status", "report"] {
        let output = scene.output(&[command, "job.yaml"]);
        assert_eq!(output.status.code(), Some(4), "{command}: {}", stderr(&output));
        assert!(stderr(&output).contains("status.json") && stderr(&output).contains("delete"), "{}", stderr(&output));
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"format\": 1, \"specHa");
    assert_eq!(scene.ledger("started"), [""; 0]);
}

#[test]
fn a_directory_that_cannot_be_written_or_is_another_jobs_is_refused() {
    let scene = Scene::new();
    scene.write_job(|_| {});
    fs::write(scene.path().join("file"), "").unwrap();
    let output = scene.output(&["run", "job.yaml", "--state", "file/state"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("file/state") && stderr(&output).contains("--state"), "{}", stderr(&output));

    scene.write_job(|job| job["spec"]["phases"] = serde_json::json!([]));
    assert_eq!(scene.output(&["run", "job.yaml"]).status.code(), Some(0));
    scene.write_job(|job| job["metadata"]["name"] = "other".into());
    let output = scene.output(&["run", "job.yaml", "--state", ".pawl/toy"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("\"toy\"") && stderr(&output).contains("\"other\""), "{}", stderr(&output));
}

#[test]
fn a_job_that_never_ran_here_is_invalid_input_and_the_others_are_named() {
    let scene = Scene::new();
    scene.write_job(|_| {});
    let commands: [&[&str]; 8] = [
        &["status", "nojob"],
        &["report", "nojob"],
        &["replay", "nojob"],
        &["search", "export", "nojob"],
        &["compare", "nojob", "nojob"],
        &["reproduce", "nojob"],
        &["export", "--to", "model", "nojob"],
        &["export", "--to", "model", ".pawl/nojob"],
    ];
    let nothing = "; there are no jobs in .pawl: run a job first, or name its manifest, state directory or storage\n";
    for command in commands {
        let output = scene.output(command);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {}", stderr(&output));
        assert!(stderr(&output).ends_with(nothing) && !stderr(&output).contains("--state"), "{}", stderr(&output));
    }
    let state = scene.path().join(".pawl/other");
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("status.json"), "{}").unwrap();
    fs::create_dir(scene.path().join("empty")).unwrap();
    let others = "; jobs in .pawl: other: name one of them, or the manifest, state directory or storage of a job";
    let selected: [(&[&str], &str); 5] = [
        (&["nojob"], "nojob: no such file or directory, and no job was run in .pawl/nojob"),
        (&["job.yaml"], "job.yaml: its job was not run here: .pawl/toy/status.json does not exist"),
        (&["empty"], "empty: its job was not run here: empty/status.json does not exist"),
        (&["--state", "nowhere"], "nowhere: no such file or directory"),
        (&[".pawl/nowhere"], ".pawl/nowhere: no such file or directory"),
    ];
    for (arguments, problem) in selected {
        let output = scene.output(&[&["status"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert_eq!(stderr(&output), format!("error: {problem}{others}\n"));
    }
}

#[test]
fn a_second_run_fails_and_identifies_the_first() {
    let scene = Scene::new();
    scene.write_job(|job| job["spec"]["workload"]["config"]["stepSeconds"] = 0.05.into());
    let mut first = scene.pawl(&["run", "job.yaml"]).spawn().unwrap();
    wait_until("the first launch starts", || !scene.ledger("started").is_empty());
    let second = scene.output(&["run", "job.yaml"]);
    assert_eq!(second.status.code(), Some(4), "{}", stderr(&second));
    assert!(stderr(&second).contains(&format!("process {}", first.id())), "{}", stderr(&second));
    // Looking needs no lock.
    assert_eq!(scene.output(&["status", "job.yaml"]).status.code(), Some(0));
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn a_full_disk_stops_the_run_and_loses_nothing() {
    let scene = Scene::new();
    let disk = scene.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(&disk).output();
    if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: a small file system cannot be mounted here (needs root): {mounted:?}");
        return;
    }
    // Unmounts even when an assertion fails.
    struct Mounted(std::path::PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let _mounted = Mounted(disk.clone());

    scene.write_job(|_| {});
    let output = scene.output(&["run", "job.yaml", "--state", "disk/state"]);
    assert_eq!(output.status.code(), Some(4), "{}\n{}", stdout(&output), stderr(&output));
    assert!(stderr(&output).contains("free some space"), "{}", stderr(&output));
    // With space again, it goes on: what had finished is not run again.
    let grown = Command::new("mount").args(["-o", "remount,size=64m"]).arg(&disk).status().unwrap();
    assert!(grown.success());
    let output = scene.output(&["run", "job.yaml", "--state", "disk/state"]);
    assert_eq!(output.status.code(), Some(0), "{}\n{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("accepted (fallback 1)"), "{}", stdout(&output));
}

#[test]
fn jobs_are_listed_and_two_are_compared() {
    let scene = Scene::new();
    let none = scene.output(&["list"]);
    assert_eq!((none.status.code(), stdout(&none).lines().count()), (Some(0), 1), "{}", stderr(&none));
    let missing = scene.output(&["list", "none/runs"]);
    assert_eq!(missing.status.code(), Some(2), "{}", stdout(&missing));
    assert!(stderr(&missing).contains("none/runs: no such directory: name"), "{}", stderr(&missing));
    for (name, state, estimate) in [("one", "Accepted", "1.5"), ("other", "RolledBack", "0.9")] {
        let phase = json!({"name": "graph", "state": state, "speedup": {"estimate": estimate, "pairs": 3}});
        let job = json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
            "spec": {"workload": {"name": "ups"}}});
        let status = json!({"stage": "Complete", "phases": [phase], "speedup": estimate});
        let document = json!({"format": 1, "specHash": "", "job": job, "status": status});
        let directory = scene.path().join(".pawl").join(name);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("status.json"), document.to_string()).unwrap();
    }
    let listed = stdout(&scene.output(&["list"]));
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["JOB", "one", "other"], "{listed}");
    let compared = scene.output(&["compare", "one", ".pawl/other"]);
    let text = stdout(&compared);
    let phase = text.lines().find(|line| line.contains("phase graph")).unwrap_or_else(|| panic!("{text}"));
    assert!(phase.starts_with('≠') && phase.contains("accepted") && phase.contains("rolled back"), "{text}");

    // One that cannot be read does not hide the others; what is no directory is none.
    fs::write(scene.path().join(".pawl/.gitignore"), "*").unwrap();
    fs::write(scene.path().join(".pawl/one/status.json"), "{").unwrap();
    let listed = scene.output(&["list", "--output", "json"]);
    assert_eq!(listed.status.code(), Some(4));
    assert!(stderr(&listed).contains(".pawl/one/status.json"), "{}", stderr(&listed));
    let jobs: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!((jobs.as_array().unwrap().len(), &jobs[0]["job"]), (1, &json!("other")));
}
