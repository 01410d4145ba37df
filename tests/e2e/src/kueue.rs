//! Kueue as it is, on the test cluster: `tests/cluster/kueue` builds it.

use crate::machines::load;
use crate::programs::{kubectl, run, succeed};
use crate::scene::{SCENE, Scene};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The namespaces whose Jobs Kueue looks at have this label (`tests/cluster/kueue/kustomization.yaml`).
const QUEUED: &str = "pawl-e2e/queued=true";
/// The queue of a scene, in its namespace.
const QUEUE: &str = "team";

/// The labels of a job in the queue of its scene.
pub fn queued() -> Value {
    json!({"kueue.x-k8s.io/queue-name": QUEUE})
}

/// The queue of a scene, with quota for a number of pods of one GPU each, in which jobs of the priority class
/// [`Queue::urgent`] take the place of others. Both are gone when this is dropped.
pub struct Queue {
    name: String,
}

/// Installs Kueue once; it stays until the cluster ends.
fn install() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let built = std::env::var_os("PAWL_KUEUE").map(PathBuf::from).expect("PAWL_KUEUE: run this through tests/run");
        load("localhost/kueue:test", &built.join("image.tar"));
        succeed(kubectl(&["apply", "--server-side", "--force-conflicts", "-f"]).arg(built.join("manifests.yaml")));
        let deployment = ["rollout", "status", "deployment/kueue-controller-manager", "--timeout=60s"];
        succeed(kubectl(&["--namespace", "kueue-system"]).args(deployment));
    });
}

impl Queue {
    /// Installs Kueue if need be, and makes the queue.
    pub async fn of(scene: &Scene, pods: u32) -> Self {
        install();
        succeed(&mut kubectl(&["label", "namespace", &scene.namespace, QUEUED]));
        let name = scene.namespace.clone();
        let metadata = json!({"name": name, "labels": {SCENE: scene.namespace}});
        let version = "kueue.x-k8s.io/v1beta2";
        let quota = |resource| json!({"name": resource, "nominalQuota": pods});
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": version, "kind": "ResourceFlavor", "metadata": metadata,
             "spec": {"nodeLabels": {"kubernetes.io/os": "linux"}}},
            {"apiVersion": version, "kind": "WorkloadPriorityClass", "metadata": metadata, "value": 1000},
            {"apiVersion": version, "kind": "ClusterQueue", "metadata": metadata, "spec": {
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [{"coveredResources": ["nvidia.com/gpu", "pods"], "flavors": [
                    {"name": name, "resources": [quota("nvidia.com/gpu"), quota("pods")]},
                ]}],
            }},
            {"apiVersion": version, "kind": "LocalQueue", "metadata": {"name": QUEUE}, "spec": {"clusterQueue": name}},
        ]});
        // The API server hears of its webhooks a moment after they are ready.
        let made = async || scene.try_apply(&objects.to_string()).ok();
        scene.until("Kueue to take the queue", Duration::from_secs(30), made).await;
        Self { name }
    }

    /// The labels of a job in the queue that goes before those with [`queued`].
    pub fn urgent(&self) -> Value {
        json!({"kueue.x-k8s.io/queue-name": QUEUE, "kueue.x-k8s.io/priority-class": self.name})
    }

    /// `HoldAndDrain` takes the devices of all gangs back and admits none until it is `None` again.
    pub fn stop_policy(&self, policy: &str) {
        let patch = json!({"spec": {"stopPolicy": policy}}).to_string();
        succeed(&mut kubectl(&["patch", "clusterqueue", &self.name, "--type=merge", "-p", &patch]));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // After a failure workloads may still be in it.
        let _ = run(&mut kubectl(&[
            "delete",
            "clusterqueue,resourceflavor,workloadpriorityclass",
            &self.name,
            "--wait=false",
        ]));
    }
}
