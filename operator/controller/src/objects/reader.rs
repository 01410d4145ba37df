//! The pod through which `kubectl pawl fetch` reads the checkpoints of a job.

use super::storage::mounted;
use super::{PodDefaults, container, paths, pod, some, volumes};
use crate::names;
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec, ResourceRequirements, VolumeMount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use pawl_api::TrainingJob;
use pawl_contract::env;
use std::collections::BTreeMap;

/// Value of [`names::NAME`] of such a pod: it is not one of the operator's.
const FETCH_NAME: &str = "pawl-fetch";
/// The pod ends after this time if it is not deleted, seconds.
const DEADLINE: i64 = 6 * 3600;

/// A pod without GPUs that waits, with the storage at `location` (`status.training.storage`) mounted read-only and the
/// credentials, volumes and service account of the job's pod template. `image` contains `/bin/pawl`; of `defaults`,
/// which are those of the pods that wrote there, it has the ids, the secrets for pulling images and the tolerations.
pub fn reader(job: &TrainingJob, location: &str, image: &str, defaults: &PodDefaults) -> Pod {
    let template = &job.spec.trainer.pod_template;
    let storage = mounted(location, paths::CHECKPOINTS);
    let mut all_volumes = vec![volumes::directory("pawl-tmp", None)];
    let mut mounts = vec![mount("pawl-tmp", paths::TMP, false)];
    if let Some(claim) = storage.claim {
        all_volumes.push(volumes::claim("pawl-checkpoints", claim));
        mounts.push(mount("pawl-checkpoints", paths::CHECKPOINTS, true));
    }
    // A path that the job's own pod template mounts is the job's.
    let theirs = |path: &str| template.volume_mounts.iter().any(|mount| mount.mount_path.trim_end_matches('/') == path);
    mounts.retain(|mount| !theirs(&mount.mount_path));
    all_volumes.retain(|volume| mounts.iter().any(|mount| mount.name == volume.name));
    all_volumes.extend(template.volumes.iter().cloned());
    mounts.extend(template.volume_mounts.iter().cloned());
    let mut variables = template.env.clone();
    variables.push(EnvVar { name: env::CHECKPOINTS.to_owned(), value: Some(storage.location), value_from: None });
    let amounts = |cpu: &str, memory: &str| {
        let all = [("cpu", cpu), ("memory", memory)];
        Some(BTreeMap::from(all.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))))
    };
    let reading = Container {
        name: names::CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        command: Some(["/bin/pawl", "agent", "wait"].map(str::to_owned).to_vec()),
        env: Some(variables),
        env_from: some(&template.env_from),
        volume_mounts: Some(mounts),
        resources: Some(ResourceRequirements {
            requests: amounts("100m", "128Mi"),
            // A namespace with a ResourceQuota admits no pod without limits.
            limits: amounts("1", "512Mi"),
            ..ResourceRequirements::default()
        }),
        security_context: Some(container::restricted()),
        ..Container::default()
    };
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-fetch-", job.name_any())),
            namespace: job.namespace(),
            labels: Some(BTreeMap::from([(names::NAME.to_owned(), FETCH_NAME.to_owned())])),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![reading],
            volumes: Some(all_volumes),
            restart_policy: Some("Never".to_owned()),
            active_deadline_seconds: Some(DEADLINE),
            termination_grace_period_seconds: Some(1),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(pod::security(job, defaults)),
            // A node with GPUs may be the only one that reaches the volume.
            tolerations: pod::tolerations(job, defaults),
            service_account_name: template.service_account_name.clone(),
            image_pull_secrets: pod::image_pull_secrets(job, defaults),
            ..PodSpec::default()
        }),
        status: None,
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}
