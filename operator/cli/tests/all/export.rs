//! `pawl export`: the model of a job that ran here, of a storage that was copied, and of a script.

use crate::scene::{Scene, stderr, stdout};
use pawl_trainer::checkpoint::{Store, Tensors, decode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Trains a built-in workload for some steps on the CPU, with its checkpoints under `models`, and returns its storage.
fn trained(scene: &Scene, workload: &Value, settings: &Value) -> PathBuf {
    let models = format!("file://{}", scene.path().join("models").display());
    scene.write_job(|job| {
        job["spec"] = json!({
            "workload": workload, "trainer": {"gpusPerReplica": 0}, "settings": settings, "seeds": [42], "phases": [],
            "train": {"items": 24, "checkpoint": {"every": "1h", "keep": 2, "storage": models}},
            "lifecycle": {"hangTimeout": "120s"},
        });
    });
    let output = scene.output(&["run", "job.yaml", "--quiet"]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    let storage = scene.status()["training"]["storage"].as_str().unwrap().to_owned();
    PathBuf::from(storage.strip_prefix("file://").unwrap())
}

fn saved(storage: &Path) -> Tensors {
    Store::open(storage.to_str().unwrap()).unwrap().newest(None).unwrap().unwrap().checkpoint.tensors
}

fn exported(directory: &Path) -> Tensors {
    decode(&fs::read(directory.join("model.safetensors")).unwrap()).unwrap()
}

fn read(path: PathBuf) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_model_of_a_job_is_exported_by_its_name_and_from_its_storage_alone() {
    let scene = Scene::new();
    let ups = json!({"name": "ups", "config": {"preset": "smoke"}});
    let storage = trained(&scene, &ups, &json!({"batchPerGpu": 2, "compile": "Graph"}));
    let output = scene.output(&["export", "toy", "--to", "model", "--checkpoint", "last"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "model\n"), "{}", stderr(&output));
    assert!(stderr(&output).contains("moving averages") && stderr(&output).contains("24 items"), "{}", stderr(&output));
    let model = scene.path().join("model");
    let (saved, evaluated) = (saved(&storage), exported(&model));
    let value = |name: &str| saved.iter().find(|(known, _)| known == name).map(|(_, array)| array);
    assert!(!evaluated.is_empty());
    for (name, array) in &evaluated {
        assert!(Some(array) == value(&format!("average/{name}")).or(value(name)), "{name}");
    }
    let said = read(model.join("config.json"));
    assert_eq!((&said["config"], &said["checkpoint"]["items"]), (&json!({"preset": "smoke"}), &json!(24)), "{said:#}");
    assert_eq!((&said["job"]["name"], &said["settings"]["compile"]), (&json!("toy"), &json!("Graph")), "{said:#}");

    let inside = storage.join("v-900");
    let output = scene.output(&["export", "toy", "--to", inside.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("is inside of the storage of the job") && !inside.exists(), "{}", stderr(&output));

    let again = scene.output(&["export", "job.yaml", "--to", "model"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("model: exists already, and nothing is overwritten"), "{}", stderr(&again));

    // As after `kubectl pawl fetch`: there is nothing but checkpoint and records.
    fs::remove_dir_all(scene.path().join(".pawl")).unwrap();
    fs::remove_file(scene.path().join("job.yaml")).unwrap();
    let copied = scene.output(&["export", storage.to_str().unwrap(), "--to", "from-storage", "--checkpoint", "last"]);
    assert_eq!(copied.status.code(), Some(0), "{}", stderr(&copied));
    let file = |directory: &str| fs::read(scene.path().join(directory).join("model.safetensors")).unwrap();
    assert!(file("from-storage") == file("model"));
    fs::remove_dir_all(storage.join(".pawl/_records/attempts")).unwrap();
    let unknown = scene.output(&["export", storage.to_str().unwrap(), "--to", "unknown"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("has no plan of train"), "{}", stderr(&unknown));
    assert!(!scene.path().join("unknown").exists());
}

#[test]
fn a_language_model_is_a_directory_for_transformers() {
    let scene = Scene::new();
    let config = json!({"size": "tiny", "data": {"tokens": 100_000}, "evaluation": {"windows": 8}});
    let slm = json!({"name": "slm", "config": config});
    trained(&scene, &slm, &json!({"batchPerGpu": 4, "compile": "Graph"}));
    let output = scene.output(&["export", "job.yaml", "--to", "out/model", "--dtype", "bf16"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let model = scene.path().join("out/model");
    let said = read(model.join("config.json"));
    assert_eq!((&said["model_type"], &said["torch_dtype"]), (&json!("llama"), &json!("bfloat16")), "{said:#}");
    assert_eq!(read(model.join("pawl.json"))["workload"], "slm");
    let refused = scene.output(&["export", "job.yaml", "--to", "adapter", "--adapter"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("method Full trains all weights"), "{}", stderr(&refused));
    let refused = scene.output(&["export", "job.yaml", "--to", "text", "--tokenizer", "here"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("data.tokenizer"), "{}", stderr(&refused));
}

/// A job whose script has written two checkpoints, the second of which has hashes as the Python package writes them.
fn written(scene: &Scene) -> PathBuf {
    let job = json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
        "spec": {"workload": {"command": ["train"]}}});
    let of = |step: u64| json!({"name": format!("checkpoint-{step}"), "step": step, "items": 8 * step});
    let best = json!({"checkpoint": of(20), "metric": "loss", "value": "0.5"});
    let status = json!({"stage": "Complete", "training": {"lastCheckpoint": of(40), "bestCheckpoint": best}});
    let checkpoints = scene.state().join("checkpoints");
    for (step, text) in [(20, "best"), (40, "last")] {
        let directory = checkpoints.join(format!("checkpoint-{step}"));
        fs::create_dir_all(directory.join("inner")).unwrap();
        fs::write(directory.join("inner/weights"), text).unwrap();
    }
    let hash: String = Sha256::digest("last").iter().map(|byte| format!("{byte:02x}")).collect();
    let manifest = json!({"format": 1, "files": {"inner/weights": 4}, "hashes": {"inner/weights": hash}});
    fs::write(checkpoints.join("checkpoint-40/pawl.json"), manifest.to_string()).unwrap();
    let document = json!({"format": 1, "specHash": "", "job": job, "status": status});
    fs::write(scene.state().join("status.json"), document.to_string()).unwrap();
    checkpoints
}

#[test]
fn the_checkpoint_of_a_script_is_copied_as_it_is() {
    let scene = Scene::new();
    let checkpoints = written(&scene);
    std::os::unix::fs::symlink("inner/weights", checkpoints.join("checkpoint-20/link")).unwrap();
    let text = |path: &str| fs::read_to_string(scene.path().join(path)).unwrap();
    for (choice, expected) in [(None, "best"), (Some("last"), "last"), (Some("checkpoint-20"), "best")] {
        let to = format!("model-{}", choice.unwrap_or("default"));
        let mut words = vec!["export", "toy", "--to", &to];
        if let Some(choice) = choice {
            words.extend(["--checkpoint", choice]);
        }
        let output = scene.output(&words);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(text(&format!("{to}/inner/weights")), expected);
    }
    assert_eq!(text("model-default/link"), "best");
    assert!(fs::symlink_metadata(scene.path().join("model-default/link")).unwrap().is_file());

    fs::write(checkpoints.join("checkpoint-40/inner/weights"), "tsal").unwrap();
    for (words, expected) in [
        (&["--checkpoint", "last"][..], "inner/weights does not match its hash"),
        (&["--checkpoint", "checkpoint-60"][..], "checkpoint checkpoint-60: not found as"),
        (&["--checkpoint", "../toy"][..], "is no path inside of the storage"),
        (&["--dtype", "bf16"][..], "are for the built-in workloads"),
        (&["--tokenizer", "here"][..], "are for the built-in workloads"),
        (&["--onnx"][..], "are for the built-in workloads"),
    ] {
        let output = scene.output(&[&["export", "toy", "--to", "refused"][..], words].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{expected}: {}", stderr(&output));
        assert!(!scene.path().join("refused").exists());
    }
}

/// `tests/python/frameworks` uploads with the program itself.
#[test]
fn a_model_is_uploaded_by_the_program_of_the_user() {
    let scene = Scene::new();
    written(&scene);
    let programs = scene.path().join("programs");
    fs::create_dir(&programs).unwrap();
    let push = |to: &str, model: &str| {
        let arguments = ["export", "toy", "--to", to, "--push", model, "--private"];
        scene.pawl(&arguments).env("PATH", &programs).output().unwrap()
    };
    let missing = push("model", "team/toy");
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("pip install huggingface_hub"), "{}", stderr(&missing));
    assert!(!scene.path().join("model").exists());

    let program = programs.join("hf");
    let script = "#!/bin/sh\necho uploading \"$@\"\n[ -e \"$3/inner/weights\" ] && [ \"$2\" != team/full ]\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let pushed = push("model", "team/toy");
    assert_eq!((pushed.status.code(), stdout(&pushed).as_str()), (Some(0), "model\n"), "{}", stderr(&pushed));
    let said = stderr(&pushed);
    assert!(
        said.contains("\nhf upload team/toy model --private\nuploading upload team/toy model --private\n"),
        "{said}"
    );

    let failed = push("again", "team/full");
    assert_eq!((failed.status.code(), stdout(&failed).as_str()), (Some(1), ""));
    let said = stderr(&failed);
    assert!(said.contains("hf upload team/full again --private: exit status: 1: the model is in again"), "{said}");
    assert!(scene.path().join("again/inner/weights").exists());

    for model in ["toy", "team/", "-team/toy", "a/b/c"] {
        let option = format!("--push={model}");
        let refused = scene.output(&["export", "toy", "--to", "other", &option]);
        assert_eq!(refused.status.code(), Some(2), "{model}");
        assert!(stderr(&refused).contains("write OWNER/NAME"), "{}", stderr(&refused));
    }
}

#[test]
fn what_is_no_part_of_the_checkpoint_of_a_script_is_not_exported() {
    let scene = Scene::new();
    let checkpoints = written(&scene);
    let best = checkpoints.join("checkpoint-20");
    let refused = |words: &[&str], expected: &str| {
        let output = scene.output(&[&["export", "toy"][..], words].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{expected}: {}", stderr(&output));
        let mut names = fs::read_dir(scene.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(names.all(|name| !name.to_string_lossy().contains("refused")), "{expected}: nothing is left");
    };
    let to = ["--to", "refused"];
    let inside = best.join("inner/model");
    refused(&["--to", inside.to_str().unwrap()], "is inside of the storage of the job");
    assert!(!inside.exists());

    fs::write(scene.path().join("secret"), "x").unwrap();
    std::os::unix::fs::symlink(scene.path().join("secret"), best.join("inner/link")).unwrap();
    refused(&to, "inner/link: is a link that leads out of the storage");
    fs::remove_file(best.join("inner/link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(best.join("inner/socket")).unwrap();
    refused(&to, "inner/socket: is neither a file nor a directory");
    fs::remove_file(best.join("inner/socket")).unwrap();
    std::os::unix::fs::symlink(scene.path().join("secret"), checkpoints.join("linked")).unwrap();
    refused(&["--to", "refused", "--checkpoint", "linked"], "linked: is a link that leads out of the storage");

    // Another name than a script would give: that of a checkpoint of the built-in workloads, whose manifest comes last.
    fs::rename(&best, checkpoints.join("00000007-step-70-by-1.0")).unwrap();
    refused(&["--to", "refused", "--checkpoint", "00000007-step-70-by-1.0"], "it is incomplete");
    fs::remove_dir_all(&checkpoints).unwrap();
    refused(&to, "no such directory, in which the checkpoints of the job would be");
    assert!(!checkpoints.exists());
}
