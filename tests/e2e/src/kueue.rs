//! Kueue as it is, on the test cluster: `tests/cluster/kueue` builds it.

use crate::machines::load;
use crate::programs::{kubectl, run, succeed};
use crate::scene::{SCENE, Scene};
use k8s_openapi::api::batch::v1::Job;
use kube::api::PostParams;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The namespaces whose Jobs Kueue looks at have this label (`tests/cluster/kueue/kustomization.yaml`).
const QUEUED: &str = "pawl-e2e/queued=true";
/// The queue of a scene, in its namespace.
const QUEUE: &str = "team";
const VERSION: &str = "kueue.x-k8s.io/v1beta2";
/// The controller that runs jobs in other clusters.
const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";

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
        let quota = |resource| json!({"name": resource, "nominalQuota": pods});
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": VERSION, "kind": "ResourceFlavor", "metadata": metadata,
             "spec": {"nodeLabels": {"kubernetes.io/os": "linux"}}},
            {"apiVersion": VERSION, "kind": "WorkloadPriorityClass", "metadata": metadata, "value": 1000},
            {"apiVersion": VERSION, "kind": "ClusterQueue", "metadata": metadata, "spec": {
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [{"coveredResources": ["nvidia.com/gpu", "pods"], "flavors": [
                    {"name": name, "resources": [quota("nvidia.com/gpu"), quota("pods")]},
                ]}],
            }},
            {"apiVersion": VERSION, "kind": "LocalQueue", "metadata": {"name": QUEUE}, "spec": {"clusterQueue": name}},
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

    /// Gives the queue a MultiKueue admission check, whose clusters do not exist, and waits until Kueue knows it.
    pub async fn run_elsewhere(&self, scene: &Scene) {
        let parameters = json!({"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": self.name});
        scene.apply(&json!({"apiVersion": VERSION, "kind": "AdmissionCheck", "metadata": {"name": self.name},
            "spec": {"controllerName": MULTIKUEUE, "parameters": parameters}}));
        self.patch(&json!({"admissionChecksStrategy": {"admissionChecks": [{"name": self.name}]}}));
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}});
        let probe = json!({"metadata": {"name": "probe", "labels": queued()}, "spec": {"template": template}});
        let probe: Job = serde_json::from_value(probe).unwrap();
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        let known = async || {
            let tried = scene.api::<Job>().create(&parameters, &probe).await.unwrap();
            (tried.spec.unwrap().managed_by.as_deref() == Some(MULTIKUEUE)).then_some(())
        };
        scene.until("Kueue to know the check", Duration::from_secs(30), known).await;
    }

    /// Takes the check of [`Self::run_elsewhere`] away again.
    pub fn run_here(&self) {
        self.patch(&json!({"admissionChecksStrategy": null}));
    }

    fn patch(&self, spec: &Value) {
        let patch = json!({ "spec": spec }).to_string();
        succeed(&mut kubectl(&["patch", "clusterqueue", &self.name, "--type=merge", "-p", &patch]));
    }

    /// `HoldAndDrain` takes the devices of all gangs back and admits none until it is `None` again.
    pub fn stop_policy(&self, policy: &str) {
        self.patch(&json!({"stopPolicy": policy}));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // After a failure workloads may still be in it.
        let _ = run(&mut kubectl(&[
            "delete",
            "clusterqueue,resourceflavor,workloadpriorityclass,admissioncheck",
            &self.name,
            "--wait=false",
            "--ignore-not-found",
        ]));
    }
}
