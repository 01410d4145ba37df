//! A training that loses its pod, its operator and its kubelet ends as if nothing had happened.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, ListParams};
use kube::{Api, ResourceExt};
use pawl_api::TrainingJob;
use pawl_e2e::gpus::{Gpus, LONGEST, TRAINER, outside};
use pawl_e2e::job::status;
use pawl_e2e::machines::{kill_kubelet, load};
use pawl_e2e::{Scene, scene};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// A deterministic training with many checkpoints, on a claim with the name of the job.
pub(crate) fn training(gpus: Gpus, name: &str) -> Value {
    let items = if gpus.real { 460_800 } else { 16_384 };
    gpus.job(name, (1, 1), |job| {
        job["spec"]["workload"] = json!({"name": "vision-bdh", "config": {"preset": if gpus.real { "medium" } else { "smoke" }}});
        job["spec"]["settings"] = json!({
            "batchPerGpu": if gpus.real { 128 } else { 16 }, "accumulationSteps": 2, "evalBatch": 256, "learningRate": "2e-5",
            "precision": if gpus.real { "bf16" } else { "fp32" }, "compile": "Graph", "optimizerKernel": "Fused", "ropeCache": "Cached",
            "parameterLayout": "Linear", "memoryFormat": "ChannelsLast", "loaderWorkers": 2, "deterministic": true,
        });
        let checkpoint = json!({"every": "1s", "keep": 2, "storage": format!("pvc://{name}/run")});
        job["spec"]["train"] = json!({"items": items, "evalEvery": items / 4, "checkpoint": checkpoint});
    })
}

/// How long a training may take to run again.
const AGAIN: Duration = Duration::from_secs(60);

/// What happens to a training.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Its pod is deleted.
    Delete,
    /// The operator's pod is killed.
    Operator,
    /// The kubelet of its node dies, and is started again.
    Kubelet,
    /// Its pod is evicted, as when a node is drained.
    Evict,
}

impl Fault {
    async fn strike(self, scene: &Scene, pod: &Pod) {
        let name = pod.name_any();
        match self {
            Self::Delete => drop(scene.api::<Pod>().delete(&name, &DeleteParams::default()).await.unwrap()),
            Self::Evict => drop(scene.api::<Pod>().evict(&name, &EvictParams::default()).await.unwrap()),
            Self::Kubelet => kill_kubelet(pod.spec.as_ref().unwrap().node_name.as_deref().unwrap()),
            Self::Operator => {
                let pods: Api<Pod> = Api::namespaced(scene.client.clone(), "pawl-system");
                let own = ListParams::default().labels("app.kubernetes.io/name=pawl-operator");
                for pod in pods.list(&own).await.unwrap().items {
                    pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
                }
            }
        }
    }

    /// Whether the training starts again, from its checkpoint.
    fn ends_pods(self) -> bool {
        matches!(self, Self::Delete | Self::Evict)
    }
}

/// The pod that runs and has not been told to end.
fn running(pods: &[Pod]) -> Option<Pod> {
    let runs = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    pods.iter().find(|pod| runs(pod) && pod.metadata.deletion_timestamp.is_none()).cloned()
}

/// Items of the newest checkpoint that the job's status names.
pub(crate) fn checkpointed(job: &TrainingJob) -> u64 {
    let training = job.status.as_ref().and_then(|status| status.training.as_ref());
    training.and_then(|training| training.last_checkpoint.as_ref()).map_or(0, |checkpoint| checkpoint.items)
}

#[test]
fn a_training_that_loses_pod_operator_and_kubelet_ends_with_the_same_model() {
    scene(async |scene| {
        let gpus = Gpus::here();
        let job = training(gpus, "long");
        scene.claim("long");
        scene.apply(&job);
        let (mut before, mut restarts) = (0, 0);
        // The operator last: another one waits for its lease, and the training may end meanwhile.
        for fault in [Fault::Delete, Fault::Kubelet, Fault::Evict, Fault::Operator] {
            let newer = |job: &TrainingJob| checkpointed(job) > before;
            let job = scene.healthy_until("long", &format!("to checkpoint before {fault:?}"), LONGEST, newer).await;
            before = checkpointed(&job);
            // The checkpoint may be the last one of a pod that ends.
            let pod = scene.until("a pod that runs", AGAIN, async || running(&scene.pods("long").await)).await;
            eprintln!("{fault:?} after a checkpoint at {before} items");
            fault.strike(scene, &pod).await;
            restarts += u32::from(fault.ends_pods());
        }
        let done = scene.complete("long", LONGEST).await;
        let training = status(&done).training.as_ref().unwrap();
        assert_eq!(training.restarts, restarts, "{training:?}");

        let there = scene.status("long").await["training"].clone();
        let mut local = gpus.local(&job);
        local["spec"]["train"]["checkpoint"].as_object_mut().unwrap().remove("storage");
        let here = outside(scene.directory.path(), "outside", &local)["training"].clone();
        assert_eq!((&there["steps"], &there["items"]), (&here["steps"], &here["items"]));
        assert_eq!(there["validation"], here["validation"], "nothing is lost and nothing is repeated");
    });
}

#[test]
fn a_job_whose_image_is_missing_waits_for_it() {
    scene(async |scene| {
        let gpus = Gpus::here();
        let late = "localhost/late:test";
        let job = gpus.job("late", (1, 1), |job| {
            job["spec"]["workload"] = json!({"name": "slm", "config": {"size": "tiny", "data": {"tokens": 100_000},
                                             "evaluation": {"windows": 8}}});
            job["spec"]["settings"] = json!({"batchPerGpu": 4, "compile": "Graph"});
            job["spec"]["train"] = json!({"items": 80, "evalEvery": 40});
            job["spec"]["trainer"]["image"] = late.into();
            job["spec"]["lifecycle"] = json!({"schedulingTimeout": "20s"});
        });
        scene.apply(&job);
        let look = async || scene.events("late").await.into_iter().find(|(_, note)| note.contains(late));
        let told = scene.until("an event that names the image", Duration::from_secs(60), look).await;
        assert_eq!(told.0, "GangPending");
        let archive =
            std::env::var("PAWL_TRAINER_ARCHIVE").expect("PAWL_TRAINER_ARCHIVE: the archive of the trainer's image");
        load(late, Path::new(&archive));
        eprintln!("{TRAINER} is loaded as {late}");
        let done = scene.complete("late", LONGEST).await;
        assert_eq!(status(&done).training.as_ref().unwrap().measured.items, 80);
    });
}
