//! The machines of the cluster, and what befalls them: the scripts of `tests/cluster`.

use crate::programs::{kubectl, repository, run, succeed};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

fn script(name: &str, arguments: &[&str]) {
    succeed(Command::new(repository().join("tests/cluster").join(name)).args(arguments));
}

/// Loads an image into every node.
pub fn load(name: &str, archive: &Path) {
    script("load", &[name, archive.to_str().expect("paths here are text")]);
}

/// Kills the kubelet of a node, which is started again.
pub fn kill_kubelet(node: &str) {
    let number = node.strip_prefix("node-").expect("nodes are named node-N");
    script("node", &["kill-kubelet", number]);
}

/// What keeps pods of other tests, also of those with a node of their own, from a node of a test's own: its value is
/// the name of the node.
const TAINT: &str = "pawl-e2e/own";

/// A node of a test's own, whose power can be cut. When this is dropped nothing of it is left.
pub struct Node(u32);

impl Node {
    /// Starts node `number` with that many fake devices.
    pub fn start(number: u32, gpus: u32) -> Self {
        let node = Self(number);
        script("node", &["start", &number.to_string(), "--gpus", &gpus.to_string()]);
        node
    }

    /// Starts node `number` for pods of [`Self::pod_template`] alone. It takes a moment until it is ready.
    pub fn own(number: u32, gpus: u32) -> Self {
        let node = Self(number);
        let taint = format!("{TAINT}={}:NoSchedule", node.name());
        script("node", &["start", &number.to_string(), "--gpus", &gpus.to_string(), "--taint", &taint]);
        node
    }

    /// `spec.trainer.podTemplate` of a job that runs on this node as long as it is there, otherwise elsewhere.
    pub fn pod_template(&self) -> Value {
        let term = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [self.name()]});
        let preferred = json!([{"weight": 100, "preference": {"matchExpressions": [term]}}]);
        json!({
            "tolerations": [{"key": TAINT, "operator": "Equal", "value": self.name(), "effect": "NoSchedule"}],
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
        })
    }

    /// Its name in the cluster.
    pub fn name(&self) -> String {
        format!("node-{}", self.0)
    }

    /// Its kubelet and its containers die at once.
    pub fn cut(&self) {
        self.script("cut");
    }

    /// Starts it again after [`Self::cut`], without devices.
    pub fn power_on(&self) {
        script("node", &["start", &self.0.to_string(), "--gpus", "0"]);
    }

    /// Disconnects its network.
    pub fn unplug(&self) {
        self.script("unplug");
    }

    /// Reconnects its network.
    pub fn plug(&self) {
        self.script("plug");
    }

    /// Stops what runs the containers of a pod: no signal reaches them any more, so that the pod cannot end.
    pub fn stop_runtime(&self, pod_uid: &str) {
        script("node", &["stop-runtime", &self.0.to_string(), pod_uid]);
    }

    /// Continues it.
    pub fn continue_runtime(&self, pod_uid: &str) {
        script("node", &["continue-runtime", &self.0.to_string(), pod_uid]);
    }

    fn script(&self, action: &str) {
        script("node", &[action, &self.0.to_string()]);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.cut();
        // A test that failed may have cut off the API server, too.
        let _ = run(&mut kubectl(&["delete", "node", &self.name(), "--ignore-not-found"]));
    }
}

/// The control plane without its API server, for as long as this lives.
pub struct Outage(());

impl Outage {
    /// What is down. Controllers and scheduler end when they cannot renew their leases, and come back with the API
    /// server: otherwise theirs would be the first word after the minute, that every node had been silent for as long.
    const COMPONENTS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

    /// Kills them.
    pub fn begin() -> Self {
        Self::all("stop");
        Self(())
    }

    /// Starts them again and waits until the API server is ready.
    pub fn end(self) {}

    fn all(action: &str) {
        script("control-plane", &[&[action], &Self::COMPONENTS[..]].concat());
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        Self::all("start");
    }
}
