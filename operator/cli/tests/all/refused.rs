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

/// The manifest of a workload of the built-in trainer.
const BUILT_IN: &str = "apiVersion: pawl.dev/v1alpha1
kind: TrainingJob
metadata: {name: toy}
spec:
  workload:
    name: ups
    config:
      preset: smoke
  trainer: {gpusPerReplica: 0}
  settings: {batchPerGpu: 2}
  phases:
    - name: pairs
      numerics: Changed
      settings: {workload: {pairs: 2}}
  gates:
    validationMetrics:
      - {name: nrmse, maxRelativeRegression: \"0.03\"}
";

#[test]
fn what_the_built_in_trainer_would_refuse_is_refused_before_anything_starts() {
    let scene = Scene::new();
    for (from, to, place, expected) in [
        ("name: ups", "name: upss", "6:5", "spec.workload.name: \"upss\" is not a workload: did you mean ups? Choose"),
        ("preset: smoke", "preset: smokes", "8:7", "spec.workload.config.preset: smokes is not a preset: choose smoke"),
        (
            "preset: smoke",
            "{preset: smoke, data: {directroy: /x}}",
            "8:",
            "spec.workload.config.data.directroy: /x is not a field: did you mean directory? Choose one of ",
        ),
        ("batchPerGpu: 2", "batchPerGpu: 3", "10:", "spec.settings.batchPerGpu: 3 must be a multiple of 2"),
        (
            "{pairs: 2}",
            "{pars: 2}",
            "14:",
            "spec.phases[0].settings.workload.pars: 2 is not a field: did you mean pairs? Choose one of ",
        ),
        (
            "name: nrmse",
            "name: nmrse",
            "17:",
            "spec.gates.validationMetrics[0].name: \"nmrse\" is not a validation metric of workload ups: did you mean \
             nrmse? Choose one of ",
        ),
    ] {
        fs::write(scene.path().join("job.yaml"), BUILT_IN.replace(from, to)).unwrap();
        for command in [&["validate", "job.yaml"][..], &["run", "job.yaml"][..], &["run", "--dry-run", "job.yaml"][..]]
        {
            let output = scene.output(command);
            let error = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{command:?}: {error}");
            let lines: Vec<&str> = error.lines().collect();
            let [line] = lines[..] else { panic!("{command:?}: {error}") };
            assert!(line.starts_with(&format!("job.yaml:{place}")) && line.contains(expected), "{command:?}: {line}");
            assert_eq!(line.ends_with("; found by the trainer of this pawl"), command[0] == "validate", "{line}");
        }
    }
    assert!(!scene.path().join(".pawl").exists(), "something was started");
    // In another image there may be another trainer.
    let other = BUILT_IN.replace("name: ups", "name: mine").replace("{gpusPerReplica", "{image: own, gpusPerReplica");
    fs::write(scene.path().join("job.yaml"), other).unwrap();
    let output = scene.output(&["validate", "job.yaml"]);
    let text = stdout(&output);
    assert!(output.status.success() && text.contains("warning: spec.workload.name: \"mine\""), "{text}");
    fs::write(scene.path().join("job.yaml"), BUILT_IN).unwrap();
    let output = scene.output(&["validate", "job.yaml"]);
    assert!(output.status.success() && !stdout(&output).contains("warning: spec.w"), "{}", stdout(&output));
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
fn what_a_terminal_would_obey_and_what_cannot_be_true_is_not_shown() {
    let scene = Scene::new();
    let obeyed = |text: &str| text.chars().any(|c| c != '\n' && pawl_contract::report::unprintable(c));
    for name in ["a\u{202e}b", "a\u{2066}b", "a\u{200b}b", "a\u{1b}[31mb"] {
        scene.write_job(|job| job["metadata"]["name"] = json!(name));
        for command in ["validate", "run"] {
            let error = stderr(&scene.output(&[command, "job.yaml"]));
            assert!(error.contains("metadata.name: \"a") && !obeyed(&error), "{error:?}");
        }
    }
    // A script that reports a hostile straggler and name of a metric in its progress, then fails with a hostile
    // message.
    let script = r#"
import json, os, time
plan, hostile = json.load(open(os.environ["PAWL_PLAN"])), "x\u202e\u200by"
of = {"launch": plan["launch"], "kind": plan["kind"], "epoch": 0}
evaluated = {"items": 8, "metrics": {"loss": 0.5, hostile: 0.5}}
def put(name, content):
    with open(os.environ[name] + ".new", "w") as file: json.dump(content, file)
    os.replace(os.environ[name] + ".new", os.environ[name])
done = of | {"contract": 1, "rank": 0, "outcome": "Done", "steps": 1, "items": 8, "itemsPerSecond": 9.0, "validation": evaluated}
if plan["kind"] == "Train":
    put("PAWL_PROGRESS", of | {"step": 2**64 - 1, "items": 8, "etaSeconds": 1e300, "itemsPerSecond": 1e300})
    time.sleep(1)
    put("PAWL_PROGRESS", of | {"step": 1, "items": 8, "loss": 0.5, "straggler": hostile, "validation": evaluated})
    time.sleep(1)
    done |= {"outcome": "NonFinite", "message": hostile}
put("PAWL_REPORT", done)
"#;
    fs::write(scene.path().join("hostile.py"), script).unwrap();
    scene.write_job(|job| {
        job["spec"]["workload"] = json!({"command": ["python3", scene.path().join("hostile.py")]});
        job["spec"]["lifecycle"]["maxRestarts"] = json!(0);
        (job["spec"]["phases"], job["spec"]["train"]["items"]) = (json!([]), json!(800));
    });
    let output = scene.output(&["run", "job.yaml"]);
    let shown = stdout(&output) + &stderr(&output);
    assert!(shown.contains("x  y") && shown.contains("step 1,") && !obeyed(&shown), "{shown:?}");
    assert!(!shown.contains("e300") && !shown.contains("18446744073709551615"), "numbers that cannot be true: {shown}");
    for form in ["table", "json", "yaml"] {
        let output = stdout(&scene.output(&["status", "job.yaml", "--output", form]));
        assert!(!obeyed(&output), "{form}: {output:?}");
    }
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
