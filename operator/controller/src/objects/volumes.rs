//! The volumes of a pod. A path that the job's own pod template mounts is the job's.

use super::companions::carries_plan;
use super::{Blueprint, paths, storage::resumed, storage::storage};
use crate::names;
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, DownwardAPIVolumeFile, DownwardAPIVolumeSource, EmptyDirVolumeSource, KeyToPath,
    ObjectFieldSelector, PersistentVolumeClaimVolumeSource, SecretVolumeSource, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pawl_api::quantity::Bytes;

/// Size of [`paths::SHM`] unless the job sets another.
const SHM_SIZE: &str = "1Gi";

/// Size of [`paths::BIN`]: the agent is one program.
const AGENT_SIZE: &str = "512Mi";

/// A volume and where the trainer mounts it.
struct Mounted {
    volume: Volume,
    path: &'static str,
    read_only: bool,
}

fn own(blueprint: &Blueprint<'_>) -> Vec<Mounted> {
    let template = &blueprint.job.spec.trainer.pod_template;
    let sizes = &blueprint.pods.empty_dirs;
    let mut all = vec![
        read_only(paths::PLAN, plan(blueprint)),
        writable(paths::WORK, directory("pawl-work", sizes.work.as_ref())),
        writable(paths::DATA, directory("pawl-data", sizes.data.as_ref())),
        writable(paths::TMP, directory("pawl-tmp", sizes.tmp.as_ref())),
    ];
    let size = template.shared_memory.as_ref().map_or(SHM_SIZE, |size| size.as_str());
    all.push(writable(
        paths::SHM,
        Volume {
            name: "pawl-shm".to_owned(),
            empty_dir: Some(EmptyDirVolumeSource {
                medium: Some("Memory".to_owned()),
                size_limit: Some(Quantity(size.to_owned())),
            }),
            ..Volume::default()
        },
    ));
    if let Some(token) = blueprint.token {
        let file = KeyToPath { key: token.key.clone(), path: names::TOKEN_KEY.to_owned(), mode: None };
        all.push(read_only(
            paths::TOKEN,
            Volume {
                name: names::TOKEN_VOLUME.to_owned(),
                secret: Some(SecretVolumeSource {
                    secret_name: Some(token.secret.clone()),
                    items: Some(vec![file]),
                    default_mode: Some(0o440),
                    ..SecretVolumeSource::default()
                }),
                ..Volume::default()
            },
        ));
    }
    if blueprint.is_foreign() {
        all.push(read_only(paths::BIN, directory(paths::BIN_VOLUME, AGENT_SIZE.parse().ok().as_ref())));
    }
    if let Some(name) = storage(blueprint.job).claim {
        let volume = "pawl-checkpoints";
        // A volume may be provisioned where its first pod runs: that must be a pod with the devices of the job.
        let early = blueprint.has_own_claim() && blueprint.is_preflight();
        all.push(writable(paths::CHECKPOINTS, if early { directory(volume, None) } else { claim(volume, name) }));
    }
    if let Some(name) = resumed(blueprint.job).and_then(|from| from.claim) {
        all.push(read_only(paths::RESUME_FROM, claim("pawl-resume-from", name)));
    }
    all.retain(|mounted| !template.volume_mounts.iter().any(|theirs| same_path(&theirs.mount_path, mounted.path)));
    all
}

/// The file with the plan: of what the pod carries, or of its ConfigMap.
fn plan(blueprint: &Blueprint<'_>) -> Volume {
    let volume = Volume { name: names::PLAN_VOLUME.to_owned(), ..Volume::default() };
    if carries_plan(blueprint).is_none() {
        let source = ConfigMapVolumeSource { name: blueprint.name().to_owned(), ..ConfigMapVolumeSource::default() };
        return Volume { config_map: Some(source), ..volume };
    }
    let field_path = format!("metadata.annotations['{}']", names::PLAN);
    let file = DownwardAPIVolumeFile {
        path: names::PLAN_KEY.to_owned(),
        field_ref: Some(ObjectFieldSelector { api_version: None, field_path }),
        ..DownwardAPIVolumeFile::default()
    };
    let source = DownwardAPIVolumeSource { items: Some(vec![file]), default_mode: None };
    Volume { downward_api: Some(source), ..volume }
}

pub(super) fn same_path(a: &str, b: &str) -> bool {
    a.trim_end_matches('/') == b
}

fn read_only(path: &'static str, volume: Volume) -> Mounted {
    Mounted { volume, path, read_only: true }
}

fn writable(path: &'static str, volume: Volume) -> Mounted {
    Mounted { volume, path, read_only: false }
}

pub(super) fn claim(name: &str, claim_name: String) -> Volume {
    Volume {
        name: name.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None }),
        ..Volume::default()
    }
}

pub(super) fn directory(name: &str, size: Option<&Bytes>) -> Volume {
    let source = EmptyDirVolumeSource { medium: None, size_limit: size.map(|size| Quantity(size.as_str().to_owned())) };
    Volume { name: name.to_owned(), empty_dir: Some(source), ..Volume::default() }
}

/// The volumes of a pod.
pub(super) fn volumes(blueprint: &Blueprint<'_>) -> Vec<Volume> {
    let theirs = blueprint.job.spec.trainer.pod_template.volumes.iter().cloned();
    own(blueprint).into_iter().map(|mounted| mounted.volume).chain(theirs).collect()
}

/// Where the trainer mounts them.
pub(super) fn mounts(blueprint: &Blueprint<'_>) -> Vec<VolumeMount> {
    let theirs = blueprint.job.spec.trainer.pod_template.volume_mounts.iter().cloned();
    let own = own(blueprint).into_iter().map(|mounted| VolumeMount {
        name: mounted.volume.name,
        mount_path: mounted.path.to_owned(),
        read_only: mounted.read_only.then_some(true),
        ..VolumeMount::default()
    });
    own.chain(theirs).collect()
}
