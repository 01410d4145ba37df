//! Whether the quotas of the namespace suffice for all pods of a gang at once: a dry run of one pod fits where the gang
//! does not.

use super::amounts::{self, Amounts, Kind, ONE, amount, of_container, of_pod};
use super::finding::{Finding, Seen};
use super::gang::Gang;
use k8s_openapi::api::core::v1::{Container, LimitRange, PodSpec, ResourceQuota, ScopedResourceSelectorRequirement};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Resources of which a quota demands that each container sets them (`podEvaluator` of kubernetes 1.34).
const DEMANDED: [&str; 2] = ["cpu", "memory"];
/// Suffix of resources that count objects or storage of one StorageClass.
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";

/// What the objects of a gang take of quotas.
pub struct Needs<'a> {
    /// The gang.
    pub gang: &'a Gang,
    /// Its pods, with what admission has filled in if it was asked.
    pub pod: &'a PodSpec,
    /// Whether the claim has to be created.
    pub claims: bool,
    /// Pods of the job run already: they are part of what is used.
    pub runs: bool,
}

/// Fills in the defaults of the namespace for containers, as admission does.
pub fn with_defaults(pod: &PodSpec, ranges: &[LimitRange]) -> PodSpec {
    let mut pod = pod.clone();
    let items = ranges.iter().filter_map(|range| range.spec.as_ref()).flat_map(|spec| &spec.limits);
    for item in items.filter(|item| item.type_ == "Container") {
        for container in pod.init_containers.iter_mut().flatten().chain(&mut pod.containers) {
            let resources = container.resources.get_or_insert_default();
            let fill = |to: &mut Option<BTreeMap<String, Quantity>>, from: &Option<BTreeMap<String, Quantity>>| {
                for (name, quantity) in from.iter().flatten() {
                    to.get_or_insert_default().entry(name.clone()).or_insert_with(|| quantity.clone());
                }
            };
            // A limit without a request is the request, before the default of the request is looked at.
            let own = resources.limits.clone();
            fill(&mut resources.requests, &own);
            fill(&mut resources.limits, &item.default);
            fill(&mut resources.requests, &item.default_request);
        }
    }
    pod
}

/// Whether each quota that applies to the gang has room for it.
pub fn quotas(namespace: &str, needs: &Needs<'_>, quotas: &Seen<Vec<ResourceQuota>>) -> Vec<Finding> {
    let quotas = match quotas {
        Seen::Found(quotas) => quotas,
        Seen::Absent => return Vec::new(),
        Seen::Unseen(why) => return vec![Finding::unknown("ResourceQuotas", format!("not checked: {why}"))],
    };
    if quotas.is_empty() {
        return vec![Finding::ok("ResourceQuotas", format!("namespace {namespace:?} has none"))];
    }
    quotas
        .iter()
        .filter(|quota| applies(quota, needs.pod))
        .flat_map(|quota| of_quota(namespace, needs, quota))
        .collect()
}

fn of_quota(namespace: &str, needs: &Needs<'_>, quota: &ResourceQuota) -> Vec<Finding> {
    let object = format!("ResourceQuota {namespace}/{}", quota.metadata.name.as_deref().unwrap_or_default());
    let status = quota.status.as_ref();
    let spec = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    let hard = status.and_then(|status| status.hard.as_ref()).or(spec);
    let of = |all: Option<&BTreeMap<String, Quantity>>, name: &str| all?.get(name).and_then(amount);
    let mut findings: Vec<Finding> = Vec::new();
    let mut fits = Vec::new();
    for (name, quantity) in hard.into_iter().flatten() {
        let Some(hard) = amount(quantity) else { continue };
        let missing = undefined(needs.pod, name);
        if !missing.is_empty() {
            let message = format!("demands {name} of every container, which is not set for {}", missing.join(", "));
            let remedy = format!("set {} in spec.trainer.podTemplate.resources", field(name));
            findings.push(Finding::problem(&object, message, remedy));
            continue;
        }
        let Some(need) = need(needs, name).filter(|need| *need > 0) else { continue };
        let used = of(status.and_then(|status| status.used.as_ref()), name).unwrap_or(0);
        let free = hard.saturating_sub(used);
        let show = |amount| amounts::display(name, amount);
        let (free_text, hard_text, need_text) = (show(free), show(hard), show(need));
        if need > hard {
            let message = format!("allows {hard_text} {name}, the gang needs {need_text}");
            findings.push(Finding::problem(&object, message, "make the gang smaller, or ask for a larger quota"));
        } else if need > free && needs.runs {
            let message = format!(
                "leaves {free_text} of {hard_text} {name}, the gang needs {need_text}; this job holds a part of it now"
            );
            findings.push(Finding::unknown(&object, message));
        } else if need > free {
            let message = format!("leaves {free_text} of {hard_text} {name}, the gang needs {need_text}");
            findings.push(Finding::problem(
                &object,
                message,
                "wait until others give some back, or release some: the job would wait",
            ));
        } else {
            fits.push(format!("{free_text} of {hard_text} {name} (needs {need_text})"));
        }
    }
    if !fits.is_empty() {
        findings.push(Finding::ok(&object, format!("leaves {}", fits.join(", "))));
    }
    findings
}

/// Field of a container's resources that a quota of this name counts.
fn field(name: &str) -> String {
    if name.contains('.') && !name.contains('/') { name.to_owned() } else { format!("requests.{name}") }
}

/// What the name of a quota's resource counts: requests or limits of what.
fn counted(name: &str) -> (Kind, &str) {
    match name.split_once('.') {
        Some(("limits", resource)) => (Kind::Limits, resource),
        Some(("requests", resource)) => (Kind::Requests, resource),
        _ => (Kind::Requests, name),
    }
}

/// Containers that do not set what this quota demands of every container.
fn undefined<'a>(pod: &'a PodSpec, name: &str) -> Vec<&'a str> {
    let (kind, resource) = counted(name);
    if !DEMANDED.contains(&resource) {
        return Vec::new();
    }
    let unset = |container: &&Container| !of_container(container, kind).contains_key(resource);
    let all = pod.init_containers.iter().flatten().chain(&pod.containers);
    all.filter(unset).map(|container| container.name.as_str()).collect()
}

/// What all objects of the gang take of the resource `name` of a quota.
fn need(needs: &Needs<'_>, name: &str) -> Option<u128> {
    let Needs { gang, pod, claims, .. } = needs;
    let several = u128::from(gang.replicas > 1);
    let replicas = u128::from(gang.replicas);
    let claim = gang.claim.as_ref().filter(|_| *claims);
    let spec = claim.and_then(|claim| claim.spec.as_ref());
    let size = || {
        let requests = spec?.resources.as_ref()?.requests.as_ref()?;
        requests.get("storage").and_then(amount)
    };
    if let Some((class, rest)) = name.split_once(OF_CLASS) {
        let own = spec.and_then(|spec| spec.storage_class_name.as_deref()) == Some(class);
        return match rest {
            "requests.storage" if own => size(),
            "persistentvolumeclaims" if own => Some(ONE),
            _ => None,
        };
    }
    match name.strip_prefix("count/").unwrap_or(name) {
        "pods" => Some(replicas * ONE),
        "configmaps" | "jobs.batch" => Some(ONE),
        "secrets" => Some(several * ONE),
        "persistentvolumeclaims" => claim.map(|_| ONE),
        "requests.storage" => size(),
        _ => {
            let (kind, resource) = counted(name);
            let all: Amounts = of_pod(pod, kind);
            all.get(resource).map(|amount| amount.saturating_mul(replicas))
        }
    }
}

/// Whether the quota counts pods like this one: by its scopes.
fn applies(quota: &ResourceQuota, pod: &PodSpec) -> bool {
    let Some(spec) = &quota.spec else { return true };
    let scopes = spec.scopes.iter().flatten().map(|scope| scope_applies(scope, None, pod));
    let selector = spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
    let selected = selector.map(|requirement| scope_applies(&requirement.scope_name, Some(requirement), pod));
    scopes.chain(selected).all(|applies| applies)
}

fn scope_applies(scope: &str, requirement: Option<&ScopedResourceSelectorRequirement>, pod: &PodSpec) -> bool {
    let sets = |container: &Container| {
        let all = of_container(container, Kind::Requests);
        all.contains_key("cpu") || all.contains_key("memory")
    };
    let best_effort = || !pod.init_containers.iter().flatten().chain(&pod.containers).any(sets);
    match scope {
        "Terminating" => pod.active_deadline_seconds.is_some(),
        "NotTerminating" => pod.active_deadline_seconds.is_none(),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => {
            let class = pod.priority_class_name.as_deref();
            let values = requirement.and_then(|requirement| requirement.values.as_deref()).unwrap_or_default();
            let among = class.is_some_and(|class| values.iter().any(|value| value == class));
            match requirement.map(|requirement| requirement.operator.as_str()) {
                Some("In") => among,
                Some("NotIn") => !among,
                Some("DoesNotExist") => class.is_none(),
                _ => class.is_some(),
            }
        }
        // Affinity across namespaces, and scopes of later versions: admission decides.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::kubectl::preflight::finding::CheckResult::{self, Ok as Fits, Problem, Unknown};
    use crate::commands::kubectl::preflight::gang::tests::gang;
    use serde_json::{Value, json};

    fn quota(hard: Value, used: Value, spec: Value) -> ResourceQuota {
        let quota = json!({"metadata": {"name": "gpus"}, "spec": spec, "status": {"hard": hard, "used": used}});
        serde_json::from_value(quota).unwrap()
    }

    fn trainer(resources: Value) -> Value {
        json!({"replicas": 4, "gpusPerReplica": 2, "podTemplate": {"resources": resources}})
    }

    fn found(trainer: &Value, quota: ResourceQuota, runs: bool) -> Vec<(CheckResult, String)> {
        let gang = gang(trainer);
        let needs = Needs { gang: &gang, pod: gang.pod.spec.as_ref().unwrap(), claims: true, runs };
        let found = quotas("team", &needs, &Seen::Found(vec![quota]));
        found.into_iter().map(|finding| (finding.result, finding.message)).collect()
    }

    #[test]
    fn the_whole_gang_has_to_fit() {
        let resources = trainer(json!({"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "8Gi"}}));
        let one = |hard: Value, used: Value| found(&resources, quota(hard, used, json!({})), false).remove(0);
        let gpus = |hard: &str, used: &str| {
            one(json!({"requests.nvidia.com/gpu": hard}), json!({"requests.nvidia.com/gpu": used}))
        };
        assert_eq!(gpus("8", "0").0, Fits);
        let (result, message) = gpus("10", "4");
        assert_eq!((result, message.as_str()), (Problem, "leaves 6 of 10 requests.nvidia.com/gpu, the gang needs 8"));
        assert_eq!(gpus("6", "0").1, "allows 6 requests.nvidia.com/gpu, the gang needs 8");
        assert_eq!(one(json!({"limits.memory": "31Gi"}), json!({})).0, Problem);
        assert_eq!(
            one(json!({"requests.cpu": "8"}), json!({"requests.cpu": "500m"})).1,
            "leaves 7500m of 8 requests.cpu, the gang needs 8"
        );
        assert_eq!(one(json!({"pods": "3"}), json!({})).0, Problem);
        assert_eq!(one(json!({"count/jobs.batch": "1"}), json!({"count/jobs.batch": "1"})).0, Problem);
        assert_eq!(one(json!({"persistentvolumeclaims": "0"}), json!({})).0, Problem);
        assert_eq!(
            one(json!({"requests.storage": "10Gi"}), json!({})).1,
            "allows 10.00Gi requests.storage, the gang needs 50.00Gi"
        );
        let running = quota(json!({"pods": "6"}), json!({"pods": "4"}), json!({}));
        assert_eq!(found(&resources, running, true)[0].0, Unknown, "it holds four itself");
        assert_eq!(found(&resources, quota(json!({"services.nodeports": "0"}), json!({}), json!({})), false), []);
    }

    #[test]
    fn a_quota_demands_what_it_counts_unless_the_namespace_has_a_default() {
        let demanding = || quota(json!({"limits.memory": "100Gi"}), json!({}), json!({}));
        let bare = trainer(json!({}));
        let (result, message) = found(&bare, demanding(), false).remove(0);
        assert_eq!(result, Problem);
        assert_eq!(message, "demands limits.memory of every container, which is not set for trainer");
        let range = json!({"spec": {"limits": [{"type": "Container", "default": {"memory": "4Gi"}}]}});
        let gang = gang(&bare);
        let pod = with_defaults(gang.pod.spec.as_ref().unwrap(), &[serde_json::from_value(range).unwrap()]);
        let needs = Needs { gang: &gang, pod: &pod, claims: true, runs: false };
        let found = quotas("team", &needs, &Seen::Found(vec![demanding()]));
        assert_eq!(found[0].message, "leaves 100Gi of 100Gi limits.memory (needs 16.00Gi)");
    }

    #[test]
    fn a_quota_of_other_pods_does_not_count() {
        let none = || json!({"pods": "0"});
        let select = |operator: &str| {
            let requirement = json!({"scopeName": "PriorityClass", "operator": operator, "values": ["high"]});
            json!({"scopeSelector": {"matchExpressions": [requirement]}})
        };
        let cases = [
            (json!({"scopes": ["NotTerminating"]}), true),
            (json!({"scopes": ["Terminating"]}), false),
            (json!({"scopes": ["BestEffort"]}), true),
            (json!({"scopes": ["NotBestEffort"]}), false),
            (select("In"), false),
            (select("NotIn"), true),
        ];
        for (spec, counts) in cases {
            let found = found(&trainer(json!({})), quota(none(), json!({}), spec.clone()), false);
            assert_eq!(!found.is_empty(), counts, "{spec}");
        }
    }
}
