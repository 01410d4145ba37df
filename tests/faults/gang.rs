//! A training under way, and whether it went on where it was.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pawl_api::TrainingJob;
use pawl_api::status::Stage;
use pawl_e2e::job::{files, status, training};
use pawl_e2e::{Scene, scene::stage};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A job that trains and checkpoints into a volume that every node reaches.
pub struct Training<'a> {
    scene: &'a Scene,
    name: String,
    volume: PathBuf,
    /// Items to train.
    pub items: u64,
}

impl<'a> Training<'a> {
    /// Applies the job `name`, which takes about `seconds` undisturbed, and waits until it has a checkpoint and the API
    /// server has heard that its pods run.
    pub async fn under_way(scene: &'a Scene, name: &str, seconds: u32, change: impl FnOnce(&mut Value)) -> Self {
        let volume = scene.claim(name).join("run");
        scene.apply(&training(name, seconds, |job| {
            job["spec"]["train"]["checkpoint"]["storage"] = format!("pvc://{name}/run").into();
            change(job);
        }));
        let items = scene.job(name).await.spec.train.items.unwrap();
        let training = Self { scene, name: name.to_owned(), volume, items };
        let look = async || newest(&training.volume).filter(|items| *items > 0);
        scene.until("a checkpoint", Duration::from_secs(90), look).await;
        let replicas = scene.job(name).await.spec.trainer.replicas as usize;
        training.again(&[], replicas, Duration::from_secs(30)).await;
        training
    }

    /// Its running pods, all of one attempt.
    pub async fn running(&self) -> Vec<Pod> {
        let pods = self.scene.pods(&self.name).await;
        pods.into_iter().filter(is_running).collect()
    }

    /// Waits until `count` pods run of an attempt that is not `before`'s.
    pub async fn again(&self, before: &[Pod], count: usize, deadline: Duration) -> Vec<Pod> {
        let old: BTreeSet<String> = before.iter().map(attempt).collect();
        let look = async || {
            let new: Vec<Pod> = self.running().await.into_iter().filter(|pod| !old.contains(&attempt(pod))).collect();
            (new.len() == count).then_some(new)
        };
        self.scene.until("the gang to run again", deadline, look).await
    }

    /// The most items in a checkpoint.
    pub fn checkpointed(&self) -> u64 {
        newest(&self.volume).unwrap_or(0)
    }

    /// Waits for the end, and checks that nothing before `items` was trained twice: every checkpoint on the way is
    /// newer.
    pub async fn completes_from(&self, items: u64, deadline: Duration) -> TrainingJob {
        let ended = |job: &TrainingJob| matches!(stage(job), Stage::Complete | Stage::Failed);
        let before = all(&self.volume);
        let look = async || {
            let fresh: Vec<u64> = all(&self.volume).difference(&before).copied().collect();
            assert!(
                fresh.iter().all(|new| *new > items),
                "had {items} items in a checkpoint and trained again to {fresh:?}"
            );
            let job: TrainingJob = self.scene.job(&self.name).await;
            ended(&job).then_some(job)
        };
        let job = self.scene.until("the end of the training", deadline, look).await;
        assert_eq!(stage(&job), Stage::Complete, "{:?}", status(&job).failure);
        assert_eq!(status(&job).training.as_ref().unwrap().measured.items, self.items);
        job
    }
}

/// The items of all checkpoints in a storage: each job has a directory of its own there.
fn all(storage: &Path) -> BTreeSet<u64> {
    let files = files(storage).into_iter();
    let names = files.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    names.filter_map(|name| name.strip_prefix("items-")?.strip_suffix(".json")?.parse().ok()).collect()
}

fn newest(directory: &Path) -> Option<u64> {
    all(directory).last().copied()
}

/// Whether the pod runs and is to go on.
pub fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

/// The attempt that a pod belongs to.
pub fn attempt(pod: &Pod) -> String {
    pod.labels().get("pawl.dev/attempt").cloned().unwrap_or_default()
}
