//! Checks of the pod template: fields that Pawl sets must be absent, every mount needs a volume, and every use of a
//! claim needs the claim.

use super::{Problem, is_label, quoted};
use crate::spec::{InitContainer, PodTemplate, Trainer};
use k8s_openapi::api::core::v1::{EnvVar, PodResourceClaim, ResourceRequirements, VolumeMount};
use pawl_contract::template::references;

/// Variables that the trainer contract sets.
const RESERVED: [&str; 5] = ["MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"];
/// Names of the containers that Pawl adds.
const OWN_CONTAINERS: [&str; 2] = ["trainer", "agent"];

pub(super) fn check(trainer: &Trainer) -> Vec<Problem> {
    let pod = &trainer.pod_template;
    let at = "spec.trainer.podTemplate";
    let mut problems = Vec::new();
    for (i, variable) in pod.env.iter().enumerate() {
        let name = variable.name.as_str();
        if RESERVED.contains(&name) || name.starts_with("PAWL_") {
            let message = "is set by Pawl for each rank";
            problems.push(Problem::new(format!("{at}.env[{i}].name"), quoted(name), message, "remove it"));
        }
    }
    for (i, source) in pod.env_from.iter().enumerate() {
        if let Some(prefix) = source.prefix.as_deref().filter(|prefix| prefix.starts_with("PAWL_")) {
            let message = "is that of variables that Pawl sets for each rank";
            let field = format!("{at}.envFrom[{i}].prefix");
            problems.push(Problem::new(field, quoted(prefix), message, "use another one"));
        }
    }
    problems.extend(variables(at, &pod.env));
    for (i, volume) in pod.volumes.iter().enumerate() {
        let sources = serde_json::to_value(volume).ok().and_then(|v| v.as_object().map(|o| o.len() - 1)).unwrap_or(0);
        if sources != 1 {
            let message = format!("has {sources} sources");
            let remedy = "set exactly one, such as persistentVolumeClaim or emptyDir";
            problems.push(Problem::new(format!("{at}.volumes[{i}]"), quoted(&volume.name), message, remedy));
        }
    }
    problems.extend(mounts(at, pod, &pod.volume_mounts));
    problems.extend(resources(at, trainer, pod.resources.as_ref()));
    for (i, container) in pod.init_containers.iter().enumerate() {
        problems.extend(init_container(&format!("{at}.initContainers[{i}]"), trainer, container));
    }
    problems.extend(claims(at, trainer));
    problems
}

fn variables(at: &str, env: &[EnvVar]) -> Vec<Problem> {
    let both = env.iter().enumerate().filter(|(_, variable)| variable.value.is_some() && variable.value_from.is_some());
    let problem = |i| {
        Problem::new(format!("{at}.env[{i}].valueFrom"), "", "is mutually exclusive with value", "keep one of them")
    };
    both.map(|(i, _)| problem(i)).collect()
}

fn mounts(at: &str, pod: &PodTemplate, mounts: &[VolumeMount]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (i, mount) in mounts.iter().enumerate() {
        if !pod.volumes.iter().any(|v| v.name == mount.name) {
            let field = format!("{at}.volumeMounts[{i}].name");
            problems.push(Problem::new(field, quoted(&mount.name), "is not a volume of this pod", "add it to volumes"));
        }
        if !mount.mount_path.starts_with('/') {
            let field = format!("{at}.volumeMounts[{i}].mountPath");
            problems.push(Problem::new(field, quoted(&mount.mount_path), "is not an absolute path", "start it with /"));
        }
    }
    problems
}

/// The GPUs are the trainer's, and Pawl requests them.
fn resources(at: &str, trainer: &Trainer, resources: Option<&ResourceRequirements>) -> Vec<Problem> {
    let Some(resources) = resources else { return Vec::new() };
    let mut problems = Vec::new();
    for (list, quantities) in [("limits", &resources.limits), ("requests", &resources.requests)] {
        if quantities.as_ref().is_some_and(|q| q.contains_key(&trainer.gpu_resource)) {
            problems.push(Problem::new(
                format!("{at}.resources.{list}.{}", trainer.gpu_resource),
                "",
                "is set by Pawl from gpusPerReplica",
                "remove it",
            ));
        }
    }
    for (i, used) in resources.claims.iter().flatten().enumerate() {
        let (message, remedy) = if used.name == trainer.gpu_resource {
            ("is set by Pawl from gpuResource", "remove it")
        } else if !trainer.pod_template.resource_claims.iter().any(|claim| claim.name == used.name) {
            ("is not a claim of this pod", "add it to resourceClaims")
        } else {
            continue;
        };
        problems.push(Problem::new(format!("{at}.resources.claims[{i}].name"), quoted(&used.name), message, remedy));
    }
    problems
}

fn init_container(at: &str, trainer: &Trainer, container: &InitContainer) -> Vec<Problem> {
    let name = container.name.as_str();
    let wrong = if OWN_CONTAINERS.contains(&name) {
        Some(("is the name of a container of Pawl", "choose another name"))
    } else if !is_label(name) {
        Some(("is not a valid name", "use lower-case letters, digits and -, at most 63 characters"))
    } else {
        None
    };
    let mut problems: Vec<_> = wrong
        .into_iter()
        .map(|(what, remedy)| Problem::new(format!("{at}.name"), quoted(name), what, remedy))
        .collect();
    problems.extend(variables(at, &container.env));
    problems.extend(mounts(at, &trainer.pod_template, &container.volume_mounts));
    problems.extend(resources(at, trainer, container.resources.as_ref()));
    problems.extend(placeholders(at, container));
    problems
}

/// Placeholders of Pawl, which are replaced in the trainer's container only. Kubernetes has `$(NAME)` and `$$(...)`.
fn placeholders(at: &str, container: &InitContainer) -> Vec<Problem> {
    let words = |field: &str, list: &[String]| -> Vec<_> {
        list.iter().enumerate().map(|(i, word)| (format!("{at}.{field}[{i}]"), word.clone())).collect()
    };
    let variables = container.env.iter().enumerate();
    let variables =
        variables.filter_map(|(i, variable)| Some((format!("{at}.env[{i}].value"), variable.value.clone()?)));
    let texts = words("command", &container.command).into_iter().chain(words("args", &container.args)).chain(variables);
    let written = texts.filter(|(_, text)| references(text).map_or(true, |found| !found.is_empty()));
    let message = "contains a placeholder, which is replaced in the trainer's container only";
    written.map(|(field, text)| Problem::new(field, quoted(&text), message, "write its value")).collect()
}

fn claims(at: &str, trainer: &Trainer) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (i, claim) in trainer.pod_template.resource_claims.iter().enumerate() {
        if !is_label(&claim.name) {
            let remedy = "use lower-case letters, digits and -, at most 63 characters";
            let field = format!("{at}.resourceClaims[{i}].name");
            problems.push(Problem::new(field, quoted(&claim.name), "is not a valid name", remedy));
        }
        if claim.resource_claim_name.is_some() == claim.resource_claim_template_name.is_some() {
            let message = "needs exactly one of resourceClaimName and resourceClaimTemplateName";
            let remedy = "name a ResourceClaimTemplate, from which each pod gets a claim of its own";
            problems.push(Problem::new(format!("{at}.resourceClaims[{i}]"), quoted(&claim.name), message, remedy));
        }
    }
    problems.extend(gpus(at, trainer));
    problems
}

/// Where the GPUs come from: an extended resource, or a claim of each pod.
fn gpus(at: &str, trainer: &Trainer) -> Option<Problem> {
    let name = &trainer.gpu_resource;
    match trainer.gpu_claim() {
        None if trainer.gpus_per_replica == 0 || name.contains('/') => None,
        None => {
            let message = "is neither an extended resource nor a claim of this pod";
            let remedy = format!("write a name such as nvidia.com/gpu, or add the claim to {at}.resourceClaims");
            Some(Problem::new("spec.trainer.gpuResource", quoted(name), message, remedy))
        }
        Some(PodResourceClaim { resource_claim_name: Some(shared), .. }) => {
            let i = trainer.pod_template.resource_claims.iter().position(|claim| claim.name == *name).unwrap_or(0);
            let field = format!("{at}.resourceClaims[{i}].resourceClaimName");
            let message = "is one claim for all pods, which would share its GPUs";
            Some(Problem::new(field, quoted(shared), message, "use resourceClaimTemplateName"))
        }
        Some(_) => None,
    }
}
