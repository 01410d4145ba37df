//! The GPUs of the cluster that `tests/device/cluster` starts: real ones, or pretended ones, whose jobs train on the
//! CPU.

use crate::programs::{built, succeed};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The image with the trainer: for CUDA where GPUs are real, for the CPU where they are pretended.
pub const TRAINER: &str = "localhost/pawl-trainer:test";

/// The GPUs of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Gpus {
    /// How many there are.
    pub count: u32,
    /// Whether they exist.
    pub real: bool,
}

impl Gpus {
    /// The GPUs of `PAWL_GPUS`: `2 real` or `4 pretended`.
    ///
    /// # Panics
    /// When the variable is not set: `tests/device/cluster` sets it.
    pub fn here() -> Self {
        let text = std::env::var("PAWL_GPUS").expect("PAWL_GPUS: run this through tests/device/cluster");
        let (count, kind) = text.split_once(' ').expect("PAWL_GPUS: a number and 'real' or 'pretended'");
        Self { count: count.parse().expect("PAWL_GPUS: a number"), real: kind == "real" }
    }

    /// Whether a test can run; says why not. `count`: the GPUs that it needs; `real`: whether it needs real ones.
    pub fn suffice(self, count: u32, real: bool) -> bool {
        let enough = self.count >= count && (self.real || !real);
        if !enough {
            let kind = if real { "real " } else { "" };
            eprintln!("SKIPPED: needs {count} {kind}GPUs, PAWL_GPUS is {self:?}");
        }
        enough
    }

    /// A job of the built-in trainer with `pods` pods of `each` GPUs, and with `change` made to it. Pretended GPUs are
    /// given to its pods, which train on the CPU, one process in each.
    pub fn job(self, name: &str, (pods, each): (u32, u32), change: impl FnOnce(&mut Value)) -> Value {
        let trainer = match self.real {
            true => json!({"replicas": pods, "gpusPerReplica": each}),
            false => json!({
                "replicas": pods, "gpusPerReplica": 0, "gpuResource": "pawl.dev/none",
                "podTemplate": {"resources": {"limits": {"nvidia.com/gpu": each}}},
            }),
        };
        let mut job = json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
            "spec": {"workload": {}, "trainer": trainer, "settings": {}, "seeds": [42], "train": {"items": 1}},
        });
        change(&mut job);
        job
    }

    /// The manifest as `pawl run` takes it: it gives no pretended GPUs.
    pub fn local(self, job: &Value) -> Value {
        let mut local = job.clone();
        if !self.real
            && let Some(trainer) = local["spec"]["trainer"].as_object_mut()
        {
            trainer.remove("podTemplate");
            trainer.remove("gpuResource");
        }
        local
    }
}

/// The status that `pawl run` gives a job on this machine, outside of the cluster.
///
/// # Panics
/// When it fails.
pub fn outside(directory: &Path, name: &str, job: &Value) -> Value {
    let (manifest, state) = (directory.join(format!("{name}.json")), directory.join(name));
    std::fs::write(&manifest, job.to_string()).unwrap();
    let mut command = Command::new(built("pawl"));
    command.args(["run", "--output", "json", "--quiet", "--state"]).arg(state).arg(manifest);
    let document: Value = serde_json::from_str(&succeed(&mut command)).unwrap();
    document["status"].clone()
}

/// The UUIDs of the machine's GPUs, in the order of `nvidia-smi -L`.
pub fn uuids() -> Vec<String> {
    let listed = succeed(Command::new("nvidia-smi").arg("-L"));
    let uuid = |line: &str| Some(line.split_once("UUID: ")?.1.split_once(')')?.0.to_owned());
    listed.lines().filter_map(uuid).collect()
}

/// Kernels that do nothing on a GPU, until this is dropped: whatever else runs there is slow.
pub struct Load(Child);

impl Load {
    /// Starts them on the GPU with this UUID.
    pub fn on(uuid: &str) -> Self {
        let mut command = Command::new(built("pawl-kernels"));
        Self(command.args(["idle", "--seconds", "600"]).env("CUDA_VISIBLE_DEVICES", uuid).spawn().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The step that a running pod's trainer reports; `None` before there is one.
pub async fn step(pod: &Pod) -> Option<u64> {
    let address = pod.status.as_ref()?.pod_ip.as_ref()?;
    let progress = crate::operator::get(&format!("http://{address}:9470/progress")).await?;
    let progress: Value = serde_json::from_str(&progress).ok()?;
    progress["step"].as_u64()
}

/// Seconds since `start`, for messages.
pub fn seconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}

/// How long a job of these tests may take.
pub const LONGEST: Duration = Duration::from_secs(300);
