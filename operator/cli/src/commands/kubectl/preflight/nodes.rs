//! Whether the nodes have room for a gang when they are empty. Running pods, and affinity to them, are left to the
//! scheduler.

use super::amounts::{self, Amounts, Kind, amount, of_pod};
use super::finding::{Finding, Seen};
use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration};
use std::collections::BTreeMap;

/// What the findings are about.
const NODES: &str = "Nodes";
/// Resources that every node has; the others are devices.
const COMMON: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Why a node does not accept a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Selector,
    Cordoned,
    Taint,
}

/// Whether the nodes have room for so many of these pods.
pub fn nodes(pod: &PodSpec, replicas: u32, nodes: &Seen<Vec<Node>>) -> Finding {
    let nodes = match nodes {
        Seen::Found(nodes) => nodes,
        Seen::Absent => return Finding::unknown(NODES, "not checked: the cluster has none"),
        Seen::Unseen(why) => return Finding::unknown(NODES, format!("not checked: {why}")),
    };
    let needs = of_pod(pod, Kind::Requests);
    let devices: Vec<(&String, u128)> = needs
        .iter()
        .filter(|(name, amount)| !COMMON.contains(&name.as_str()) && **amount > 0)
        .map(|(name, amount)| (name, *amount))
        .collect();
    if let Some((device, _)) = devices.iter().find(|(device, _)| !nodes.iter().any(|node| has(node, device))) {
        return Finding::problem(
            NODES,
            format!("none of the {} nodes has the resource {device}", nodes.len()),
            "install its device plugin, or correct spec.trainer.gpuResource or podTemplate.resources",
        );
    }
    let fitting: Vec<&Node> = nodes.iter().filter(|node| refusal(pod, node).is_none()).collect();
    let with_devices = fitting.iter().filter(|node| devices.iter().all(|(device, _)| has(node, device))).count();
    if with_devices == 0 {
        return not_accepted(pod, nodes, &devices);
    }
    let wanted = wanted(&needs, &devices);
    let room: u64 = fitting.iter().map(|node| room(&needs, node)).fold(0, u64::saturating_add);
    let counted = format!("{with_devices} of {} nodes accept these pods", nodes.len());
    if room < u64::from(replicas) {
        return Finding::problem(
            NODES,
            format!(
                "{counted}, and have capacity for {room} even when empty; the gang needs {replicas}{wanted}, the \
                 largest has {}",
                largest(&needs, &fitting)
            ),
            "reduce spec.trainer.replicas, gpusPerReplica or podTemplate.resources, or add nodes",
        );
    }
    // Devices of claims are in no node's capacity: their drivers publish them elsewhere.
    let claims = if pod.resource_claims.is_some() { "; devices of resourceClaims are not counted" } else { "" };
    Finding::ok(
        NODES,
        format!("{counted}, and have capacity for {room} when empty; the gang needs {replicas}{wanted}{claims}"),
    )
}

/// What each pod requests.
fn wanted(needs: &Amounts, devices: &[(&String, u128)]) -> String {
    let show = |name: &str, amount: u128| format!("{} {name}", amounts::display(name, amount));
    let common = needs.iter().filter(|(name, _)| COMMON.contains(&name.as_str()));
    let all = devices.iter().map(|(name, amount)| show(name, *amount));
    let all: Vec<String> = all.chain(common.map(|(name, amount)| show(name, *amount))).collect();
    if all.is_empty() { String::new() } else { format!(" pods of {} each", all.join(", ")) }
}

/// The most that one of the nodes has of each resource that is needed.
fn largest(needs: &Amounts, nodes: &[&Node]) -> String {
    let most = |name: &String| nodes.iter().map(|node| allocatable(node, name)).max().unwrap_or(0);
    let all: Vec<String> = needs.keys().map(|name| format!("{} {name}", amounts::display(name, most(name)))).collect();
    if all.is_empty() { "no room for another pod".to_owned() } else { all.join(", ") }
}

/// No node accepts the pods: says what keeps how many of those with the devices from it.
fn not_accepted(pod: &PodSpec, nodes: &[Node], devices: &[(&String, u128)]) -> Finding {
    let candidates: Vec<&Node> =
        nodes.iter().filter(|node| devices.iter().all(|(device, _)| has(node, device))).collect();
    if candidates.is_empty() {
        let all: Vec<&str> = devices.iter().map(|(device, _)| device.as_str()).collect();
        return Finding::problem(
            NODES,
            format!("none of the {} nodes has all of {}", nodes.len(), all.join(", ")),
            "correct spec.trainer.gpuResource or podTemplate.resources",
        );
    }
    let count = |wanted: Refusal| candidates.iter().filter(|node| refusal(pod, node) == Some(wanted)).count();
    let reasons = [
        (count(Refusal::Selector), "do not match nodeSelector or affinity"),
        (count(Refusal::Taint), "have a taint that is not tolerated"),
        (count(Refusal::Cordoned), "are cordoned"),
    ];
    let reasons: Vec<String> =
        reasons.iter().filter(|(count, _)| *count > 0).map(|(count, why)| format!("{count} {why}")).collect();
    let of = match devices.first() {
        Some((device, _)) => format!("nodes with {device}"),
        None => "nodes".to_owned(),
    };
    Finding::problem(
        NODES,
        format!("none of the {} {of} accepts these pods: {}", candidates.len(), reasons.join(", ")),
        "correct nodeSelector, affinity or tolerations of spec.trainer.podTemplate, or labels and taints of the nodes",
    )
}

fn allocatable(node: &Node, resource: &str) -> u128 {
    let all = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    all.and_then(|all| all.get(resource)).and_then(amount).unwrap_or(0)
}

fn has(node: &Node, resource: &str) -> bool {
    allocatable(node, resource) > 0
}

/// How many such pods an empty node has room for.
fn room(needs: &Amounts, node: &Node) -> u64 {
    let each = needs.iter().filter(|(_, need)| **need > 0).map(|(name, need)| allocatable(node, name) / need);
    // A node that does not say how many pods it takes takes any number.
    let pods = node.status.as_ref().and_then(|status| status.allocatable.as_ref()?.get("pods").and_then(amount));
    let pods = pods.map_or(u128::from(u32::MAX), |pods| pods / amounts::ONE);
    u64::try_from(each.fold(pods, u128::min)).unwrap_or(u64::MAX)
}

/// Why the node does not accept the pod, of what does not depend on other pods.
fn refusal(pod: &PodSpec, node: &Node) -> Option<Refusal> {
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let selected = pod.node_selector.iter().flatten().all(|(name, value)| labels.get(name) == Some(value));
    let affinity = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref());
    if !selected || !required.is_none_or(|terms| terms.node_selector_terms.iter().any(|term| matches(term, node))) {
        return Some(Refusal::Selector);
    }
    let spec = node.spec.as_ref();
    if spec.is_some_and(|spec| spec.unschedulable == Some(true)) {
        return Some(Refusal::Cordoned);
    }
    let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let mut hard = taints.iter().filter(|taint| taint.effect != "PreferNoSchedule");
    let tolerated = |taint: &Taint| pod.tolerations.iter().flatten().any(|wanted| tolerates(wanted, taint));
    hard.any(|taint| !tolerated(taint)).then_some(Refusal::Taint)
}

/// Whether a node matches a term: one without a requirement matches none.
fn matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let label = |requirement: &NodeSelectorRequirement| {
        let value = node.metadata.labels.as_ref().and_then(|labels| labels.get(&requirement.key));
        fulfils(requirement, value.map(String::as_str))
    };
    // The name is the only field that may be selected.
    let field = |requirement: &NodeSelectorRequirement| fulfils(requirement, node.metadata.name.as_deref());
    let (labels, fields) = (term.match_expressions.iter().flatten(), term.match_fields.iter().flatten());
    let empty = labels.clone().next().is_none() && fields.clone().next().is_none();
    !empty && labels.into_iter().all(label) && fields.into_iter().all(field)
}

fn fulfils(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = || Some((number(value?)?, number(values.first()?)?));
    match requirement.operator.as_str() {
        "In" => among,
        "NotIn" => !among,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(|(value, bound)| value > bound),
        "Lt" => compared().is_some_and(|(value, bound)| value < bound),
        // One of a later version: the scheduler decides.
        _ => true,
    }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == taint.effect);
    let any_key = toleration.key.as_deref().is_none_or(str::is_empty);
    let exists = toleration.operator.as_deref() == Some("Exists");
    let key = if any_key { exists } else { toleration.key.as_deref() == Some(taint.key.as_str()) };
    let value = exists || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    effect && key && value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::kubectl::preflight::finding::CheckResult;
    use crate::commands::kubectl::preflight::gang::tests::gang;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::{Value, json};

    fn node(gpus: &str, more: Value) -> Node {
        let node = json!({"metadata": {"name": "n", "labels": {"zone": "a", "memory": "80"}}, "spec": more, "status": {
            "allocatable": {"nvidia.com/gpu": gpus, "cpu": "8", "memory": "64Gi", "pods": "110"}}});
        serde_json::from_value(node).unwrap()
    }

    fn found(trainer: Value, all: &[Node]) -> Finding {
        let gang = gang(&trainer);
        nodes(gang.pod.spec.as_ref().unwrap(), gang.replicas, &Seen::Found(all.to_vec()))
    }

    #[test]
    fn gangs_are_counted_in_whole_pods() {
        let two_of_four = |gpus: &[&str]| {
            let all: Vec<Node> = gpus.iter().map(|gpus| node(gpus, json!({}))).collect();
            found(json!({"replicas": 2, "gpusPerReplica": 4}), &all)
        };
        assert_eq!(two_of_four(&["8"]).result, CheckResult::Ok);
        assert_eq!(two_of_four(&["4", "4"]).result, CheckResult::Ok);
        // Seven devices, but room for one whole pod.
        let one = two_of_four(&["4", "3"]);
        assert!(
            one.result == CheckResult::Problem && one.message.contains("capacity for 1 even when empty"),
            "{one:?}"
        );
        let none = two_of_four(&["0", "0"]);
        assert!(none.message.contains("none of the 2 nodes has the resource nvidia.com/gpu"), "{none:?}");
        assert!(none.remedy.as_ref().unwrap().contains("device plugin"), "{none:?}");
        assert_eq!(found(json!({"gpusPerReplica": 0}), &[node("0", json!({}))]).result, CheckResult::Ok);
    }

    #[test]
    fn other_resources_are_counted_too() {
        let resources = |memory: &str| {
            let template = json!({"resources": {"requests": {"memory": memory}}});
            json!({"replicas": 2, "gpusPerReplica": 1, "podTemplate": template})
        };
        assert_eq!(found(resources("32Gi"), &[node("8", json!({}))]).result, CheckResult::Ok);
        let large = found(resources("48Gi"), &[node("8", json!({}))]);
        assert!(
            large.result == CheckResult::Problem
                && large.message.contains("2 pods of 1 nvidia.com/gpu, 48.00Gi memory each"),
            "{large:?}"
        );
        let mut other = node("0", json!({}));
        let fast = [("rdma/hca".to_owned(), Quantity("1".to_owned()))].into();
        other.status.as_mut().unwrap().allocatable = Some(fast);
        let both = json!({"gpusPerReplica": 1, "podTemplate": {"resources": {"limits": {"rdma/hca": "1"}}}});
        let both = found(both, &[node("8", json!({})), other]);
        assert!(both.message.contains("none of the 2 nodes has all of nvidia.com/gpu, rdma/hca"), "{both:?}");
    }

    #[test]
    fn devices_of_claims_are_no_resource_of_a_node() {
        let claims = json!([{"name": "gpus", "resourceClaimTemplateName": "one"}]);
        let trainer = json!({"gpuResource": "gpus", "podTemplate": {"resourceClaims": claims}});
        let found = found(trainer, &[node("0", json!({}))]);
        assert_eq!(found.result, CheckResult::Ok);
        assert!(found.message.ends_with("devices of resourceClaims are not counted"), "{found:?}");
    }

    #[test]
    fn what_may_not_be_listed_is_unknown() {
        let gang = gang(&json!({}));
        let unseen = Seen::Unseen("you may not list nodes".to_owned());
        let found = nodes(gang.pod.spec.as_ref().unwrap(), 1, &unseen);
        assert_eq!(
            (found.result, found.message.as_str()),
            (CheckResult::Unknown, "not checked: you may not list nodes")
        );
    }

    #[test]
    fn nodes_that_do_not_accept_the_pods_do_not_count() {
        let taint = |effect: &str| json!({"taints": [{"key": "team", "value": "x", "effect": effect}]});
        let affinity = |key: &str, operator: &str, values: Value| {
            let requirement = json!({"key": key, "operator": operator, "values": values});
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}}})
        };
        let cases = [
            (json!({}), json!({}), CheckResult::Ok),
            (json!({}), json!({"unschedulable": true}), CheckResult::Problem),
            (json!({"nodeSelector": {"zone": "a"}}), json!({}), CheckResult::Ok),
            (json!({"nodeSelector": {"zone": "b"}}), json!({}), CheckResult::Problem),
            (affinity("zone", "In", json!(["a", "b"])), json!({}), CheckResult::Ok),
            (affinity("zone", "NotIn", json!(["a"])), json!({}), CheckResult::Problem),
            (affinity("absent", "Exists", json!([])), json!({}), CheckResult::Problem),
            (affinity("absent", "DoesNotExist", json!([])), json!({}), CheckResult::Ok),
            (affinity("memory", "Gt", json!(["40"])), json!({}), CheckResult::Ok),
            (affinity("memory", "Lt", json!(["40"])), json!({}), CheckResult::Problem),
            (json!({}), taint("NoSchedule"), CheckResult::Problem),
            (json!({}), taint("PreferNoSchedule"), CheckResult::Ok),
            (json!({"tolerations": [{"key": "team", "value": "x"}]}), taint("NoSchedule"), CheckResult::Ok),
            (json!({"tolerations": [{"key": "team", "value": "y"}]}), taint("NoSchedule"), CheckResult::Problem),
            (json!({"tolerations": [{"operator": "Exists"}]}), taint("NoExecute"), CheckResult::Ok),
            (
                json!({"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}]}),
                taint("NoExecute"),
                CheckResult::Problem,
            ),
            (json!({}), json!({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}), CheckResult::Ok),
        ];
        for (template, spec, expected) in cases {
            let found = found(json!({"gpusPerReplica": 1, "podTemplate": template}), &[node("4", spec.clone())]);
            assert_eq!(found.result, expected, "{spec} {template}: {}", found.message);
        }
    }
}
