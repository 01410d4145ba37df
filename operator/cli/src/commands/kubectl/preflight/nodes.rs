//! Whether a gang can be scheduled, as far as a client can check: nodes, quotas, claims.

use k8s_openapi::api::core::v1::{Node, ResourceQuota, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pawl_api::TrainingJob;
use serde::Serialize;

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The result.
    pub result: CheckResult,
    /// The finding, and the remedy.
    pub message: String,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum CheckResult {
    /// Passed.
    Good,
    /// Could not be checked.
    Unknown,
    /// The job cannot run.
    Bad,
}

impl Finding {
    /// A check that passed.
    pub fn good(message: impl Into<String>) -> Self {
        Self { result: CheckResult::Good, message: message.into() }
    }

    /// Could not be checked.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self { result: CheckResult::Unknown, message: message.into() }
    }

    /// The job cannot run.
    pub fn bad(message: impl Into<String>) -> Self {
        Self { result: CheckResult::Bad, message: message.into() }
    }
}

/// Whether the nodes have capacity for the gang when empty. Affinity and running pods are left to the scheduler.
pub fn nodes(job: &TrainingJob, nodes: &[Node]) -> Finding {
    let trainer = &job.spec.trainer;
    let (replicas, gpus, resource) = (trainer.replicas, trainer.gpus_per_replica, trainer.gpu_resource.as_str());
    let fitting: Vec<&Node> = nodes.iter().filter(|node| admits(job, node)).collect();
    let selector = &trainer.pod_template.node_selector;
    if fitting.is_empty() {
        let selector: Vec<String> = selector.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let wanted = if selector.is_empty() { String::new() } else { format!(" with {}", selector.join(", ")) };
        return Finding::bad(format!(
            "none of the {} nodes{wanted} accepts these pods: see spec.trainer.podTemplate.nodeSelector and tolerations",
            nodes.len()
        ));
    }
    if gpus == 0 {
        return Finding::good(format!(
            "{} of {} nodes accept these pods, which need no GPU",
            fitting.len(),
            nodes.len()
        ));
    }
    let on = |node: &Node| allocatable(node, resource);
    let pods: u64 = fitting.iter().map(|node| on(node) / u64::from(gpus)).sum();
    let largest = fitting.iter().map(|node| on(node)).max().unwrap_or(0);
    if largest == 0 {
        let elsewhere = nodes.iter().filter(|node| on(node) > 0).count();
        let hint = match elsewhere {
            0 => format!(
                "no node has the resource {resource}: is its device plugin installed, is spec.trainer.gpuResource right?"
            ),
            some => format!(
                "the {some} nodes with {resource} do not accept these pods: see spec.trainer.podTemplate.nodeSelector and tolerations"
            ),
        };
        return Finding::bad(hint);
    }
    if pods < u64::from(replicas) {
        return Finding::bad(format!(
            "{replicas} pods of {gpus} {resource} each do not fit: the nodes have capacity for {pods} even when empty, and the largest \
             has {largest}: see spec.trainer.replicas and gpusPerReplica"
        ));
    }
    Finding::good(format!(
        "the nodes have capacity for {pods} pods of {gpus} {resource} when empty; the job needs {replicas}"
    ))
}

/// Whether a node accepts the pods: schedulable, selected, its taints tolerated.
fn admits(job: &TrainingJob, node: &Node) -> bool {
    let template = &job.spec.trainer.pod_template;
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let selected = template.node_selector.iter().all(|(name, value)| labels.get(name) == Some(value));
    let spec = node.spec.as_ref();
    let cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
    let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let hard = taints.iter().filter(|taint| taint.effect != "PreferNoSchedule");
    // As the operator's pods.
    let own = |taint: &Taint| {
        let trainer = &job.spec.trainer;
        trainer.gpus_per_replica > 0 && taint.key == trainer.gpu_resource && taint.effect == "NoSchedule"
    };
    let tolerated = |taint: &Taint| own(taint) || template.tolerations.iter().any(|wanted| tolerates(wanted, taint));
    selected && !cordoned && hard.into_iter().all(tolerated)
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == taint.effect);
    let any_key = toleration.key.as_deref().is_none_or(str::is_empty);
    let exists = toleration.operator.as_deref() == Some("Exists");
    let key = if any_key { exists } else { toleration.key.as_deref() == Some(taint.key.as_str()) };
    let value = exists || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    effect && key && value
}

fn allocatable(node: &Node, resource: &str) -> u64 {
    let all = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    all.and_then(|all| all.get(resource)).and_then(whole).unwrap_or(0)
}

/// A count of devices or pods, an integer.
fn whole(quantity: &Quantity) -> Option<u64> {
    quantity.0.parse().ok()
}

/// Whether the quotas of the namespace suffice for the gang.
pub fn quotas(job: &TrainingJob, quotas: &[ResourceQuota]) -> Vec<Finding> {
    let trainer = &job.spec.trainer;
    let gpus = u64::from(trainer.replicas) * u64::from(trainer.gpus_per_replica);
    let mut needs = vec![("pods".to_owned(), u64::from(trainer.replicas))];
    if gpus > 0 {
        needs.push((format!("requests.{}", trainer.gpu_resource), gpus));
    }
    let mut findings = Vec::new();
    for quota in quotas {
        let name = quota.metadata.name.as_deref().unwrap_or_default();
        let Some(status) = &quota.status else { continue };
        for (resource, need) in &needs {
            let hard = status.hard.as_ref().and_then(|hard| hard.get(resource)).and_then(whole);
            let Some(hard) = hard else { continue };
            let used = status.used.as_ref().and_then(|used| used.get(resource)).and_then(whole).unwrap_or(0);
            let free = hard.saturating_sub(used);
            findings.push(if *need > hard {
                Finding::bad(format!(
                    "quota {name} allows {hard} {resource}, the job needs {need}: ask for a larger quota"
                ))
            } else if *need > free {
                Finding::bad(format!(
                    "quota {name} leaves {free} of {hard} {resource}, the job needs {need}: wait, or release some"
                ))
            } else {
                Finding::good(format!("quota {name} leaves {free} of {hard} {resource}; the job needs {need}"))
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn job(trainer: Value) -> TrainingJob {
        serde_json::from_value(json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
            "spec": {"workload": {"name": "ups"}, "trainer": trainer},
        }))
        .unwrap()
    }

    fn node(gpus: &str, more: Value) -> Node {
        let mut node = json!({"metadata": {"name": "n", "labels": {"zone": "a"}}, "spec": more,
                              "status": {"allocatable": {"nvidia.com/gpu": gpus}}});
        node["kind"] = json!("Node");
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn gangs_are_counted_in_whole_pods() {
        let two_of_four = job(json!({"replicas": 2, "gpusPerReplica": 4}));
        let with = |gpus: &[&str]| gpus.iter().map(|gpus| node(gpus, json!({}))).collect::<Vec<_>>();
        assert_eq!(nodes(&two_of_four, &with(&["8"])).result, CheckResult::Good);
        assert_eq!(nodes(&two_of_four, &with(&["4", "4"])).result, CheckResult::Good);
        // Seven devices, but room for one whole pod.
        assert_eq!(nodes(&two_of_four, &with(&["4", "3"])).result, CheckResult::Bad);
        let none = nodes(&two_of_four, &with(&["0", "0"]));
        assert!(none.result == CheckResult::Bad && none.message.contains("device plugin"), "{none:?}");
        assert_eq!(nodes(&job(json!({"gpusPerReplica": 0})), &with(&["0"])).result, CheckResult::Good);
    }

    #[test]
    fn nodes_that_do_not_take_the_pods_do_not_count() {
        let one = |template: Value| job(json!({"gpusPerReplica": 1, "podTemplate": template}));
        let taint = |effect: &str| json!({"taints": [{"key": "team", "value": "x", "effect": effect}]});
        let cases = [
            (one(json!({})), json!({}), CheckResult::Good),
            (one(json!({})), json!({"unschedulable": true}), CheckResult::Bad),
            (one(json!({"nodeSelector": {"zone": "a"}})), json!({}), CheckResult::Good),
            (one(json!({"nodeSelector": {"zone": "b"}})), json!({}), CheckResult::Bad),
            (one(json!({})), taint("NoSchedule"), CheckResult::Bad),
            (one(json!({})), taint("PreferNoSchedule"), CheckResult::Good),
            (one(json!({"tolerations": [{"key": "team", "value": "x"}]})), taint("NoSchedule"), CheckResult::Good),
            (one(json!({"tolerations": [{"key": "team", "value": "y"}]})), taint("NoSchedule"), CheckResult::Bad),
            (one(json!({"tolerations": [{"operator": "Exists"}]})), taint("NoExecute"), CheckResult::Good),
            (
                one(json!({"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}]})),
                taint("NoExecute"),
                CheckResult::Bad,
            ),
            (one(json!({})), json!({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}), CheckResult::Good),
        ];
        for (job, spec, expected) in cases {
            let found = nodes(&job, &[node("4", spec.clone())]);
            assert_eq!(found.result, expected, "{spec} {:?}: {}", job.spec.trainer.pod_template, found.message);
        }
    }
}
