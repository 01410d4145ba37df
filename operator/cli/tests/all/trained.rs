//! Edits of a job that was finished: the old model is never presented as the new one.

use crate::scene::{Scene, stderr, stdout};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// A script that knows nothing of Pawl: it resumes from the newest checkpoint and writes one at its end.
const SCRIPT: &str = r#"
step=0; model=new
if [ -n "$5" ]; then step=${5##*-}; model=`cat "$5/model"`; fi
echo "resumed $step"
while [ "$step" -lt "$1" ]; do
  step=$((step + 1)); echo "step $step loss 0.5"
  sleep 0.02
done
mkdir -p "$4/checkpoint-$step"; echo "$model, $2 $3 to $step" > "$4/checkpoint-$step/model"
"#;

/// What edits change.
struct Job {
    rate: &'static str,
    seed: u32,
    argument: &'static str,
    items: u32,
    change: fn(&mut Value),
}

const JOB: Job = Job { rate: "0.05", seed: 42, argument: "a", items: 400, change: |_| {} };

/// The job with the scripted trainer, or with the script.
fn write(scene: &Scene, script: bool, job: &Job) {
    scene.write_job(|whole| {
        let spec = &mut whole["spec"];
        spec["phases"] = json!([]);
        spec["settings"]["learningRate"] = json!(job.rate);
        spec["seeds"] = json!([job.seed]);
        spec["train"] = json!({"items": job.items * 64, "checkpoint": {"every": "1s", "keep": 2}});
        if script {
            let path = scene.path().join("train.sh");
            let words = [
                "$(launch.steps)",
                "$(settings.learningRate)",
                job.argument,
                "$(checkpoint.dir)",
                "$(checkpoint.latest:-)",
                "$(settings.batchPerGpu)",
            ];
            let command: Vec<&str> = ["sh", path.to_str().unwrap()].into_iter().chain(words).collect();
            spec["workload"] =
                json!({"command": command, "monitor": {"training": "step (?<step>[0-9]+) loss (?<loss>[0-9.]+)"}});
            spec["settings"] = json!({"batchPerGpu": 64, "learningRate": job.rate});
        } else {
            spec["workload"]["args"] = json!([job.argument]);
        }
        (job.change)(spec);
    });
}

fn run(scene: &Scene) -> (Value, String) {
    let output = scene.output(&["run", "job.yaml"]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    (scene.status()["training"].clone(), stdout(&output))
}

fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_edited_job_trains_its_own_model_beside_the_old_one() {
    let phase: fn(&mut Value) = |spec| {
        spec["phases"] =
            json!([{"name": "fast", "numerics": "Changed", "pin": "Accepted", "settings": {"learningRate": "0.2"}}]);
        spec["gates"] = json!({"validationLossDelta": "0.3"});
    };
    let config: fn(&mut Value) = |spec| spec["workload"]["config"]["noise"] = json!(0.003);
    for (what, script, edited) in [
        ("learning rate", false, Job { rate: "0.9", ..JOB }),
        ("config", false, Job { change: config, ..JOB }),
        ("arguments", false, Job { argument: "b", ..JOB }),
        ("seed", false, Job { seed: 43, ..JOB }),
        ("phase", false, Job { change: phase, ..JOB }),
        ("learning rate", true, Job { rate: "0.9", ..JOB }),
        ("arguments", true, Job { argument: "b", ..JOB }),
    ] {
        let scene = Scene::new();
        fs::write(scene.path().join("train.sh"), SCRIPT).unwrap();
        write(&scene, script, &JOB);
        let (first, _) = run(&scene);
        let root = scene.state().join("checkpoints");
        let before = entries(&root);
        let (again, text) = run(&scene);
        assert_eq!(again, first, "{what}: the same job has nothing to do");
        assert!(text.contains("already trained: nothing to do"), "{what}: {text}");

        write(&scene, script, &edited);
        let (second, text) = run(&scene);
        let directory = second["directory"].as_str().unwrap_or_else(|| panic!("{what}: {second:#}"));
        assert_eq!(second["items"], first["items"], "{what}: {second:#}");
        let kept: Vec<String> = entries(&root).into_iter().filter(|name| name != directory).collect();
        assert_eq!(kept, before, "{what}: the old model is kept");
        assert!(!entries(&root.join(directory)).is_empty(), "{what}");
        assert!(text.contains("an earlier model of 25.6k items is in the storage itself"), "{what}: {text}");
        assert!(text.contains("TrainingRestarted"), "{what}: {text}");
        if script {
            let model = fs::read_to_string(root.join(directory).join("checkpoint-400/model")).unwrap();
            assert_eq!(model.trim(), format!("new, {} {} to 400", edited.rate, edited.argument));
        }
        // Taken back, it is the first model again.
        write(&scene, script, &JOB);
        let (third, _) = run(&scene);
        assert_eq!(third["directory"], Value::Null, "{what}");
        assert_eq!(third["segments"], first["segments"], "{what}");
    }
}

#[test]
fn more_items_with_other_settings_continue_when_asked_and_the_summary_tells_the_parts() {
    let scene = Scene::new();
    fs::write(scene.path().join("train.sh"), SCRIPT).unwrap();
    let ask: fn(&mut Value) = |spec| spec["train"]["onChange"] = json!("Continue");
    write(&scene, true, &Job { change: ask, ..JOB });
    run(&scene);
    write(&scene, true, &Job { rate: "0.9", change: ask, ..JOB });
    let (_, text) = run(&scene);
    assert!(text.contains("already trained: nothing to do"), "{text}");
    assert!(text.contains("items 0 to 25.6k with learningRate: 0.05"), "{text}");
    write(&scene, true, &Job { rate: "0.9", items: 500, change: ask, ..JOB });
    let (training, text) = run(&scene);
    assert_eq!(training["directory"], Value::Null);
    assert!(text.contains("items 0 to 25.6k with learningRate: 0.05"), "{text}");
    assert!(text.contains("items 25.6k to 32k with learningRate: 0.9"), "{text}");
    let model = fs::read_to_string(scene.state().join("checkpoints/checkpoint-500/model")).unwrap();
    assert_eq!(model.trim(), "new, 0.05 a to 400, 0.9 a to 500");
}

#[test]
fn a_script_that_was_edited_in_its_place_is_another_script() {
    let scene = Scene::new();
    fs::write(scene.path().join("train.sh"), SCRIPT).unwrap();
    write(&scene, true, &JOB);
    run(&scene);
    fs::write(scene.path().join("train.sh"), SCRIPT.replace("model=new", "model=edited")).unwrap();
    let (training, text) = run(&scene);
    assert!(text.contains("the script has changed"), "{text}");
    let directory = scene.state().join("checkpoints").join(training["directory"].as_str().unwrap());
    let model = fs::read_to_string(directory.join("checkpoint-400/model")).unwrap();
    assert_eq!(model.trim(), "edited, 0.05 a to 400");
}
