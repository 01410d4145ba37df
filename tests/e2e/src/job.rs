//! Jobs that train nothing: the scripted trainer plays what the manifest says, in a foreign image.

use crate::scene::{SCENE, Scene};
use pawl_api::TrainingJob;
use pawl_api::status::{PhaseState, TrainingJobStatus};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The job `toy` with `change` made to it: `graph` is faster, `slow` is slower, `batch` needs its fallback.
pub fn toy(change: impl FnOnce(&mut Value)) -> Value {
    let mut job = json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
        "spec": {
            "workload": {"command": ["scripted-trainer"], "config": {
                "itemsPerSecond": 1000, "noise": 0.004, "seed": 7, "stepSeconds": 0.001, "itemsPerEpoch": 2000,
                "effects": [{"setting": "compile", "value": "Graph", "factor": 1.5},
                            {"setting": "activationCheckpointing", "value": "Full", "factor": 0.8},
                            {"setting": "batchPerGpu", "value": 16, "factor": 1.2}],
                "memory": {"baseBytes": 1000, "bytesPerItem": 100, "limitBytes": 5000, "effects": []},
            }},
            "trainer": {"image": "localhost/foreign-trainer:test", "gpusPerReplica": 0},
            "settings": {"batchPerGpu": 8, "accumulationSteps": 8},
            "seeds": [42, 43, 44],
            "phases": [
                {"name": "graph", "settings": {"compile": "Graph"}},
                {"name": "slow", "settings": {"activationCheckpointing": "Full"}},
                {"name": "batch", "settings": {"batchPerGpu": 64, "accumulationSteps": 1},
                 "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 16, "accumulationSteps": 4}}]},
            ],
            // The whole ladder is judged, though it takes longer than a tenth of the training.
            "analysis": {"warmupSteps": 5, "windowSteps": 20, "budgetPercent": "Unlimited"},
            "train": {"items": 64000, "checkpoint": {"every": "1s", "keep": 2}},
            "lifecycle": {"hangTimeout": "60s"},
        },
    });
    change(&mut job);
    job
}

/// A job that only trains, for about `seconds` of real time, and checkpoints often.
pub fn training(name: &str, seconds: u32, change: impl FnOnce(&mut Value)) -> Value {
    toy(|job| {
        job["metadata"]["name"] = name.into();
        job["spec"]["phases"] = json!([]);
        // Nothing is judged, and the definition of the previous version lacks the field.
        job["spec"]["analysis"].as_object_mut().expect("a map").remove("budgetPercent");
        // 64 items a step at 100 ms each; the script's clock says 64 ms.
        job["spec"]["workload"]["config"]["stepSeconds"] = 0.1.into();
        job["spec"]["train"]["items"] = (seconds * 640).into();
        change(job);
    })
}

/// The words of the verdicts: name, state, reason and fallback of each phase.
pub fn verdicts(status: &TrainingJobStatus) -> Vec<(String, PhaseState, String, u32)> {
    let phases = status.phases.iter();
    phases.map(|phase| (phase.name.clone(), phase.state, phase.reason.clone(), phase.fallback)).collect()
}

/// The status of a job that has one.
///
/// # Panics
/// When it has none.
pub fn status(job: &TrainingJob) -> &TrainingJobStatus {
    job.status.as_ref().expect("the job has a status")
}

impl Scene {
    /// A claim `name` whose volume every node reaches, and the directory behind it.
    pub fn claim(&self, name: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let state = std::env::var_os("PAWL_CLUSTER_STATE").expect("run this through tests/cluster/with");
        let directory = PathBuf::from(state).join("volumes").join(&self.namespace).join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        let volume = format!("{}-{name}", self.namespace);
        self.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume, "labels": {SCENE: self.namespace}},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
                "hostPath": {"path": directory}, "claimRef": {"namespace": self.namespace, "name": name},
            },
        }));
        self.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }));
        directory
    }
}

/// All files in a directory and its subdirectories, but for what Pawl keeps beside checkpoints; none when it does not
/// exist.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let entries = entries.filter(|entry| entry.file_name() != ".pawl");
    entries.flat_map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { vec![entry.path()] }).collect()
}
