//! Bad input: an exact error, exit 2, nothing started.

use crate::scene::{Scene, stderr, stdout};
use serde_json::json;
use std::fs;
use std::path::Path;

#[test]
fn a_bad_manifest_is_refused_with_its_place() {
    let scene = Scene::new();
    let text = "apiVersion: pawl.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: toy}\nspec:\n  workload: {name: ups}\n  \
                settings:\n    batchPerGpu: 0\n";
    fs::write(scene.path().join("job.yaml"), text).unwrap();
    for command in ["run", "validate", "plan", "status"] {
        let output = scene.output(&[command, "job.yaml"]);
        assert_eq!(output.status.code(), Some(2), "{command}: {}", stderr(&output));
        let error = stderr(&output);
        assert!(error.contains("job.yaml:7:") && error.contains("batchPerGpu"), "{command}: {error}");
    }
    assert!(!scene.path().join(".pawl").exists(), "something was started");
}

#[test]
fn every_broken_manifest_is_refused_exactly() {
    let scene = Scene::new();
    let broken = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds/manifest/tests/broken");
    let mut count = 0;
    for entry in fs::read_dir(broken).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let expected = text.lines().filter_map(|line| line.strip_prefix("# error: "));
        let expected: Vec<String> = expected.map(|error| format!("{}:{error}", path.display())).collect();
        let output = scene.output(&["run", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{}", path.display());
        assert_eq!(stderr(&output).lines().collect::<Vec<_>>(), expected);
        count += 1;
    }
    assert!(count >= 40, "{count} broken manifests");
    assert!(!scene.path().join(".pawl").exists(), "something was started");
}

#[test]
fn the_errors_of_all_files_are_reported() {
    let scene = Scene::new();
    scene.write_job(|_| {});
    fs::write(scene.path().join("a.yaml"), "kind: Nonsense\n").unwrap();
    fs::write(scene.path().join("b.yaml"), "}{").unwrap();
    let output = scene.output(&["validate", "a.yaml", "job.yaml", "b.yaml", "missing.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    let error = stderr(&output);
    assert!(["a.yaml", "b.yaml", "missing.yaml"].iter().all(|file| error.contains(file)), "{error}");
    assert!(stdout(&output).contains("job.yaml: valid"), "{}", stdout(&output));
    assert_eq!(scene.output(&["validate", "job.yaml"]).status.code(), Some(0));
}

#[test]
fn a_machine_that_does_not_fit_is_refused_before_anything_starts() {
    let scene = Scene::new();
    scene.write_job(|job| job["spec"]["trainer"]["gpusPerReplica"] = json!(64));
    let output = scene.output(&["run", "job.yaml"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("64 GPUs are required"), "{}", stderr(&output));
    let output = scene.output(&["run", "job.yaml", "--gpus", "0,1"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--gpus"), "{}", stderr(&output));
    assert!(!scene.path().join(".pawl").exists());
}

#[test]
fn the_crd_and_completions_are_printed() {
    let scene = Scene::new();
    assert!(stdout(&scene.output(&["crd"])).contains("trainingjobs.pawl.dev"));
    assert!(stdout(&scene.output(&["completion", "bash"])).contains("_pawl"));
    let help = stdout(&scene.output(&["run", "--help"]));
    assert!(["130", "143", "Exit codes"].iter().all(|part| help.contains(part)), "{help}");
}
