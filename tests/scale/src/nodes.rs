//! Fake nodes, and KWOK, which plays their kubelets.

use futures::{StreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use pawl_e2e::programs::repository;
use serde_json::json;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Fake nodes.
const NODES: usize = 100;
/// Pods that a node takes, the kubelet's default, and its fake GPUs.
const PODS: usize = 110;

/// Makes the nodes.
pub async fn make(client: &Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    let made = (0..NODES).map(|number| {
        let name = format!("fake-{number}");
        let room =
            json!({"cpu": "1000", "memory": "1Ti", "pods": PODS.to_string(), "nvidia.com/gpu": PODS.to_string()});
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"phase": "Running", "capacity": room, "allocatable": room,
                       "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
                                       "lastHeartbeatTime": jiff::Timestamp::now().strftime("%FT%TZ").to_string(),
                                       "lastTransitionTime": jiff::Timestamp::now().strftime("%FT%TZ").to_string()}]},
        }))
        .unwrap();
        let nodes = nodes.clone();
        async move { nodes.create(&PostParams::default(), &node).await.map(|_| ()) }
    });
    for made in stream::iter(made).buffer_unordered(16).collect::<Vec<_>>().await {
        made.expect("a node");
    }
}

/// Lets another KWOK take the nodes over at once: leases of one that was killed would hold it off until they expire.
pub async fn hand_over(client: &Client) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    leases.delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("leases can be deleted");
}

/// KWOK at work; it is killed when this is dropped.
pub struct Kwok {
    child: Child,
}

impl Kwok {
    /// Starts KWOK with these files of stages. Its log goes into `directory`.
    pub fn start(directory: &Path, stages: &[&str]) -> Self {
        let log = File::options().create(true).append(true).open(directory.join("kwok.log")).unwrap();
        let mut command =
            Command::new(std::env::var_os("PAWL_KWOK").expect("PAWL_KWOK: run this through tests/scale/run"));
        for file in ["kwok.yaml"].iter().chain(stages) {
            command.arg("--config").arg(stage_file(file));
        }
        let child = command
            .args(["--manage-all-nodes", "--node-lease-duration-seconds=200", "--cidr=10.0.0.1/8"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("KWOK");
        Self { child }
    }
}

impl Drop for Kwok {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stage_file(name: &str) -> PathBuf {
    repository().join("tests/scale/kwok").join(name)
}
