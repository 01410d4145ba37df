//! The containers of a pod: the trainer's, whose entry point is the agent; for a foreign image the one that brings the
//! agent in; and those of the job's pod template.

use super::{Blueprint, paths, some, storage::resumed, storage::storage, volumes};
use crate::names;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, ObjectFieldSelector, ResourceClaim,
    ResourceRequirements, SecurityContext, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pawl_api::spec::{InitContainer, RestartPolicy};
use pawl_contract::{env, pod};
use std::collections::BTreeMap;

/// Variable with the index of the pod in its gang, from its label: defined before the variables that refer to it.
const POD_INDEX: &str = "PAWL_POD_INDEX";
/// Resources that every container has; the others are devices.
const COMMON_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// The trainer's container.
pub(super) fn trainer(blueprint: &Blueprint<'_>) -> Container {
    let wanted = &blueprint.job.spec.trainer.pod_template;
    let foreign = blueprint.is_foreign();
    let agent = if foreign { format!("{}/pawl", paths::BIN) } else { "/bin/pawl".to_owned() };
    Container {
        name: names::CONTAINER.to_owned(),
        image: Some(image(blueprint)),
        image_pull_policy: wanted.image_pull_policy.map(|policy| policy.as_str().to_owned()),
        command: Some(vec![agent, "agent".to_owned()]),
        env: Some(environment(blueprint)),
        env_from: some(&wanted.env_from),
        ports: Some(ports(blueprint)),
        resources: resources(blueprint),
        volume_mounts: Some(volumes::mounts(blueprint)),
        security_context: Some(restricted()),
        ..Container::default()
    }
}

fn image(blueprint: &Blueprint<'_>) -> String {
    blueprint.job.spec.trainer.image.clone().unwrap_or_else(|| blueprint.images.trainer.clone())
}

/// The containers before the trainer's, and beside it.
pub(super) fn init_containers(blueprint: &Blueprint<'_>) -> Option<Vec<Container>> {
    let wanted = blueprint.job.spec.trainer.pod_template.init_containers.iter();
    let all: Vec<_> =
        installer(blueprint).into_iter().chain(wanted.map(|own| init_container(blueprint, own))).collect();
    (!all.is_empty()).then_some(all)
}

/// A container of the job's pod template, with a directory that it can write: its user has no home.
fn init_container(blueprint: &Blueprint<'_>, wanted: &InitContainer) -> Container {
    let mut mounts = wanted.volume_mounts.clone();
    let is_tmp = |mount: &VolumeMount| volumes::same_path(&mount.mount_path, paths::TMP);
    if !mounts.iter().any(is_tmp) {
        mounts.extend(volumes::mounts(blueprint).into_iter().find(is_tmp));
    }
    let mut variables = wanted.env.clone();
    if !variables.iter().any(|variable| variable.name == "HOME") {
        variables.insert(0, set("HOME", paths::TMP.to_owned()));
    }
    let variables = with_defaults(variables, blueprint);
    Container {
        name: wanted.name.clone(),
        image: Some(wanted.image.clone()),
        image_pull_policy: wanted.image_pull_policy.map(|policy| policy.as_str().to_owned()),
        restart_policy: wanted.restart_policy.map(|RestartPolicy::Always| "Always".to_owned()),
        command: some(&wanted.command),
        args: some(&wanted.args),
        working_dir: wanted.working_dir.clone(),
        env: Some(variables),
        env_from: some(&wanted.env_from),
        resources: wanted.resources.clone(),
        volume_mounts: Some(mounts),
        security_context: Some(restricted()),
        ..Container::default()
    }
}

/// The init container that copies the agent into a foreign image's reach.
fn installer(blueprint: &Blueprint<'_>) -> Option<Container> {
    blueprint.is_foreign().then(|| Container {
        name: names::AGENT_CONTAINER.to_owned(),
        image: Some(blueprint.images.agent.clone()),
        command: Some(["/bin/pawl", "agent", "install", paths::BIN].map(str::to_owned).to_vec()),
        volume_mounts: Some(vec![VolumeMount {
            name: paths::BIN_VOLUME.to_owned(),
            mount_path: paths::BIN.to_owned(),
            ..VolumeMount::default()
        }]),
        resources: installer_resources(blueprint),
        security_context: Some(restricted()),
        ..Container::default()
    })
}

/// The trainer's CPU, memory and disk: a ResourceQuota and the Guaranteed class require them of every container. The
/// containers run one after the other, so that the pod requests no more than without it.
fn installer_resources(blueprint: &Blueprint<'_>) -> Option<ResourceRequirements> {
    let wanted = blueprint.job.spec.trainer.pod_template.resources.as_ref()?;
    let common = |quantities: &Option<BTreeMap<String, Quantity>>| {
        let all = quantities.iter().flatten().filter(|(name, _)| COMMON_RESOURCES.contains(&name.as_str()));
        let all: BTreeMap<_, _> = all.map(|(name, quantity)| (name.clone(), quantity.clone())).collect();
        (!all.is_empty()).then_some(all)
    };
    let resources = ResourceRequirements {
        limits: common(&wanted.limits),
        requests: common(&wanted.requests),
        ..ResourceRequirements::default()
    };
    (resources != ResourceRequirements::default()).then_some(resources)
}

pub(super) fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}

/// The resources of the pod template, and the GPUs: those of a claim, or else an extended resource, whose limit is its
/// request.
fn resources(blueprint: &Blueprint<'_>) -> Option<ResourceRequirements> {
    let trainer = &blueprint.job.spec.trainer;
    let mut resources = trainer.pod_template.resources.clone().unwrap_or_default();
    let gpus = blueprint.plan.gpus_per_replica;
    match trainer.gpu_claim() {
        _ if gpus == 0 => {}
        Some(claim) => {
            let claims = resources.claims.get_or_insert_default();
            claims.push(ResourceClaim { name: claim.name.clone(), request: None });
        }
        None => {
            let limits = resources.limits.get_or_insert_with(BTreeMap::new);
            limits.insert(trainer.gpu_resource.clone(), Quantity(gpus.to_string()));
        }
    }
    (resources != ResourceRequirements::default()).then_some(resources)
}

fn ports(blueprint: &Blueprint<'_>) -> Vec<ContainerPort> {
    let port = |name: &str, number: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        ..ContainerPort::default()
    };
    let rendezvous = blueprint.is_gang().then(|| port("rendezvous", pod::RENDEZVOUS_PORT));
    std::iter::once(port("metrics", pod::AGENT_HTTP_PORT)).chain(rendezvous).collect()
}

/// Whether the job's pod template mounts a volume at `path`.
fn has_mount(blueprint: &Blueprint<'_>, path: &str) -> bool {
    let mounts = &blueprint.job.spec.trainer.pod_template.volume_mounts;
    mounts.iter().any(|mount| mount.mount_path.trim_end_matches('/') == path)
}

/// Whether the pod has the claim that the operator creates.
fn has_claim(blueprint: &Blueprint<'_>) -> bool {
    blueprint.has_own_claim() && !blueprint.is_preflight() && !has_mount(blueprint, paths::CHECKPOINTS)
}

/// The directory for generated data: in the claim that the operator creates, where each pod has its own, unless the
/// job's pod template mounts a volume for it.
fn data(blueprint: &Blueprint<'_>) -> String {
    if has_claim(blueprint) && !has_mount(blueprint, paths::DATA) {
        format!("{}/$({POD_INDEX})", paths::CLAIMED_DATA)
    } else {
        paths::DATA.to_owned()
    }
}

/// A variable with a literal value.
fn set(name: &str, value: String) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value), value_from: None }
}

fn environment(blueprint: &Blueprint<'_>) -> Vec<EnvVar> {
    let wanted = &blueprint.job.spec.trainer.pod_template.env;
    let field = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { api_version: None, field_path: path.to_owned() }),
            ..EnvVarSource::default()
        }),
    };
    let mut all = vec![
        set(pod::PLAN, format!("{}/{}", paths::PLAN, names::PLAN_KEY)),
        set(pod::WORK_DIR, paths::WORK.to_owned()),
        field(POD_INDEX, &format!("metadata.labels['{}']", names::BATCH_INDEX)),
        set(env::DATA, data(blueprint)),
        set(env::CHECKPOINTS, storage(blueprint.job).location),
        set(pod::HTTP_PORT, pod::AGENT_HTTP_PORT.to_string()),
        set(pod::STOP_GRACE, blueprint.stop_grace_seconds().to_string()),
        set(pod::IMAGE, image(blueprint)),
        field("PAWL_POD_NAME", "metadata.name"),
        field(env::NODE_NAME, "spec.nodeName"),
    ];
    let meta = &blueprint.job.metadata;
    let identity = [
        (env::JOB_NAMESPACE, meta.namespace.clone()),
        (env::JOB_UID, meta.uid.clone()),
        (env::JOB_GENERATION, meta.generation.map(|generation| generation.to_string())),
        (env::RESUME_FROM, resumed(blueprint.job).map(|from| from.location)),
    ];
    all.extend(identity.into_iter().filter_map(|(name, value)| Some(set(name, value?))));
    if blueprint.proves_storage() {
        all.push(set(pod::PROVES_STORAGE, "true".to_owned()));
    }
    if blueprint.is_gang() {
        let host = format!("{}-0.{}.{}.svc", blueprint.name(), names::SERVICE, blueprint.namespace());
        all.push(set(pod::AGENT_ADDRESS, format!("{host}:{}", pod::RENDEZVOUS_PORT)));
        all.push(set(pod::TOKEN_FILE, format!("{}/{}", paths::TOKEN, names::TOKEN_KEY)));
    }
    // The user of the container has no home, and the root file system cannot be written.
    if !wanted.iter().any(|variable| variable.name == "HOME") {
        all.push(set("HOME", paths::TMP.to_owned()));
        // In a home of the job's own, caches are where it expects them.
        if has_claim(blueprint) {
            all.push(set(pod::CACHES, paths::CLAIMED_CACHES.to_owned()));
        }
    }
    all.extend(wanted.iter().cloned());
    with_defaults(all, blueprint)
}

/// `own` after those variables of the administrator that are not among them, to which they can refer therefore.
fn with_defaults(own: Vec<EnvVar>, blueprint: &Blueprint<'_>) -> Vec<EnvVar> {
    let defaults = blueprint.pods.env.iter();
    let others = defaults.filter(|default| !own.iter().any(|variable| variable.name == default.name));
    let mut all: Vec<EnvVar> = others.cloned().collect();
    all.extend(own);
    all
}
