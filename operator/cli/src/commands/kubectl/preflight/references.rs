//! What the pods of a gang refer to: whether it exists. A dry run names only the first that is missing, and no
//! ConfigMap, Secret or claim: pods wait for these.

use super::finding::{Finding, Seen};
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, PodSpec, Volume};
use std::collections::BTreeSet;

/// Kind of an object that pods refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Referent {
    /// `serviceAccountName`.
    ServiceAccount,
    /// `priorityClassName`.
    PriorityClass,
    /// `runtimeClassName`.
    RuntimeClass,
    /// Of a variable or a volume.
    ConfigMap,
    /// Of a variable, a volume, or for pulling the image.
    Secret,
    /// Of a volume.
    PersistentVolumeClaim,
    /// Of `resourceClaims`.
    ResourceClaim,
    /// Of `resourceClaims`.
    ResourceClaimTemplate,
}

impl Referent {
    /// The resource, as a Role names it.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceaccounts",
            Self::PriorityClass => "priorityclasses.scheduling.k8s.io",
            Self::RuntimeClass => "runtimeclasses.node.k8s.io",
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
            Self::PersistentVolumeClaim => "persistentvolumeclaims",
            Self::ResourceClaim => "resourceclaims.resource.k8s.io",
            Self::ResourceClaimTemplate => "resourceclaimtemplates.resource.k8s.io",
        }
    }

    /// Whether it is in the namespace of the pods.
    pub const fn is_namespaced(self) -> bool {
        !matches!(self, Self::PriorityClass | Self::RuntimeClass)
    }
}

/// An object by kind and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// Its kind.
    pub kind: Referent,
    /// Its name.
    pub name: String,
}

/// The objects that the pods refer to and that are not `own`: names of what the operator creates with the gang.
pub fn references(pod: &PodSpec, own: &[String]) -> Vec<Reference> {
    let mut all = BTreeSet::new();
    let mut add = |kind, name: &str| {
        all.insert(Reference { kind, name: name.to_owned() });
    };
    add(Referent::ServiceAccount, pod.service_account_name.as_deref().unwrap_or("default"));
    pod.priority_class_name.iter().for_each(|name| add(Referent::PriorityClass, name));
    pod.runtime_class_name.iter().for_each(|name| add(Referent::RuntimeClass, name));
    for secret in pod.image_pull_secrets.iter().flatten() {
        add(Referent::Secret, &secret.name);
    }
    for claim in pod.resource_claims.iter().flatten() {
        claim.resource_claim_name.iter().for_each(|name| add(Referent::ResourceClaim, name));
        claim.resource_claim_template_name.iter().for_each(|name| add(Referent::ResourceClaimTemplate, name));
    }
    for volume in pod.volumes.iter().flatten() {
        of_volume(volume, &mut add);
    }
    for container in pod.init_containers.iter().flatten().chain(&pod.containers) {
        container.env_from.iter().flatten().for_each(|source| of_variables(source, &mut add));
        container.env.iter().flatten().for_each(|variable| of_variable(variable, &mut add));
    }
    all.retain(|reference| !own.contains(&reference.name));
    all.into_iter().collect()
}

/// What a volume refers to and waits for.
fn of_volume(volume: &Volume, add: &mut dyn FnMut(Referent, &str)) {
    let needed = |optional: Option<bool>| optional != Some(true);
    if let Some(claim) = &volume.persistent_volume_claim {
        add(Referent::PersistentVolumeClaim, &claim.claim_name);
    }
    if let Some(map) = volume.config_map.as_ref().filter(|map| needed(map.optional)) {
        add(Referent::ConfigMap, &map.name);
    }
    if let Some(secret) = volume.secret.as_ref().filter(|secret| needed(secret.optional)) {
        add(Referent::Secret, secret.secret_name.as_deref().unwrap_or_default());
    }
    if let Some(secret) = volume.csi.as_ref().and_then(|csi| csi.node_publish_secret_ref.as_ref()) {
        add(Referent::Secret, &secret.name);
    }
    let sources = volume.projected.as_ref().and_then(|projected| projected.sources.as_ref());
    for source in sources.into_iter().flatten() {
        if let Some(map) = source.config_map.as_ref().filter(|map| needed(map.optional)) {
            add(Referent::ConfigMap, &map.name);
        }
        if let Some(secret) = source.secret.as_ref().filter(|secret| needed(secret.optional)) {
            add(Referent::Secret, &secret.name);
        }
    }
}

/// What a variable refers to and waits for.
fn of_variable(variable: &EnvVar, add: &mut dyn FnMut(Referent, &str)) {
    let Some(from) = &variable.value_from else { return };
    if let Some(map) = from.config_map_key_ref.as_ref().filter(|map| map.optional != Some(true)) {
        add(Referent::ConfigMap, &map.name);
    }
    if let Some(secret) = from.secret_key_ref.as_ref().filter(|secret| secret.optional != Some(true)) {
        add(Referent::Secret, &secret.name);
    }
}

/// What the source of several variables refers to and waits for.
fn of_variables(source: &EnvFromSource, add: &mut dyn FnMut(Referent, &str)) {
    if let Some(map) = source.config_map_ref.as_ref().filter(|map| map.optional != Some(true)) {
        add(Referent::ConfigMap, &map.name);
    }
    if let Some(secret) = source.secret_ref.as_ref().filter(|secret| secret.optional != Some(true)) {
        add(Referent::Secret, &secret.name);
    }
}

/// Whether each of them exists. `others` are documents of the same manifest, such as `Secret s3`.
pub fn existence(namespace: &str, looked: &[(Reference, Seen<()>)], others: &[String]) -> Vec<Finding> {
    let object = |Reference { kind, name }: &Reference| {
        if kind.is_namespaced() { format!("{kind:?} {namespace}/{name}") } else { format!("{kind:?} {name}") }
    };
    let mut findings = Vec::new();
    let mut found = Vec::new();
    for (reference, seen) in looked {
        let Reference { kind, name } = reference;
        match seen {
            Seen::Found(()) => found.push(format!("{kind:?} {name}")),
            Seen::Absent if others.contains(&format!("{kind:?} {name}")) => {
                findings.push(Finding::note(
                    object(reference),
                    "does not exist yet, and is in the manifest: apply it first",
                ));
            }
            Seen::Absent => findings.push(Finding::problem(object(reference), "does not exist", remedy(reference))),
            Seen::Unseen(why) => findings.push(Finding::unknown(object(reference), format!("not checked: {why}"))),
        }
    }
    if !found.is_empty() {
        findings.insert(0, Finding::ok("What the pods refer to", format!("exists: {}", found.join(", "))));
    }
    findings
}

fn remedy(Reference { kind, name }: &Reference) -> String {
    let template = "spec.trainer.podTemplate";
    match kind {
        Referent::ServiceAccount => {
            format!("kubectl create serviceaccount {name}, or correct {template}.serviceAccountName")
        }
        Referent::PriorityClass => {
            let fields = format!("{template}.priorityClassName, or pods.priorityClassName of the chart");
            format!("ask the administrator to create it, or correct {fields}")
        }
        Referent::RuntimeClass => {
            let fields = format!("{template}.runtimeClassName, or pods.runtimeClassName of the chart");
            format!("ask the administrator to create it, or correct {fields}")
        }
        Referent::ConfigMap => format!("create it, or correct env, envFrom or volumes of {template}"),
        Referent::Secret => {
            let fields = format!(
                "env, envFrom, volumes or imagePullSecrets of {template}, or pods.imagePullSecrets of the chart"
            );
            format!("create it, or correct {fields}")
        }
        Referent::PersistentVolumeClaim => {
            format!("create it, or correct spec.train.checkpoint.storage or volumes of {template}")
        }
        Referent::ResourceClaim | Referent::ResourceClaimTemplate => {
            format!("create it (resource.k8s.io/v1, Kubernetes 1.34), or correct {template}.resourceClaims")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::kubectl::preflight::finding::CheckResult::{Note, Ok as Exists, Problem, Unknown};
    use crate::commands::kubectl::preflight::gang::{TOKEN_SECRET, tests::gang};
    use serde_json::json;

    #[test]
    fn all_that_pods_wait_for_is_found_and_nothing_that_is_created_with_them() {
        let secret = |name: &str, optional: bool| {
            let key = json!({"name": name, "key": "k", "optional": optional});
            json!({"name": name, "valueFrom": {"secretKeyRef": key}})
        };
        let gang = gang(&json!({"replicas": 2, "podTemplate": {
            "serviceAccountName": "trainer", "priorityClassName": "high", "imagePullSecrets": [{"name": "registry"}],
            "env": [secret("s3", false), secret("maybe", true)],
            "envFrom": [{"secretRef": {"name": "all"}}, {"configMapRef": {"name": "some", "optional": true}}],
            "initContainers": [{"name": "fetch", "image": "fetch", "env": [secret("source", false)]}],
            "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "hca"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                        {"name": "p", "projected": {"sources": [{"configMap": {"name": "config"}}]}}],
        }}));
        let own = ["toy-1", TOKEN_SECRET, "toy-storage"].map(str::to_owned);
        let found = references(gang.pod.spec.as_ref().unwrap(), &own);
        let found: Vec<String> =
            found.iter().map(|reference| format!("{:?} {}", reference.kind, reference.name)).collect();
        let expected = [
            "ServiceAccount trainer",
            "PriorityClass high",
            "ConfigMap config",
            "Secret all",
            "Secret registry",
            "Secret s3",
            "Secret source",
            "PersistentVolumeClaim data",
            "ResourceClaimTemplate hca",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_missing_is_a_problem_unless_the_manifest_has_it() {
        let reference = |kind, name: &str| Reference { kind, name: name.to_owned() };
        let looked = [
            (reference(Referent::ServiceAccount, "default"), Seen::Found(())),
            (reference(Referent::PriorityClass, "high"), Seen::Absent),
            (reference(Referent::Secret, "s3"), Seen::Unseen("you may not get secrets".to_owned())),
            (reference(Referent::PersistentVolumeClaim, "models"), Seen::Absent),
        ];
        let found = existence("team", &looked, &["PersistentVolumeClaim models".to_owned()]);
        let results: Vec<_> = found.iter().map(|finding| (finding.result, finding.object.as_str())).collect();
        let expected = [
            (Exists, "What the pods refer to"),
            (Problem, "PriorityClass high"),
            (Unknown, "Secret team/s3"),
            (Note, "PersistentVolumeClaim team/models"),
        ];
        assert_eq!(results, expected);
    }
}
