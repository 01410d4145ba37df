//! The jobs: what each slot runs again and again.

use pawl_e2e::job::{toy, training};
use pawl_e2e::programs::repository;
use serde_json::{Value, json};
use std::time::Duration;

/// Claim of a storage that no fault hits.
pub const STEADY: &str = "steady";
/// Claim of the storage that becomes full or blocks its writers.
pub const FRAGILE: &str = "fragile";
/// Label of the nodes on which the jobs run.
pub const NODES: &str = "pawl-e2e/soak";
/// Name of the job that trains from the beginning to the end, on a node of its own.
pub const LONG: &str = "long";
/// Directory of the scripts and of the package in their image.
const APP: &str = "/app";
/// The interpreter in that image.
const PYTHON: &str = "/bin/python3";

/// A job.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// Its name.
    pub name: &'static str,
    /// The manifest without storage and nodes.
    manifest: Value,
    /// Claim of its checkpoints.
    pub claim: &'static str,
    /// Longest time between two checkpoints by the trainer's clock, in seconds; that of writing one included.
    pub every: f64,
    /// Whether all its measurements are a function of the manifest, or only its verdicts and its model.
    pub scripted: bool,
}

impl Blueprint {
    fn new(name: &'static str, claim: &'static str, every: u32, scripted: bool, mut manifest: Value) -> Self {
        manifest["metadata"]["name"] = name.into();
        manifest["spec"]["train"]["checkpoint"] = json!({"every": format!("{every}s"), "keep": 2});
        // The built-in trainer goes on while it writes, which takes seconds where ten jobs share two processors.
        let every = f64::from(every) + if scripted { 0.0 } else { 3.0 };
        Self { name, manifest, claim, every, scripted }
    }

    /// The manifest for `pawl run`: scripts are those of the repository, not of the image.
    pub fn local(&self) -> Value {
        let (scripts, package) =
            ["tests/soak/scripts/", "trainer-image/python/src"].map(|path| repository().join(path)).into();
        let text = self.manifest.to_string();
        let text = text.replace(&format!("{APP}/"), &scripts.to_string_lossy());
        let text = text.replace(&format!("\"{APP}\""), &Value::from(package.to_string_lossy()).to_string());
        text.replace(PYTHON, "python3").parse().expect("a manifest is JSON")
    }

    /// Whether `pawl run` trains the same command: scripts have another path there, and so another identity.
    pub fn has_same_command(&self) -> bool {
        self.local() == self.manifest
    }

    /// The manifest for the cluster.
    pub fn manifest(&self, namespace: &str) -> Value {
        let mut manifest = self.manifest.clone();
        manifest["spec"]["train"]["checkpoint"]["storage"] = format!("pvc://{}/run", self.claim).into();
        let group = if self.name == LONG { LONG } else { "jobs" };
        manifest["spec"]["trainer"]["podTemplate"]["nodeSelector"] = json!({NODES: node_label(namespace, group)});
        manifest
    }
}

/// The value of the label [`NODES`] of the nodes of a group.
pub fn node_label(namespace: &str, group: &str) -> String {
    format!("{namespace}-{group}")
}

/// The job that trains as long as the soak lasts.
pub fn long(time: Duration) -> Blueprint {
    let seconds = time.as_secs() as u32;
    let job = training(LONG, seconds, |job| {
        // 5 steps a second would be a job of 10 pods; one is enough for its agent to live long.
        job["spec"]["workload"]["config"]["stepSeconds"] = 0.5.into();
        job["spec"]["train"]["items"] = (seconds * 2 * 64).into();
    });
    Blueprint::new(LONG, STEADY, 10, true, job)
}

fn pair(job: &mut Value) {
    job["spec"]["trainer"]["replicas"] = 2.into();
    // As many items in a step of two ranks.
    job["spec"]["settings"]["accumulationSteps"] = 4.into();
}

/// A ladder of three phases, with launches that last long enough to be hit.
fn ladder(change: impl FnOnce(&mut Value)) -> Value {
    toy(|job| {
        job["spec"]["workload"]["config"]["stepSeconds"] = 0.02.into();
        job["spec"]["train"]["items"] = 160_000.into();
        change(job);
    })
}

/// A phase of a gang is judged by its quality as well.
fn quality(job: &mut Value) {
    job["spec"]["phases"][2]["numerics"] = "Changed".into();
    job["spec"]["analysis"]["qualityItems"] = 6400.into();
    job["spec"]["gates"] = json!({"validationLossDelta": "0.05"});
}

/// Its accepted phase makes the training diverge: the guard reverts it and resumes.
fn diverging(job: &mut Value) {
    job["spec"]["phases"].as_array_mut().expect("a list").truncate(1);
    job["spec"]["workload"]["config"]["stepSeconds"] = 0.05.into();
    job["spec"]["train"]["items"] = 64_000.into();
    job["spec"]["workload"]["config"]["faults"] = json!([
        {"fault": "NonFinite", "atStep": 200, "kinds": ["Train"], "settings": [{"setting": "compile", "value": "Graph"}]},
    ]);
}

/// A small model of the built-in trainer, on the CPU.
fn ups(change: impl FnOnce(&mut Value)) -> Value {
    let mut job = json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {},
        "spec": {
            "workload": {"name": "ups", "config": {"preset": "small", "tasks": ["advection1d"]}},
            "trainer": {"gpusPerReplica": 0},
            "settings": {"batchPerGpu": 2, "learningRate": "1.4e-3", "compile": "Graph"},
            "seeds": [42],
            "train": {"items": 400, "evalEvery": 100},
            "lifecycle": {"hangTimeout": "2m"},
        },
    });
    change(&mut job);
    job
}

/// A script that only trains, for 100 seconds, and saves every second. `arguments` follow its name.
fn script(file: &str, arguments: &[&str], change: impl FnOnce(&mut Value)) -> Value {
    let program = format!("{APP}/{file}");
    let command: Vec<&str> = [PYTHON, &program].into_iter().chain(arguments.iter().copied()).collect();
    let mut job = json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {},
        "spec": {
            "workload": {"command": command},
            "trainer": {
                "image": "localhost/python-trainer:test", "gpusPerReplica": 0,
                "podTemplate": {"env": [{"name": "PYTHONPATH", "value": APP}]},
            },
            "settings": {"batchPerGpu": 8, "learningRate": "0.05"},
            "seeds": [42],
            "train": {"items": 8000},
            "lifecycle": {"hangTimeout": "60s"},
        },
    });
    change(&mut job);
    job
}

/// A script that knows nothing of Pawl, which is followed in its output.
fn plain(job: &mut Value) {
    job["spec"]["workload"]["monitor"] = json!({
        "training": r"^step (?<step>\d+): loss (?<loss>\S+)",
        "validation": r"^step (?<step>\d+): validation loss (?<loss>\S+)",
    });
}

/// Arguments of that script.
const PLAIN: [&str; 9] = [
    "--steps",
    "$(launch.steps)",
    "--batch",
    "$(settings.batchPerGpu)",
    "--rate",
    "$(settings.learningRate)",
    "--output",
    "$(checkpoint.dir)",
    "--resume=$(checkpoint.latest:-)",
];

/// The jobs of the ten slots: five of the scripted trainer as a foreign image, three of the built-in trainer, a script
/// that knows nothing of Pawl, and one with the package.
pub fn all() -> Vec<Blueprint> {
    let scripted = |name, claim, job| Blueprint::new(name, claim, 1, true, job);
    let real = |name, claim, job| Blueprint::new(name, claim, 2, false, job);
    vec![
        real("script", STEADY, script("plain.py", &PLAIN, plain)),
        real("package", FRAGILE, script("packaged.py", &[], |_| {})),
        scripted("train-fragile", FRAGILE, training("train-fragile", 100, |_| {})),
        scripted("pair-fragile", FRAGILE, training("pair-fragile", 90, pair)),
        scripted("ladder", STEADY, ladder(|_| {})),
        scripted(
            "ladder-pair",
            FRAGILE,
            ladder(|job| {
                job["spec"]["trainer"]["replicas"] = 2.into();
                quality(job);
            }),
        ),
        scripted("diverging", STEADY, toy(diverging)),
        real("ups", STEADY, ups(|_| {})),
        real(
            "ups-pair",
            FRAGILE,
            ups(|job| {
                job["spec"]["trainer"]["replicas"] = 2.into();
                job["spec"]["settings"] =
                    json!({"batchPerGpu": 1, "globalBatch": 4, "learningRate": "1.4e-3", "compile": "Graph"});
            }),
        ),
        real(
            "ups-compile",
            STEADY,
            ups(|job| {
                job["spec"]["settings"]["compile"] = "None".into();
                // Four times as fast on a CPU, but a rank that is stopped while it is measured makes its launch ten
                // times slower.
                job["spec"]["phases"] =
                    json!([{"name": "graph", "minSpeedup": "0.1", "settings": {"compile": "Graph"}}]);
                job["spec"]["analysis"] = json!({"warmupSteps": 2, "windowSteps": 8, "budgetPercent": "Unlimited"});
                job["spec"]["train"]["guard"] = json!({"throughputTolerance": "0.9"});
                job["spec"]["train"]["items"] = 200.into();
            }),
        ),
    ]
}
